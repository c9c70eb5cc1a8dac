package core_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// TestOpen: each workspace has its own number, and what has ended counts once.
func TestOpen(t *testing.T) {
	o := core.NewOpen("logs", 2)
	enter := func(ws string) func() {
		t.Helper()
		leave, err := o.Enter(ws)
		if err != nil {
			t.Fatal(err)
		}
		return leave
	}
	refused := func() {
		t.Helper()
		_, err := o.Enter("a")
		e := apierror.As(err)
		if e == nil || e.Code != apierror.ERateLimited || e.Message != "too many logs at once" || e.RetryAfter == 0 {
			t.Fatalf("got %v", err)
		}
		if d := cmp.Diff(map[string]any{"max": 2, "active": 2}, e.Fields); d != "" {
			t.Error(d)
		}
	}
	first := enter("a")
	enter("a")
	refused()
	enter("b")
	first()
	first()
	enter("a")
	refused()
}
