package hostd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cloud/berth/hostd/cgroup"
)

// Whoever opens a host's cgroups after its daemon is told where that has them.
func TestWhereAHostsGroupsAreIsKept(t *testing.T) {
	run := t.TempDir()
	if got, want := treeConfig(run, "h1"), (cgroup.Config{Host: "h1"}); got != want {
		t.Errorf("of a host that never ran: %+v", got)
	}
	const root = "/sys/fs/cgroup/system.slice/berth-hostd.service"
	for range 2 { // a restart finds it as it is
		if err := keepTree(run, root); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := treeConfig(run, "h1"), (cgroup.Config{Host: "h1", Last: root}); got != want {
		t.Errorf("after a daemon ran: %+v", got)
	}
	if err := keepTree(run, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(run, "cgroup")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a hierarchy of version 1, which has one place only, leaves a record: %v", err)
	}
}
