package hostd

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/guard"
	"github.com/berth-cloud/berth/tier"
)

// The guard knows an exclusive box before anything can run in its cgroup, and until
// nothing can.
func TestTheGuardKnowsExclusiveBoxesAlone(t *testing.T) {
	tier.Root(t)
	tree, err := cgroup.Open(cgroup.Config{Host: "guard1", Base: "berth-test-hostd"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	groups := marked{cgroups{tree}, guard.Marks(filepath.Join(t.TempDir(), "guard"))}
	idA, idB := strings.Repeat("a", 26), strings.Repeat("b", 26)
	for id, exclusive := range map[string]bool{idA: true, idB: false} {
		g, entered, err := groups.Create(t.Context(), id, box.Limits{CPUs: 1, MemoryMB: 64, Exclusive: exclusive})
		if err != nil {
			t.Fatal(err)
		}
		startIn(t, g)
		entered()
	}
	if got, err := groups.marks.List(); err != nil || !slices.Equal(got, []string{idA}) {
		t.Errorf("marked: %q, %v", got, err)
	}
	seen := watched{tree}
	if busy, err := seen.Busy(idA); !busy || err != nil {
		t.Errorf("its group is busy: %t, %v", busy, err)
	}
	if err := seen.Kill(t.Context(), idA); err != nil {
		t.Error(err)
	}
	for id, want := range map[string]bool{idA: false, idB: true, strings.Repeat("c", 26): false} {
		if busy, err := seen.Busy(id); busy != want || err != nil {
			t.Errorf("after the kill the group of %s is busy: %t, %v", id, busy, err)
		}
	}
	for _, id := range []string{idA, idB} {
		if err := groups.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if got, err := groups.marks.List(); err != nil || len(got) > 0 {
		t.Errorf("marked at the end: %q, %v", got, err)
	}
}
