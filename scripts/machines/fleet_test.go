package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/tier"
)

// The names of the replicas are a letter, which ip takes for the beginning of one of its
// words wherever it may stand for one.
func TestMachinesOfAnyNameGetATap(t *testing.T) {
	tier.Root(t)
	ctx := t.Context()
	f := &fleet{dir: t.TempDir(), space: "berth-machines-" + strconv.Itoa(os.Getpid())}
	if err := os.WriteFile(filepath.Join(f.dir, "base.ext4"), []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.network(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for i, name := range []string{"a", "b", "c", "h1"} {
		if _, err := f.add(ctx, name, 11+i, 1); err != nil {
			t.Fatal(err)
		}
		out, err := f.here(ctx, "ip", "-oneline", "link", "show", "dev", name).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "master br0") || !strings.Contains(string(out), ",UP") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
