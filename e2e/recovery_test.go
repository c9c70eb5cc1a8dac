package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// operate runs berth as the operator does, and returns what it printed.
func operate(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(theStack.Root, "bin", "berth"), args...)
	cmd.Env = append(os.Environ(), "BERTH_URL="+theStack.URLs[0], "BERTH_URLS="+strings.Join(theStack.URLs, ","), "BERTH_ADMIN_TOKEN="+theStack.AdminToken)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// All three replicas are lost with their data, made anew with their keys, and a
// backup is put back, by the commands of docs/operations.md. Guests run on all
// the while; what the backup knows is its owner's again, and what it does not
// know goes when the operator says so.
func TestRecoveryFromABackup(t *testing.T) {
	c := newTenant(t)
	known := c.create(t)
	c.exec(t, known.ID, survivor)
	c.livesOn(t, known.ID, 1)
	before := boxOf(t, known)
	backup := filepath.Join(t.TempDir(), "berth.backup")
	operate(t, "raft", "backup", backup)
	unknown := c.create(t)
	lost := boxOf(t, unknown)

	// Hosts obey a term that the new cluster begins far below.
	const high = 10
	for raftTerm(t) < high {
		operate(t, "raft", "transfer")
		healthy(t)
	}
	for _, r := range theStack.Replicas {
		restartAtEnd(t, r)
		if err := r.Kill9(); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range theStack.Replicas {
		if err := os.RemoveAll(theStack.DataDir(r.ID)); err != nil {
			t.Fatal(err)
		}
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := theStack.WaitLeader(t.Context()); err != nil {
		t.Fatal(err)
	}
	if term := raftTerm(t); term >= high {
		t.Fatalf("the new cluster is in term %d already", term)
	}
	operate(t, "raft", "restore", "--yes", backup)
	healthy(t)

	eventually(t, time.Minute, "the sandbox of the backup is its owner's again", func(ctx context.Context) error {
		s, err := c.GetSandbox(ctx, known.ID)
		if err == nil && s.Status != api.SandboxRunning {
			err = fmt.Errorf("it is %s", s.Status)
		}
		return err
	})
	c.livesOn(t, known.ID, 2)
	if after := boxOf(t, known); after.VMMPID != before.VMMPID {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if _, err := c.GetSandbox(t.Context(), unknown.ID); api.StatusOf(err) != 404 {
		t.Errorf("the sandbox that the backup does not know: %v", err)
	}
	if kept := boxOf(t, unknown); kept.VMMPID != lost.VMMPID || kept.Status != hostapi.StatusRunning {
		t.Errorf("it was %+v, and is %+v before the operator had a look", lost, kept)
	}
	c.answers(t, c.create(t).ID)
	operate(t, "raft", "accept-restore")
	eventually(t, time.Minute, "what the backup does not know is gone", func(ctx context.Context) error {
		all, err := theStack.Boxes(ctx)
		for _, boxes := range all {
			for _, b := range boxes {
				if b.ID == unknown.ID {
					err = fmt.Errorf("it is %s", b.Status)
				}
			}
		}
		return err
	})
	c.livesOn(t, known.ID, 3)
}

func raftTerm(t *testing.T) uint64 {
	t.Helper()
	status, err := admin(t).RaftStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status.Term
}
