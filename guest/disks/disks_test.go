package disks

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/files"
	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/tier"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fake is a guest whose disks are plugged in by the test, and which notes what
// it would mount.
func fake(t *testing.T) (g *Guest, plug func(name, serial, number string), mounted *[]string) {
	t.Helper()
	dir := t.TempDir()
	mounted = &[]string{}
	g = &Guest{sys: filepath.Join(dir, "sys"), dev: filepath.Join(dir, "dev"), mount: func(device, target string) error {
		where, err := os.Readlink(target)
		*mounted = append(*mounted, filepath.Base(device)+" on "+where)
		return err
	}}
	must(t, os.MkdirAll(filepath.Join(g.sys, "block"), 0o755))
	must(t, os.Mkdir(g.dev, 0o755))
	return g, func(name, serial, number string) {
		block := filepath.Join(g.sys, "block", name)
		must(t, os.MkdirAll(block, 0o755))
		must(t, os.WriteFile(filepath.Join(block, "dev"), []byte(number+"\n"), 0o644))
		must(t, os.WriteFile(filepath.Join(block, "serial"), []byte(serial), 0o644))
		must(t, os.WriteFile(filepath.Join(g.dev, name), nil, 0o644))
	}, mounted
}

func TestMountsThatAreRefused(t *testing.T) {
	g, plug, mounted := fake(t)
	plug("vdc", "vol-1", "254:32")
	dir := t.TempDir()
	must(t, os.Symlink("/proc/sys", filepath.Join(dir, "link")))
	must(t, os.Symlink("/", filepath.Join(dir, "root")))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	for _, c := range []struct {
		name   string
		mount  guestapi.Mount
		status int
		text   string
	}{
		{"the root", guestapi.Mount{Serial: "vol-1", Path: "/"}, 400, "invalid path"},
		{"the root, unclean", guestapi.Mount{Serial: "vol-1", Path: "//./"}, 400, "invalid path"},
		{"relative", guestapi.Mount{Serial: "vol-1", Path: "data"}, 400, "invalid path"},
		{"dot dot", guestapi.Mount{Serial: "vol-1", Path: "/mnt/../proc"}, 400, "invalid path"},
		{"proc", guestapi.Mount{Serial: "vol-1", Path: "/proc"}, 400, "invalid path"},
		{"below proc", guestapi.Mount{Serial: "vol-1", Path: "/proc/sys"}, 400, "invalid path"},
		{"sys", guestapi.Mount{Serial: "vol-1", Path: "/sys/fs"}, 400, "invalid path"},
		{"dev", guestapi.Mount{Serial: "vol-1", Path: "/dev/shm"}, 400, "invalid path"},
		{"run", guestapi.Mount{Serial: "vol-1", Path: "/run"}, 400, "invalid path"},
		{"guestd's", guestapi.Mount{Serial: "vol-1", Path: "/run/berth"}, 400, "invalid path"},
		{"the templates' part", guestapi.Mount{Serial: "vol-1", Path: "/etc/berth/identity.d"}, 400, "invalid path"},
		{"etc", guestapi.Mount{Serial: "vol-1", Path: "/etc"}, 400, "invalid path"},
		{"a link to the kernel's files", guestapi.Mount{Serial: "vol-1", Path: filepath.Join(dir, "link")}, 400, "invalid path"},
		{"a link to the root", guestapi.Mount{Serial: "vol-1", Path: filepath.Join(dir, "root")}, 400, "invalid path"},
		{"a file", guestapi.Mount{Serial: "vol-1", Path: filepath.Join(dir, "file")}, 400, "not a directory"},
		{"below a file", guestapi.Mount{Serial: "vol-1", Path: filepath.Join(dir, "file/x")}, 400, "not a directory"},
		{"no serial", guestapi.Mount{Path: "/mnt"}, 400, "invalid serial"},
		{"a long serial", guestapi.Mount{Serial: strings.Repeat("s", 21), Path: "/mnt"}, 400, "invalid serial"},
		{"an odd serial", guestapi.Mount{Serial: "a\nb", Path: "/mnt"}, 400, "invalid serial"},
		{"another file system", guestapi.Mount{Serial: "vol-1", Path: "/mnt", FSType: "ntfs"}, 400, "invalid fstype"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := g.Mount(t.Context(), c.mount)
			if r := files.Refuse(err); err == nil || r.Status != c.status || r.Text != c.text {
				t.Errorf("got %v", err)
			}
		})
	}
	if len(*mounted) > 0 {
		t.Errorf("mounted %v", *mounted)
	}
}

