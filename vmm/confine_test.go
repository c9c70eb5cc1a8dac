package vmm

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
)

func needRoot(t *testing.T) {
	t.Helper()
	tier.Root(t)
}

func itoa(n int) string { return strconv.Itoa(n) }

func proc(t *testing.T, pid int, name string) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + itoa(pid) + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// netns makes a network namespace and returns its path.
func netns(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

const cgroupName = "berth-vmm-test"

// cgroups makes one of whatever this machine mounts: the unified hierarchy, the
// controllers of version 1, or both.
func cgroups(t *testing.T) Cgroup {
	t.Helper()
	var c Cgroup
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		f, err := os.Open(cgroup(t, root))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		c.V2 = f
	}
	for _, controller := range []string{"pids", "memory"} {
		root := "/sys/fs/cgroup/" + controller
		var st unix.Statfs_t
		if unix.Statfs(root, &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
			c.V1 = append(c.V1, cgroup(t, root))
		}
	}
	if c.V2 == nil && c.V1 == nil {
		t.Fatal("no cgroup hierarchy is mounted")
	}
	return c
}

func cgroup(t *testing.T, root string) string {
	t.Helper()
	dir, err := os.MkdirTemp(root, cgroupName+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func cgroupNames(c Cgroup) []string {
	var names []string
	if c.V2 != nil {
		names = append(names, "0::/"+filepath.Base(c.V2.Name()))
	}
	for _, dir := range c.V1 {
		names = append(names, ":"+filepath.Base(filepath.Dir(dir))+":/"+filepath.Base(dir))
	}
	return names
}

// reachable copies a program to where any user may run it.
func reachable(t *testing.T, program, dir string) string {
	t.Helper()
	in, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	path := filepath.Join(dir, "program")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
