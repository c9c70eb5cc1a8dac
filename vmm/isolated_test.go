package vmm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// escapedVMM is a VMM that its guest has taken over. It is started as every VMM
// is, and does what it is told: whoever broke out could.
func escapedVMM(socket string) int {
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var last []byte    // body of the last request of the engine's API
	var refused string // which one is refused
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/probe" {
			if r.Method == http.MethodPut {
				last, _ = io.ReadAll(r.Body)
			}
			if strings.HasSuffix(r.URL.Path, "/"+refused) {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = w.Write([]byte("{}"))
			return
		}
		out, err := attempt(q.Get("do"), q.Get("on"))
		switch q.Get("do") {
		case "last":
			out = string(last)
		case "refuse":
			refused = q.Get("on")
		}
		answer := map[string]string{"out": out}
		if err != nil {
			answer["error"] = err.Error()
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	return 0
}

// attempt is one thing that an escaped VMM tries. It succeeds where it gets
// anything.
func attempt(do, on string) (string, error) {
	number, _ := strconv.Atoi(on)
	switch do {
	case "read":
		raw, err := os.ReadFile(on)
		return string(raw), err
	case "write":
		f, err := os.OpenFile(on, os.O_WRONLY, 0)
		if err != nil {
			return "", err
		}
		defer f.Close()
		_, err = f.WriteString("taken over")
		return "", err
	case "make":
		return "", os.WriteFile(on, nil, 0o600)
	case "grow":
		// Go, unlike an engine, takes the signal back that was ignored for it.
		signal.Ignore(unix.SIGXFSZ)
		most := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
		_ = unix.Setrlimit(unix.RLIMIT_FSIZE, &most)
		f, err := os.Create(on)
		if err != nil {
			return "", err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte("x"), escapedMaxFile)
		return "", err
	case "list":
		entries, err := os.ReadDir(on)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), err
	case "signal":
		return "", unix.Kill(number, 0)
	case "trace":
		return "", unix.PtraceSeize(number)
	case "connect":
		conn, err := net.DialTimeout("unix", on, time.Second)
		if err != nil {
			return "", err
		}
		return "", conn.Close()
	case "dial":
		conn, err := net.DialTimeout("tcp", on, time.Second)
		if err != nil {
			return "", err
		}
		return "", conn.Close()
	case "mount":
		return "", unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND, "")
	case "pid":
		return strconv.Itoa(os.Getpid()), nil
	case "args":
		return strings.Join(os.Args, " "), nil
	}
	return "", nil
}

// escaped is an isolated VMM of a user of its own that was taken over.
type escaped struct {
	*Process
	t *testing.T
}

const escapedMaxFile = 1 << 20

func startEscaped(t *testing.T, uid int) escaped {
	t.Helper()
	needRoot(t)
	l := fake(t, "escaped")
	l.UID, l.GID, l.Isolated, l.MaxFile = uid, uid, true, escapedMaxFile
	l.NetNS, l.Cgroup = netns(t), cgroups(t)
	return escaped{startFake(t, l), t}
}

func (e escaped) try(do, on string) (string, error) {
	e.t.Helper()
	var answer struct{ Out, Error string }
	q := url.Values{"do": {do}, "on": {on}}
	if err := e.Client().call(e.t.Context(), http.MethodGet, "probe?"+q.Encode(), nil, &answer); err != nil {
		e.t.Fatal(err)
	}
	if answer.Error != "" {
		return answer.Out, errors.New(answer.Error)
	}
	return answer.Out, nil
}

func (e escaped) mustFail(do, on string) {
	e.t.Helper()
	if out, err := e.try(do, on); err == nil {
		e.t.Errorf("%s %s: it could: %.200q", do, on, out)
	}
}

func (e escaped) must(do, on string) string {
	e.t.Helper()
	out, err := e.try(do, on)
	if err != nil {
		e.t.Errorf("%s %s: %v", do, on, err)
	}
	return out
}