func TestDiskIsAwaited(t *testing.T) {
	g, plug, mounted := fake(t)
	plug("vda", "", "254:0")
	plug("vdb", "vol-10", "254:16")
	path := filepath.Join(t.TempDir(), "a", "b")
	done := make(chan error, 1)
	go func() {
		done <- g.Mount(t.Context(), guestapi.Mount{Serial: "vol-1", Path: path, FSType: "ext4"})
	}()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(3 * devicePoll):
	}
	plug("vdc", "vol-1\n", "254:32")
	must(t, <-done)
	if diff := cmp.Diff([]string{"vdc on " + path}, *mounted); diff != "" {
		t.Error(diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Mount(ctx, guestapi.Mount{Serial: "vol-2", Path: path}); !errors.Is(err, context.Canceled) {
		t.Errorf("without a disk: %v", err)
	}
}

func TestDiskThatIsNotThereQuiteYet(t *testing.T) {
	g, plug, mounted := fake(t)
	plug("vdc", "vol-1", "254:32")
	mount, tries := g.mount, 0
	g.mount = func(device, target string) error {
		if tries++; tries < 4 {
			return unix.ENXIO
		}
		return mount(device, target)
	}
	must(t, g.Mount(t.Context(), guestapi.Mount{Serial: "vol-1", Path: filepath.Join(t.TempDir(), "data")}))
	if len(*mounted) != 1 {
		t.Errorf("mounted %v", *mounted)
	}
}

// TestRealDisk mounts a loop device; only its serial number is made up.
func TestRealDisk(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	must(t, os.WriteFile(image, nil, 0o644))
	must(t, os.Truncate(image, 16<<20))
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("mkfs.ext4", "-q", image)
	device := run("losetup", "--find", "--show", image)
	defer run("losetup", "--detach", device)
	g, _, _ := fake(t)
	g.dev, g.mount = "/dev", NewGuest().mount
	name := filepath.Base(device)
	number, err := os.ReadFile("/sys/block/" + name + "/dev")
	must(t, err)
	block := filepath.Join(g.sys, "block", name)
	must(t, os.MkdirAll(block, 0o755))
	must(t, os.WriteFile(filepath.Join(block, "dev"), number, 0o644))
	must(t, os.WriteFile(filepath.Join(block, "serial"), []byte("vol-1"), 0o644))

	path := filepath.Join(dir, "a b", "data")
	for range 2 {
		must(t, g.Mount(t.Context(), guestapi.Mount{Serial: "vol-1", Path: path}))
	}
	defer func() { _ = unix.Unmount(path, 0) }()
	must(t, os.WriteFile(filepath.Join(path, "file"), []byte("x"), 0o644))
	must(t, Sync())
	for _, other := range []string{filepath.Join(dir, "other"), filepath.Join(path, "lost+found")} {
		if r := files.Refuse(g.Mount(t.Context(), guestapi.Mount{Serial: "vol-1", Path: other})); r.Status != 409 || r.Text != "already mounted" {
			t.Errorf("on %s: %v", other, r)
		}
	}
	must(t, unix.Unmount(path, 0))
	if _, err := os.Stat(filepath.Join(path, "file")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was mounted twice: %v", err)
	}
	// A disk without a file system is refused.
	must(t, exec.Command("dd", "if=/dev/zero", "of="+device, "bs=1M", "count=1", "conv=fsync").Run())
	if r := files.Refuse(g.Mount(t.Context(), guestapi.Mount{Serial: "vol-1", Path: path})); r.Status != 422 || r.Text != "disk not mounted" {
		t.Errorf("an empty disk: %v", r)
	}
}

const table = `21 1 0:19 / / rw,noatime - overlay overlay rw,lowerdir=/layers/0,upperdir=/layers/rw/upper
22 21 0:5 / /dev rw,nosuid - devtmpfs devtmpfs rw
30 21 254:32 / /a\040b\134c rw,noatime shared:3 master:1 - ext4 /dev/vdc rw,discard
short line
`

func TestMountPointsAreRead(t *testing.T) {
	got, err := parse(strings.NewReader(table))
	must(t, err)
	want := []point{{"0:19", "/", "overlay"}, {"0:5", "/dev", "devtmpfs"}, {"254:32", `/a b\c`, "/dev/vdc"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(point{})); diff != "" {
		t.Error(diff)
	}
	if got[0].disk() || !got[2].disk() {
		t.Error("a disk is one with a major number")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{table, "", " - ", `1 2 3 4 \0 6 - 1 \777`, strings.Repeat("x", 2<<20)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		points, err := parse(strings.NewReader(raw))
		for _, p := range points {
			if err == nil && (p.device == "" || p.path == "") {
				t.Errorf("%+v", p)
			}
		}
	})
}
