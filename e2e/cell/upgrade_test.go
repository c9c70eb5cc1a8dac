package cell

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// previous builds the commit before the one that is under test; BERTH_PREVIOUS names
// another one.
func previous(t *testing.T) string {
	t.Helper()
	root, err := stack.FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	rev := os.Getenv("BERTH_PREVIOUS")
	if rev == "" {
		rev = "HEAD~1"
		if err := exec.CommandContext(t.Context(), "git", "-C", root, "rev-parse", "--quiet", "--verify", rev+"^{commit}").Run(); err != nil {
			t.Skipf("there is no previous commit here: %v", err)
		}
	}
	src := t.TempDir()
	archive, err := exec.CommandContext(t.Context(), "git", "-C", root, "archive", rev).Output()
	if err != nil {
		t.Fatalf("git archive %s: %v: %s", rev, err, stderrOf(err))
	}
	untar := exec.CommandContext(t.Context(), "tar", "-x", "-C", src)
	untar.Stdin = bytes.NewReader(archive)
	if out, err := untar.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	bin := filepath.Join(t.TempDir(), "controlplane")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", bin, "./cmd/controlplane")
	build.Dir, build.Env = src, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", rev, err, out)
	}
	return bin
}

func stderrOf(err error) []byte {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.Stderr
	}
	return nil
}

// One replica after the other becomes the new program, the leader last, and the old one
// again; clients notice nothing but that they have to ask again.
func TestRollingUpgradeAndBack(t *testing.T) {
	bin, old := program(t), previous(t)
	c := newCell(t, old)
	l := c.begin()
	for _, to := range []string{bin, old} {
		began := time.Now()
		lead := c.leader()
		for _, r := range append(c.followers(lead), lead) {
			c.stop(r)
			r.bin = to
			c.start(r)
			c.whole()
		}
		t.Logf("all three are exchanged after %s", time.Since(began).Round(time.Millisecond))
	}
	l.end(t)
}

func (c *cell) followers(lead *replica) (out []*replica) {
	for _, r := range c.replicas {
		if r != lead {
			out = append(out, r)
		}
	}
	return out
}
