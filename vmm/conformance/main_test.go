package conformance_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// fixture is what all tests share: the engine and the guest.
type fixture struct {
	engine    vmm.Engine
	kernel    string
	initramfs string
	dir       string
}

var shared fixture

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if !wanted() {
		return m.Run() // each test says why it is skipped
	}
	dir, err := os.MkdirTemp("", "conf")
	if err == nil {
		err = timescale.Check()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := shared.prepare(dir); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		return 1
	}
	fmt.Printf("engine: %s %s (%s)\nkernel: %s\n", shared.engine.Kind, shared.engine.Version, shared.engine.Path, shared.kernel)
	return m.Run()
}

// wanted reports whether the suite can run: it starts VMMs, as root.
func wanted() bool { return tier.HasGuests() && os.Geteuid() == 0 }

func need(t *testing.T) {
	t.Helper()
	tier.Guests(t)
}

func (f *fixture) prepare(dir string) error {
	f.dir = dir
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	path, init, kernel := os.Getenv(vmm.EnvVMM), os.Getenv("BERTH_PROBE"), os.Getenv("BERTH_KERNEL")
	root := ""
	if path == "" || init == "" || kernel == "" {
		if root, err = repository(); err != nil {
			return err
		}
	}
	if path == "" {
		path = filepath.Join(dir, "chvemu")
		if err := build(ctx, root, path, "./cmd/chvemu"); err != nil {
			return err
		}
	}
	if f.engine, err = vmm.Detect(ctx, path); err != nil {
		return err
	}
	if f.kernel = kernel; kernel == "" {
		f.kernel = filepath.Join(root, ".berth", "kernel", "vmlinux")
	}
	if f.kernel, err = filepath.Abs(f.kernel); err != nil {
		return err
	}
	// A VMM that runs as another user may not be able to enter the clone.
	if f.kernel, err = filepath.EvalSymlinks(f.kernel); err != nil {
		return fmt.Errorf("no guest kernel (set BERTH_KERNEL, or run scripts/fetch-kernel): %w", err)
	}
	// Where there is no Go, the guest's program was built elsewhere.
	if init == "" {
		init = filepath.Join(dir, "init")
		if err := build(ctx, root, init, "./vmm/conformance/probe"); err != nil {
			return err
		}
	}
	f.initramfs = filepath.Join(dir, "initramfs")
	return writeInitramfs(f.initramfs, init, filepath.Join(filepath.Dir(f.kernel), "modules"))
}

func repository() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return string(out[:len(out)-1]), nil
}

func build(ctx context.Context, root, out, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}
