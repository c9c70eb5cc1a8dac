package core_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
)

// A caller whose change was committed by a leader that is then cut off is not told
// that nothing was done.
func TestAReadAfterAChange(t *testing.T) {
	cluster := testcluster.New(t, 3)
	leader := cluster.Leader()
	c := core.New(core.Core{Store: leader.Store})
	if _, err := c.CurrentAfter(t.Context()); err != nil {
		t.Fatal(err)
	}
	cluster.Cut(leader)
	testcluster.Await(t, "its end", func() bool { return leader.Store.Status().State != "leader" })
	for what, c := range map[string]struct {
		read func() error
		want string
	}{
		"of nothing":    {func() error { _, err := c.Current(t.Context()); return err }, "nothing was done"},
		"of its change": {func() error { _, err := c.CurrentAfter(t.Context()); return err }, "it may or may not have happened"},
	} {
		if err := c.read(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
