package boot

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCommandLineIsRead(t *testing.T) {
	for line, want := range map[string]int{
		"":                               1,
		"console=ttyS0 quiet\n":          1,
		"quiet berth.lower=3 panic=-1\n": 3,
		"berth.lower=2 berth.lower=25":   25,
		"xberth.lower=7 berth.lowers=8":  1,
	} {
		p, err := parseCmdline(line)
		if err != nil || p.lower != want {
			t.Errorf("%q: got %d, %v, want %d", line, p.lower, err, want)
		}
	}
	for _, line := range []string{"berth.lower=0", "berth.lower=26", "berth.lower=", "berth.lower=-1", "berth.lower=two", "berth.lower=1e1"} {
		if _, err := parseCmdline(line); err == nil || !strings.Contains(err.Error(), line) {
			t.Errorf("%q: got %v", line, err)
		}
	}
	if got := disk(0) + disk(maxLower); got != "/dev/vda/dev/vdz" {
		t.Errorf("disks are named %s", got)
	}
}

func FuzzParseCmdline(f *testing.F) {
	f.Add("quiet berth.lower=3")
	f.Add("berth.lower=99999999999999999999")
	f.Fuzz(func(t *testing.T, line string) {
		p, err := parseCmdline(line)
		if err == nil && (p.lower < 1 || p.lower > maxLower) {
			t.Errorf("%q gives %d disks", line, p.lower)
		}
	})
}

func modules(t *testing.T, order string, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "modules.order"), []byte(order), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestModulesAreLoadedInOrder(t *testing.T) {
	dir := modules(t, "# comment\nfailover.ko\nvirtio_net.ko\n\nmissing.ko\n../../etc/overlay.ko\n", "failover.ko", "virtio_net.ko", "overlay.ko")
	var loaded []string
	err := loadModules(dir, func(f *os.File) error {
		loaded = append(loaded, filepath.Base(f.Name()))
		return unix.EEXIST // as if it were built in
	})
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"failover.ko", "virtio_net.ko", "overlay.ko"}, loaded); diff != "" {
		t.Error(diff)
	}
}

func TestModuleThatIsRefusedIsNamedAndTheRestLoaded(t *testing.T) {
	dir := modules(t, "a.ko\nb.ko\n", "a.ko", "b.ko")
	calls := 0
	err := loadModules(dir, func(*os.File) error {
		calls++
		if calls == 1 {
			return unix.ENOEXEC
		}
		return nil
	})
	if calls != 2 || !errors.Is(err, unix.ENOEXEC) || !strings.Contains(err.Error(), "a.ko") {
		t.Errorf("got %v after %d calls", err, calls)
	}
}

func TestKernelWithoutModulesNeedsNone(t *testing.T) {
	if err := loadModules(filepath.Join(t.TempDir(), "none"), nil); err != nil {
		t.Error(err)
	}
}
