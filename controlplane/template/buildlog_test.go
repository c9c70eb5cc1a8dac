package template_test

import (
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/tier"
)

func TestABuildLogIsReadToItsEndAfterACut(t *testing.T) {
	tier.Slow(t)
	for name, c := range map[string]struct {
		again func(line func(string)) bool // what the host sends when it is asked again
		want  []string
	}{
		"which its host sends": {
			func(line func(string)) bool { line("one"); line("two"); return true }, []string{"one", "two"},
		},
		"which its host no longer sends": {
			func(func(string)) bool { return false },
			[]string{"one", "==> the rest of the log cannot be read"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testplane.NewRig(t, 1)
			over := make(chan struct{})
			var asked atomic.Int32
			r.H1.SetBuildLog(func(line func(string)) bool {
				if asked.Add(1) > 1 {
					return c.again(line)
				}
				line("one")
				<-over // the build ends before the connection breaks
				return false
			})
			b, err := r.Node.Templates.Build(t.Context(), testplane.Caller, api.BuildTemplate{Name: "web", From: "base"}, core.Idempotency{})
			if err != nil {
				t.Fatal(err)
			}
			log, err := r.Node.Templates.FollowBuildLogs(t.Context(), testplane.Caller, b.ID)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			var all []string
			for line, err := log.Next(); !errors.Is(err, io.EOF); line, err = log.Next() {
				if err != nil {
					t.Fatal(err)
				}
				if all = append(all, line); len(all) == 1 {
					buildEnded(t, r, b.ID)
					close(over)
				}
			}
			if !slices.Equal(all, c.want) {
				t.Errorf("%q, want %q", all, c.want)
			}
			if asked.Load() < 2 {
				t.Error("its host was not asked again")
			}
		})
	}
}
