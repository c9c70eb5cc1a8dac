package image

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/vmm"
)

// world is what the tests with real guests share: an engine, a kernel, guest
// networks, and a store. The store's lowest layer is a few programs of this machine,
// so nothing is downloaded.
type world struct {
	t      *testing.T
	dir    string
	store  *Store
	fabric *slot.Fabric
	engine vmm.Engine
	slots  chan int // free numbers
	leased atomic.Int64
	uid    int
}

const (
	worldCIDR = "10.218.224.0/28"
	worldUID  = 680000
	slotCount = 4
)

func newWorld(t *testing.T) *world {
	t.Helper()
	tier.Guests(t)
	root, err := filepath.Abs("../..")
	must(t, err)
	oneAtATime(t)
	w := &world{t: t, dir: t.TempDir(), uid: worldUID, slots: make(chan int, slotCount)}
	// Unprivileged VMMs pass through every directory above their disks.
	for d := w.dir; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		must(t, os.Chmod(d, 0o755))
	}
	must(t, os.Chmod("/dev/net/tun", 0o666)) // as udev has it where it runs
	build := exec.Command("go", "build", "-o", w.dir+"/", "./cmd/guestd", "./cmd/chvemu")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	engine := os.Getenv(vmm.EnvVMM)
	if engine == "" {
		engine = filepath.Join(w.dir, "chvemu")
	}
	w.engine, err = vmm.Detect(t.Context(), engine)
	must(t, err)
	kernel := os.Getenv("BERTH_KERNEL")
	if kernel == "" {
		kernel = filepath.Join(root, ".berth", "kernel", "vmlinux")
		fetch := exec.Command(filepath.Join(root, "scripts", "fetch-kernel"), filepath.Dir(kernel))
		if out, err := fetch.CombinedOutput(); err != nil {
			t.Fatalf("fetch the kernel: %v\n%s", err, out)
		}
		kernel, err = filepath.EvalSymlinks(kernel) // VMMs may not be able to enter the clone
		must(t, err)
	}
	w.fabric, err = slot.NewFabric(slot.Config{
		Host: "imgtest", CIDR: netip.MustParsePrefix(worldCIDR), BaseUID: worldUID,
	}, slog.New(slog.DiscardHandler))
	must(t, err)
	must(t, w.fabric.EnsureHost(t.Context()))
	t.Cleanup(func() {
		must(t, w.fabric.Purge(context.Background()))
		must(t, w.fabric.Close())
	})
	for n := range slotCount {
		w.slots <- n
	}
	w.store, err = Open(t.Context(), Config{
		Dir: filepath.Join(w.dir, "s"), Engine: w.engine, Kernel: kernel, Guestd: filepath.Join(w.dir, "guestd"), Lease: w.lease,
		OCIAllow: []string{"127.0.0.0/8"},
	})
	must(t, err)
	w.tinyLayer()
	return w
}

// oneAtATime waits for another run of these tests on this machine, because the
// guests' networks have fixed names and addresses.
func oneAtATime(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "berth-image-test.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	t.Cleanup(func() { f.Close() })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) lease(ctx context.Context, _ Guest) (Lease, error) {
	var n int
	select {
	case n = <-w.slots:
	case <-ctx.Done():
		return Lease{}, ctx.Err()
	}
	w.leased.Add(1)
	s, err := w.fabric.Ensure(ctx, n)
	if err != nil {
		return Lease{}, err
	}
	return Lease{
		NetNS: s.NetNSPath, UID: s.UID, GID: s.UID,
		Dial:    func(ctx context.Context, port int) (net.Conn, error) { return w.fabric.Dial(ctx, n, port) },
		Release: func() { w.slots <- n },
	}, nil
}

// tinyPrograms are the only programs in these tests' guests.
var tinyPrograms = []string{
	"sh", "cat", "chmod", "date", "dd", "df", "env", "head", "hostname", "id", "ls", "mkdir", "nproc", "readlink", "rm", "setsid",
	"sleep", "sort", "stat", "stty", "sync", "tail", "test", "touch", "true", "uname", "wc", "yes",
}

var tiny = Definition{
	Name: "tiny", Bootstrap: &Bootstrap{Suite: "tiny"}, CPU: 1, MemoryMB: 256, DiskMB: 256,
}

// tinyLayer puts the layer where a bootstrap would put it.
func (w *world) tinyLayer() {
	w.t.Helper()
	inputs := bootstrapInputs{Format: layerRecipe, Bootstrap: *tiny.Bootstrap}
	_, err := w.store.ensureLayer(w.t.Context(), inputs, func(ctx context.Context, dir, image string) error {
		root := filepath.Join(dir, "root")
		if err := tinyRoot(root); err != nil {
			return err
		}
		return makeImage(ctx, root, image)
	})
	must(w.t, err)
}

