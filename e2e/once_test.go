package e2e

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A command that a hibernation cut off is told apart from one that was never
// begun: it is not begun a second time, and the sandbox is left asleep. In the
// guest it goes on after the wake.
func TestAHibernatedCommandIsNotRunTwice(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Shell(`echo x >>/n; until [ -e /go-on ]; do sleep 0.1; done; echo end >>/ended`)})
		ended <- err
	}()
	eventually(t, time.Minute, "the command to begin", func(ctx context.Context) error {
		_, err := c.StatFile(ctx, s.ID, "/n")
		return err
	})
	if _, err := c.HibernateSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	var refused *api.Error
	if err := <-ended; !errors.As(err, &refused) || refused.Status != http.StatusConflict || refused.Message != "sandbox stopped while this was under way" {
		t.Errorf("the command that was cut off: %v", err)
	}
	if now, err := c.GetSandbox(t.Context(), s.ID); err != nil || now.Status != "hibernated" {
		t.Errorf("the sandbox is %v, %v; want it asleep", now, err)
	}
	if _, err := c.WakeSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	c.exec(t, s.ID, "touch /go-on")
	eventually(t, time.Minute, "the command's end, without a caller", func(ctx context.Context) error {
		_, err := c.StatFile(ctx, s.ID, "/ended")
		return err
	})
	if got := c.exec(t, s.ID, "wc -l </n"); strings.TrimSpace(got) != "1" {
		t.Errorf("the command began %s times", strings.TrimSpace(got))
	}
}
