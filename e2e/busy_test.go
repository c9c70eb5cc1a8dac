package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/cgroup"
)

// Guests that compute on every CPU cost the replicas no leader. What computes
// here are processes where VMMs are, each in a box's group, beside the boxes of the
// stack's hosts.
func TestBusyGuestsCostNoLeader(t *testing.T) {
	const busy = 30 * time.Second
	admin, err := theStack.Admin()
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	healthy(t)
	before, err := admin.RaftStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keepBusy(t, 8*runtime.NumCPU())
	// Writes go on meanwhile: a leader has to get to its disk and to its peers.
	deadline, cancel := context.WithTimeout(t.Context(), busy)
	defer cancel()
	writes := 0
	for deadline.Err() == nil {
		if _, err := admin.CreateJoinToken(deadline, api.CreateJoinToken{TTLSeconds: new(int64(60))}); err != nil && deadline.Err() == nil {
			t.Errorf("write %d: %v", writes, err)
			break
		}
		writes++
	}
	after, err := admin.RaftStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after.Term != before.Term || writes == 0 {
		t.Errorf("after %d writes in %s with busy guests: term %d, it was %d", writes, busy, after.Term, before.Term)
	}
	t.Logf("%d writes in term %d", writes, after.Term)
}

// keepBusy runs processes that never rest, each in the cgroup of a box of one CPU,
// until the test ends.
func keepBusy(t *testing.T, n int) {
	t.Helper()
	tree, err := cgroup.Open(cgroup.Config{Host: "busy"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		box := fmt.Sprintf("box%d", i)
		t.Cleanup(func() {
			if err := tree.Remove(context.Background(), box); err != nil {
				t.Error(err)
			}
		})
		group, err := tree.Ensure(t.Context(), box, cgroup.Limits{CPUs: 1})
		if err != nil {
			t.Fatal(err)
		}
		burner := exec.Command("sh", "-c", "while :; do :; done")
		if err := burner.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = burner.Process.Kill()
			_ = burner.Wait()
		})
		if err := group.Add(burner.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
}