// tinyRoot fills a directory with a root file system.
func tinyRoot(root string) error {
	for _, d := range []string{"bin", "etc", "root", "tmp", "var", "home/app", "usr"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("../bin", filepath.Join(root, "usr", "bin")); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n", "etc/group": "root:x:0:\napp:x:1000:\nextra:x:44:app\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, p := range tinyPrograms {
		if err := copyProgram(root, p); err != nil {
			return err
		}
	}
	return nil
}

var libraryPath = regexp.MustCompile(`/\S+\.so\S*`)

// copyProgram copies a program and its shared libraries.
func copyProgram(root, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", path, err)
	}
	files := map[string]string{path: filepath.Join("bin", name)}
	for _, lib := range libraryPath.FindAllString(string(out), -1) {
		files[lib] = lib
	}
	for from, to := range files {
		to = filepath.Join(root, to)
		if _, err := os.Stat(to); err == nil {
			continue
		}
		raw, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, raw, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// ensure builds a template.
func (w *world) ensure(d Definition) Template {
	w.t.Helper()
	tpl, err := w.store.Ensure(w.t.Context(), d, nil)
	must(w.t, err)
	return tpl
}

// box is a restored guest.
type box struct {
	*guestclient.Client
	t       *testing.T
	process *vmm.Process
	overlay string
}

// restore starts a guest from a template's stored state and gives it an identity.
func (w *world) restore(t *testing.T, tpl Template, generation uint64) *box {
	t.Helper()
	lease, err := w.lease(t.Context(), Guest{})
	must(t, err)
	dir, err := os.MkdirTemp(w.dir, "b")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	// The files given to a VMM are outside the directory that it owns.
	overlay, state, run := filepath.Join(dir, "overlay"), filepath.Join(dir, "restore"), filepath.Join(dir, "run")
	must(t, CloneOverlay(tpl.OverlaySeed, overlay))
	must(t, os.Chown(overlay, lease.UID, lease.GID))
	must(t, os.Mkdir(state, 0o755))
	must(t, os.Mkdir(run, 0o755))
	must(t, tpl.WriteRestore(state, VM{Overlay: overlay, Serial: vmm.SerialPath(run)}))
	p, err := vmm.Start(t.Context(), vmm.Launch{Engine: w.engine, Dir: run, NetNS: lease.NetNS, UID: lease.UID, GID: lease.GID, Isolated: true})
	must(t, err)
	t.Cleanup(func() {
		if serial, err := os.ReadFile(vmm.SerialPath(run)); err == nil && w.t.Failed() {
			t.Logf("the guest's console ends:\n%s", serial[max(0, len(serial)-8<<10):])
		}
		must(t, p.Kill(context.Background()))
		lease.Release()
	})
	must(t, p.Restore(t.Context(), vmm.RestoreConfig{SourceURL: vmm.FileURL(state)}))
	must(t, p.Client().Resume(t.Context()))
	b := &box{t: t, process: p, overlay: overlay, Client: guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return lease.Dial(ctx, guestapi.Port)
	})}
	entropy := make([]byte, 64)
	_, err = rand.Read(entropy)
	must(t, err)
	done, err := b.Identity(t.Context(), guestapi.Identity{
		Generation: generation, Entropy: entropy, Hostname: fmt.Sprintf("box-%d", generation),
		MachineID: fmt.Sprintf("%032x", generation), Nameservers: []string{guestapi.GatewayAddr}, ResetTCP: true,
		Env:         map[string]string{"SANDBOX": "yes"},
		SSHHostKeys: []guestapi.SSHHostKey{{Type: "ed25519", Private: "PRIVATE\n", Public: "PUBLIC\n"}},
	})
	must(t, err)
	if done.Generation != generation || done.EntropyBits != 512 {
		t.Errorf("confirmed %+v", done)
	}
	return b
}

// run runs a command line that must end within the time.
func (b *box) run(line string, timeout time.Duration) guestclient.Result {
	b.t.Helper()
	res, err := b.Run(b.t.Context(), guestapi.ExecRequest{Argv: []string{"/bin/sh", "-c", line}, Timeout: timeout, OutputLimitBytes: 1 << 20})
	must(b.t, err)
	return res
}

// out returns the output of a command that must succeed.
func (b *box) out(line string) string {
	b.t.Helper()
	res := b.run(line, time.Minute)
	if res.ExitCode != 0 {
		b.t.Fatalf("%s: %+v\n%s%s", line, res.ExecExit, res.Stdout, res.Stderr)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// files lists the store's entries without locks.
func (w *world) left() []string {
	w.t.Helper()
	var all []string
	must(w.t, filepath.WalkDir(w.store.path(tmpDir), func(path string, _ fs.DirEntry, err error) error {
		if path != w.store.path(tmpDir) {
			all = append(all, path)
		}
		return err
	}))
	return all
}
