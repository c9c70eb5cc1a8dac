package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/e2e/frameworks"
)

// An app of each usual framework goes live from its repository, with what the registries
// give: see registries.
func TestFrameworks(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	for _, f := range frameworks.All {
		t.Run(f.Dir, func(t *testing.T) {
			repo := newRepository(t)
			if err := f.Write("frameworks/testdata", repo.dir); err != nil {
				t.Fatal(err)
			}
			repo.commit("The app", nil)
			app := c.app(t, map[string]any{"name": f.Dir, "git_url": repo.url, "build_command": f.Build, "auto_hibernate": false})
			c.deploy(t, app.ID, `{}`, api.DeploymentLive)
			eventually(t, appWait, "the app answers", func(context.Context) error {
				if a := asks(t, 0, app, "/"); a.status != 200 || !strings.Contains(a.body, f.Answer) {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
				return nil
			})
		})
	}
}
