package vmm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kinds of engine.
const (
	KindCloudHypervisor = "cloud-hypervisor"
	KindChvemu          = "chvemu"
)

// EnvVMM names the environment variable that holds the path of the VMM.
const EnvVMM = "BERTH_VMM"

// QEMU names the program that chvemu starts: what BERTH_CHVEMU_QEMU says, or the
// one on PATH.
func QEMU() string {
	if path := os.Getenv("BERTH_CHVEMU_QEMU"); path != "" {
		return path
	}
	return "qemu-system-x86_64"
}

// Engine is a VMM binary.
type Engine struct {
	Path string
	Kind string
	// Version is what a stored state is tied to; see Restores. For chvemu it includes
	// the version of its QEMU, for Cloud Hypervisor what this host's processor has.
	Version string
}

// ErrNoEngine is returned by Detect when no VMM can be found.
var ErrNoEngine = errors.New("no VMM found")

// Detect finds the VMM and asks for its version. An empty path means: the one
// that BERTH_VMM names; else cloud-hypervisor, when it is on PATH and the
// processor has hardware virtualization; else chvemu, beside the running
// executable or on PATH. /dev/kvm is not looked at: it may exist without working.
func Detect(ctx context.Context, path string) (Engine, error) {
	if path == "" {
		path = os.Getenv(EnvVMM)
	}
	if path == "" {
		found, err := autodetect("/proc/cpuinfo")
		if err != nil {
			return Engine{}, err
		}
		path = found
	}
	abs, err := exec.LookPath(path)
	if err != nil {
		return Engine{}, fmt.Errorf("%w: %s: %w", ErrNoEngine, EnvVMM, err)
	}
	if abs, err = filepath.Abs(abs); err != nil {
		return Engine{}, fmt.Errorf("%w: %w", ErrNoEngine, err)
	}
	// The launcher's unprivileged user may be able to come to where a link leads,
	// and not to the link.
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return Engine{}, fmt.Errorf("%w: %w", ErrNoEngine, err)
	}
	out, err := exec.CommandContext(ctx, abs, "--version").Output()
	if err != nil {
		return Engine{}, fmt.Errorf("run %s --version: %w", abs, err)
	}
	e, err := parseVersion(out)
	if err != nil {
		return Engine{}, fmt.Errorf("%s --version: %w", abs, err)
	}
	e.Path = abs
	if e.Kind == KindCloudHypervisor {
		// Where KVM does not work, no guest runs either.
		if offered, err := kvmSupportedCPUID(); err == nil {
			e.Version += cpuVersion(offered)
		}
	}
	return e, nil
}

func autodetect(cpuinfo string) (string, error) {
	if hardwareVirtualization(cpuinfo) {
		if p, err := exec.LookPath(KindCloudHypervisor); err == nil {
			return p, nil
		}
	}
	if self, err := os.Executable(); err == nil {
		if p, err := exec.LookPath(filepath.Join(filepath.Dir(self), KindChvemu)); err == nil {
			return p, nil
		}
	}
	if p, err := exec.LookPath(KindChvemu); err == nil {
		return p, nil
	}
	return "", fmt.Errorf("%w: neither %s (with vmx or svm in /proc/cpuinfo) nor %s beside this program or on PATH; set %s", ErrNoEngine, KindCloudHypervisor, KindChvemu, EnvVMM)
}

// hardwareVirtualization reports whether the processor flags in a cpuinfo file
// have vmx (Intel) or svm (AMD).
func hardwareVirtualization(cpuinfo string) bool {
	raw, err := os.ReadFile(cpuinfo)
	if err != nil {
		return false
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		name, flags, ok := strings.Cut(sc.Text(), ":")
		if !ok || strings.TrimSpace(name) != "flags" {
			continue
		}
		for _, f := range strings.Fields(flags) {
			if f == "vmx" || f == "svm" {
				return true
			}
		}
	}
	return false
}

// parseVersion reads "<name> <version>" from the first line and, for chvemu, the
// versions of QEMU and of the machine whose states it writes from lines of their
// own: all that a stored state is bound to.
func parseVersion(out []byte) (Engine, error) {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	fields := strings.Fields(lines[0])
	if len(fields) != 2 {
		return Engine{}, fmt.Errorf("want \"<name> <version>\", got %q", lines[0])
	}
	e := Engine{Kind: fields[0], Version: fields[1]}
	switch e.Kind {
	case KindCloudHypervisor:
	case KindChvemu:
		for _, line := range lines[1:] {
			if v, ok := strings.CutPrefix(line, "QEMU Version: "); ok {
				e.Version += "+qemu-" + strings.Fields(v)[0]
			}
			if v, ok := strings.CutPrefix(line, "State Format: "); ok {
				e.Version += ".state-" + strings.TrimSpace(v)
			}
		}
	default:
		return Engine{}, fmt.Errorf("%q is neither %s nor %s", e.Kind, KindCloudHypervisor, KindChvemu)
	}
	return e, nil
}
