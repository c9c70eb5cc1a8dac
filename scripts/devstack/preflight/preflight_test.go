package preflight

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestPreflightRefusesWithOneSentence(t *testing.T) {
	good := Machine{
		goarch:       "amd64",
		memoryMB:     func() (int, error) { return 8192, nil },
		diskMB:       func(string) (int, error) { return 20480, nil },
		diskSizeMB:   func(string) (int, error) { return 40960, nil },
		deviceExists: func(string) bool { return true },
		env:          func(string) string { return "" },
	}
	dir := openDir(t)
	program := filepath.Join(dir, "engine")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	shut := filepath.Join(dir, "shut")
	if err := os.Mkdir(shut, 0o700); err != nil {
		t.Fatal(err)
	}
	hidden, private := filepath.Join(shut, "engine"), filepath.Join(dir, "private")
	for name, mode := range map[string]os.FileMode{hidden: 0o755, private: 0o700} {
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	with := func(name, value string) func(*Machine) {
		return func(m *Machine) {
			m.env = func(asked string) string {
				if asked == name {
					return value
				}
				return ""
			}
		}
	}
	cases := []struct {
		name  string
		spoil func(*Machine)
		want  string // part of the sentence; "" means that it passes
	}{
		{"a good machine", func(*Machine) {}, ""},
		{"not root", func(m *Machine) { m.uid = 1000 }, "needs root"},
		{"another architecture", func(m *Machine) { m.goarch = "arm64" }, "this machine is arm64"},
		{"no tun device", func(m *Machine) { m.deviceExists = func(string) bool { return false } }, "/dev/net/tun is missing"},
		{"too little memory", func(m *Machine) { m.memoryMB = func() (int, error) { return 1000, nil } }, "1000 MB are available and 3072 MB are needed"},
		{"a small disk", func(m *Machine) { m.diskSizeMB = func(string) (int, error) { return 10000, nil } }, "10000 MB in all"},
		{"too little disk", func(m *Machine) { m.diskMB = func(string) (int, error) { return 500, nil } }, "500 MB are free"},
		{"an engine for all", with("BERTH_VMM", program), ""},
		{"a hidden engine", with("BERTH_VMM", hidden), "may not pass through " + shut},
		{"a private engine", with("BERTH_VMM", private), "may not open"},
		{"no engine", with("BERTH_VMM", dir+"/none"), "cannot be read"},
		{"no engine on the PATH", with("BERTH_VMM", "no-such-engine"), "no such program"},
		{"a hidden kernel", with("BERTH_KERNEL", hidden), "may not pass through " + shut},
		{"a private kernel", with("BERTH_KERNEL", private), "may not open"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := good
			c.spoil(&m)
			cache := filepath.Join(dir, ".berth")
			err := m.Check(cache, filepath.Join(dir, "bin"))
			if err == nil {
				err = m.CheckRoom(cache)
			}
			if c.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if !IsRefusal(err) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one sentence with %q", err, c.want)
			}
		})
	}
}

// openDir returns a directory that every user may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCloneThatVMMsCannotReachIsRefused(t *testing.T) {
	home := openDir(t)
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	m := This
	m.uid, m.deviceExists = 0, func(string) bool { return true }
	err := m.Check(filepath.Join(home, "clone", ".berth"), filepath.Join(home, "clone", "bin"))
	if !IsRefusal(err) || !strings.Contains(err.Error(), "may not pass through "+home) {
		t.Errorf("got %v, want a refusal that names %s", err, home)
	}
}

// In a clone that VMMs cannot reach, or whose path has a space, bin and .berth
// become links to a reachable directory. In others they are left unchanged.
func TestPlaceLinksOnlyWhatVMMsCannotReach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes directories for other users: run as root")
	}
	script, err := os.ReadFile("../../place")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		clone string
		mode  os.FileMode // of the directory above the clone
		umask string
		links bool
	}{
		{"open", "clone", 0o755, "022", false},
		{"open private", "clone", 0o755, "077", false},
		{"closed", "clone", 0o700, "022", true},
		{"closed private", "clone", 0o700, "077", true},
		{"closed group", "clone", 0o700, "027", true},
		{"space", "some clone", 0o755, "022", true},
		{"quote and comma", "a'b,c", 0o755, "022", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := openDir(t)
			dev, above := filepath.Join(dir, "dev"), filepath.Join(dir, "above")
			clone := filepath.Join(above, c.clone)
			// An earlier build, and a template that took minutes, are kept.
			if err := errors.Join(os.MkdirAll(filepath.Join(clone, "scripts"), 0o755), os.MkdirAll(filepath.Join(clone, ".berth", "templates"), 0o755),
				os.Chmod(above, c.mode), os.WriteFile(filepath.Join(clone, "scripts", "place"), script, 0o755)); err != nil {
				t.Fatal(err)
			}
			place := func(args ...string) {
				t.Helper()
				cmd := exec.Command("sh", append([]string{"-c", `umask "$0"; exec "$@"`, c.umask, filepath.Join(clone, "scripts", "place")}, args...)...)
				cmd.Env = append(os.Environ(), "BERTH_DEV_DIR="+dev)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			place()
			place() // a second run changes nothing
			for _, shut := range []string{filepath.Join(dev, "."), filepath.Join(clone, ".berth")} {
				if _, err := os.Stat(shut); err != nil {
					continue
				}
				if err := os.Chmod(shut, 0o700); err != nil { // as an umask may have made it
					t.Fatal(err)
				}
			}
			place()
			for _, name := range []string{"bin", ".berth"} {
				real := Resolve(clone, name)
				if linked := strings.HasPrefix(real, dev+"/"); linked != c.links {
					t.Errorf("%s is at %s, want it below %s: %v", name, real, dev, c.links)
				}
				if closed := closedDir(real); closed != "" {
					t.Errorf("%s is closed at %s", real, closed)
				}
			}
			if _, err := os.Stat(filepath.Join(clone, ".berth", "templates")); err != nil {
				t.Errorf("the caches are gone: %v", err)
			}
			place("remove")
			if left, err := os.ReadDir(dev); len(left) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

func TestTakenPortIsRefusedByNameOfItsHolder(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	// The listener occupies the port of the first replica's public API.
	err = CheckPorts(Ports(port-1, 3, 2))
	if !IsRefusal(err) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, part := range []string{"port " + strconv.Itoa(port), "replica r1", "pid " + strconv.Itoa(os.Getpid()), "BERTH_PORT_BASE"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal %q lacks %q", err, part)
		}
	}
}

// A build that was interrupted left the directories of templates and no template.
func TestOnlyABuiltTemplateNeedsNoRoom(t *testing.T) {
	cache := t.TempDir()
	m := This
	m.memoryMB = func() (int, error) { return 8192, nil }
	m.diskMB = func(string) (int, error) { return needDiskCachedMB, nil }
	m.diskSizeMB = func(string) (int, error) { return needDiskSizeMB, nil }
	names := filepath.Join(cache, "templates", "names")
	if err := os.MkdirAll(names, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := m.CheckRoom(cache); !IsRefusal(err) || !strings.Contains(err.Error(), strconv.Itoa(needDiskMB)+" MB are needed") {
		t.Errorf("nothing is built: got %v", err)
	}
	if err := os.WriteFile(filepath.Join(names, "base.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.CheckRoom(cache); err != nil {
		t.Errorf("base is built: %v", err)
	}
}