// Whatever an escaped VMM reads, signals or reaches is its own.
func TestAnEscapedVMMIsAlone(t *testing.T) {
	e := startEscaped(t, 654321)
	other := startEscaped(t, 654323)

	if got := e.must("pid", ""); got != "1" {
		t.Errorf("its pid is %s, want 1", got)
	}
	if args := e.must("args", ""); strings.Contains(args, filepath.Base(filepath.Dir(e.dir))) {
		t.Errorf("its command line names its directory on the host: %s", args)
	}

	// Files: its root has no more than it needs.
	names := strings.Fields(e.must("list", "/"))
	for _, name := range names {
		if !slices.Contains([]string{"bin", "dev", "etc", "lib", "lib64", "proc", "run", "usr", "vm"}, name) {
			t.Errorf("it sees /%s", name)
		}
	}
	if etc := e.must("list", "/etc"); etc != "" && etc != "ld.so.cache" {
		t.Errorf("it sees in /etc: %s", etc)
	}
	secret := filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(secret, []byte("secret"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{secret, "/etc/passwd", "/proc/1/root" + secret, "/run/../../../.." + secret, LogPath(other.dir), "/sys/kernel/notes", "/root"} {
		e.mustFail("read", path)
	}
	for _, path := range []string{"/file", "/vm/file", "/bin/file", "/usr/lib/file", "/etc/file", "/dev/file", "/dev/shm/file"} {
		e.mustFail("make", path)
	}
	e.mustFail("write", "/bin/"+filepath.Base(os.Args[0]))
	e.mustFail("mount", "/")
	_ = e.must("make", "/run/file")
	e.mustFail("grow", "/run/grown")

	// Processes.
	for _, pid := range []int{os.Getpid(), other.PID()} {
		n := strconv.Itoa(pid)
		e.mustFail("signal", n)
		e.mustFail("trace", n)
		e.mustFail("read", "/proc/"+n+"/cmdline")
		e.mustFail("list", "/proc/"+n+"/fd")
	}
	for _, name := range strings.Fields(e.must("list", "/proc")) {
		if _, err := strconv.Atoi(name); err == nil && name != strconv.Itoa(e.PID()) {
			t.Errorf("it sees process %s", name)
		}
	}

	// Sockets: by path, in the host's abstract names, and the network.
	l, err := net.Listen("unix", "@berth-test-"+strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	e.mustFail("connect", l.Addr().String())
	e.mustFail("connect", SocketPath(other.dir))
	e.mustFail("connect", "/run/systemd/private")
	e.mustFail("dial", tcp.Addr().String())
}

// A test of the test: the same process without isolation gets at these things.
func TestAVMMThatIsNotIsolatedIsNot(t *testing.T) {
	needRoot(t)
	l := fake(t, "escaped")
	e := escaped{startFake(t, l), t}
	e.must("read", "/etc/passwd")
	e.must("grow", filepath.Join(l.Dir, "grown"))
	e.must("signal", strconv.Itoa(os.Getpid()))
	e.must("read", "/proc/"+strconv.Itoa(os.Getpid())+"/cmdline")
}

// An isolated VMM gets what it is told to open, for reading or writing as the
// configuration says, under names that say nothing of the host.
func TestFilesAreHandedOver(t *testing.T) {
	const uid = 654321
	e := startEscaped(t, uid)
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	file := func(name string, mode fs.FileMode, owner int) string {
		path := filepath.Join(closed, name)
		for _, err := range []error{os.WriteFile(path, []byte(name), 0o600), os.Chown(path, owner, owner), os.Chmod(path, mode)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	cfg := VMConfig{
		Memory:  MemoryConfig{Zones: []MemoryZone{{ID: "ram", File: file("memory", 0o644, 0)}}},
		Payload: &PayloadConfig{Kernel: file("vmlinux", 0o444, 0)},
		Disks: []DiskConfig{
			{ID: "layer", Path: file("layer", 0o666, 0), ReadOnly: true},
			{ID: "overlay", Path: file("overlay", 0o600, uid)},
		},
		Serial: &ConsoleConfig{Mode: ConsoleFile, File: SerialPath(e.dir)},
		RNG:    &RNGConfig{Src: "/dev/urandom"},
	}
	got := e.request(func() error { return e.Create(t.Context(), cfg) })
	if got.Serial.File != "/run/serial.log" || got.RNG.Src != "/dev/urandom" {
		t.Errorf("serial %s, entropy %s", got.Serial.File, got.RNG.Src)
	}
	for path, want := range map[string]string{
		got.Memory.Zones[0].File: "memory", got.Payload.Kernel: "vmlinux", got.Disks[0].Path: "layer", got.Disks[1].Path: "overlay",
	} {
		if strings.Contains(path, want) || !strings.HasPrefix(path, viewHanded) {
			t.Errorf("%s is at %s", want, path)
		}
		if text := e.must("read", path); text != want {
			t.Errorf("%s holds %q", path, text)
		}
	}
	e.mustFail("write", got.Memory.Zones[0].File)
	e.mustFail("write", got.Disks[0].Path) // whose mode lets anyone
	e.must("write", got.Disks[1].Path)

	// What is saved is gone from the view when the answer is there, and what it
	// was made of stays readable when the host removed it.
	saved := filepath.Join(closed, "saved")
	if err := errors.Join(os.Mkdir(saved, 0o700), os.Chown(saved, uid, uid)); err != nil {
		t.Fatal(err)
	}
	before := e.must("list", viewHanded)
	if err := e.Snapshot(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	if after := e.must("list", viewHanded); after != before {
		t.Errorf("it sees %q, before the save %q", after, before)
	}
	if err := os.RemoveAll(closed); err != nil {
		t.Fatal(err)
	}
	if text := e.must("read", got.Payload.Kernel); text != "vmlinux" {
		t.Errorf("the kernel holds %q", text)
	}
}

// A VMM may be saved more often than its view has room for names.
func TestAViewDoesNotFillUp(t *testing.T) {
	const uid = 654321
	e := startEscaped(t, uid)
	saved := filepath.Join(t.TempDir(), "saved")
	if err := errors.Join(os.Mkdir(saved, 0o700), os.Chown(saved, uid, uid), os.WriteFile(filepath.Join(saved, "kept"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for n := range 1100 {
		if err := e.Snapshot(t.Context(), saved); err != nil {
			t.Fatalf("save %d: %v", n+1, err)
		}
	}
	if names := e.must("list", viewHanded); names != "" {
		t.Errorf("it sees %s", names)
	}
	if _, err := os.Stat(filepath.Join(saved, "kept")); err != nil {
		t.Errorf("what was saved: %v", err)
	}
}

// A request that is refused leaves no names in the view, nor does one that comes only to
// half of its files.
func TestARefusedHandoverIsTakenBack(t *testing.T) {
	const uid = 654321
	e := startEscaped(t, uid)
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, []byte("disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.must("refuse", "vm.add-disk")
	if _, err := e.AddDisk(t.Context(), DiskConfig{Path: disk}); err == nil {
		t.Error("a disk was added")
	}
	h := e.newHandover()
	defer h.close()
	for _, name := range []string{"one", "two", "one"} { // which cannot be there twice
		if _, err := h.file(disk, name, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.deliver(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("half of it: %v", err)
	}
	if names := e.must("list", viewHanded); names != "" {
		t.Errorf("it sees %s", names)
	}
	if raw, err := os.ReadFile(disk); err != nil || string(raw) != "disk" {
		t.Errorf("the host's disk holds %q: %v", raw, err)
	}
}

// request is the configuration that a call brings to the VMM.
func (e escaped) request(call func() error) VMConfig {
	e.t.Helper()
	if err := call(); err != nil {
		e.t.Fatal(err)
	}
	var cfg VMConfig
	if err := json.Unmarshal([]byte(e.must("last", "")), &cfg); err != nil {
		e.t.Fatal(err)
	}
	return cfg
}

// After a restart of the daemon files are handed over as before.
func TestAnAdoptedVMMIsHandedFiles(t *testing.T) {
	e := startEscaped(t, 654321)
	p, err := Adopt(t.Context(), e.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { kill(t, p) }()
	again := escaped{p, t}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(disk, []byte("disk"), 0o600), os.Chown(disk, 654321, 654321)); err != nil {
		t.Fatal(err)
	}
	if _, err := again.AddDisk(t.Context(), DiskConfig{ID: "v", Path: disk}); err != nil {
		t.Fatal(err)
	}
	var cfg DiskConfig
	if err := json.Unmarshal([]byte(again.must("last", "")), &cfg); err != nil {
		t.Fatal(err)
	}
	if text := again.must("read", cfg.Path); text != "disk" {
		t.Errorf("%s holds %q", cfg.Path, text)
	}
}
