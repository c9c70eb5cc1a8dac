package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// command runs a program and shows all its output. It ends with this process.
func command(ctx context.Context, name string, args ...string) error {
	return commandWith(ctx, nil, name, args...)
}

// outerSuite is the Debian of the outer guest.
const outerSuite = "bookworm"

// makeOuter makes its kernel and its disk, from packages of these sources, which apt
// reaches by these options.
func makeOuter(ctx context.Context, root, dir string, sources []byte, aptOptions []string) error {
	return commandWith(ctx, bytes.NewReader(sources), filepath.Join(root, "scripts", "nested", "make-outer"), append([]string{dir, outerSuite}, aptOptions...)...)
}

func commandWith(ctx context.Context, stdin io.Reader, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = stdin
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(name), err)
	}
	return nil
}

// settingsFile has the settings for the inside, one NAME=VALUE per line.
const settingsFile = "settings"

// trustDir has the certificates that the machine trusts in addition. A layer is
// built with them, and its digest depends on them.
const trustDir = "/usr/local/share/ca-certificates"

// fillDisk creates the outer guest's second disk: programs, suite, engine, guest
// kernel, template definitions and the layer of base, at the same paths as in a
// clone.
func fillDisk(ctx context.Context, root, dir string, engine vmm.Engine, o options) error {
	staging := filepath.Join(dir, "work")
	if err := os.RemoveAll(staging); err != nil {
		return err
	}
	defer os.RemoveAll(staging)
	if err := os.MkdirAll(filepath.Join(staging, ".berth", "templates"), 0o755); err != nil {
		return err
	}
	for from, to := range map[string]string{
		filepath.Join(root, "bin") + "/.":         "bin",
		filepath.Join(root, "go.mod"):             "go.mod",
		filepath.Join(root, "templates"):          "templates",
		stack.Cache(root, "kernel"):               ".berth/kernel",
		stack.Cache(root, "templates", "kernels"): ".berth/templates/kernels",
		stack.Cache(root, "templates", "layers"):  ".berth/templates/layers",
		stack.Cache(root, "templates", "recipes"): ".berth/templates/recipes",
		trustDir + "/.":                           "trust",
	} {
		if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := command(ctx, "cp", "-rL", "--sparse=always", from, filepath.Join(staging, to)); err != nil {
			return err
		}
	}
	if err := command(ctx, "cp", "-L", engine.Path, filepath.Join(staging, "bin", vmm.KindCloudHypervisor)); err != nil {
		return err
	}
	scale := os.Getenv(timescale.Env)
	if scale == "" {
		scale = slowness
	}
	settings := fmt.Sprintf("%s=%s\nNESTED_PARTS=%s\nNESTED_RUN=%s\n", timescale.Env, scale, strings.Join(o.parts, ","), o.run)
	if err := os.WriteFile(filepath.Join(staging, settingsFile), []byte(settings), 0o644); err != nil {
		return err
	}
	disk := filepath.Join(dir, "work.ext4")
	if err := os.RemoveAll(disk); err != nil {
		return err
	}
	if err := command(ctx, "truncate", "-s", "24G", disk); err != nil {
		return err
	}
	return command(ctx, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", "-d", staging, disk)
}

// kernelLine is the outer guest's command line. Its clock is the emulated
// processor's.
const kernelLine = "root=/dev/vda rw console=ttyS0 init=/sbin/outer-init mitigations=off panic=-1 loglevel=4 " +
	"tsc=reliable no_timer_check nokaslr audit=0 net.ifnames=0"

// The program in the outer guest prints a sign of life at an interval. Some guests
// fall silent: the emulated processor has halted although its interrupt controller
// holds a timer interrupt, which it looks at again only when another device
// interrupts. A key does that. A guest that is silent for stillLimit has stalled for
// good.
const (
	aliveLine     = "@nested alive"
	aliveInterval = 10 * time.Second
	nudgeAfter    = 2 * aliveInterval
	stillLimit    = 5 * time.Minute
)

var errStill = fmt.Errorf("the outer guest has stalled for %s: the fault is in its emulated processor, not in what ran in it; "+
	"run again, with NESTED=\"-parts suite -run NAME\" for a test of the suite alone", stillLimit)

// runOuter boots the outer guest, shows its output, and returns the outcome of
// what it ran. Ctrl-C stops the guest at once: it changes only two disks, of
// which one is discarded and the other created again.
func runOuter(ctx context.Context, dir string, o options) error {
	in := func(name string) string { return filepath.Join(dir, name) }
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-name", "berth-nested", "-nodefaults", "-no-user-config",
		"-display", "none", "-no-reboot", "-M", "q35", "-accel", "tcg,thread=multi,tb-size=512",
		// The guest does not run stably with more than one processor, with nested
		// paging turned off, or with a kernel that uses CMPXCHG16B (withoutCX16
		// in vmm/chvemu).
		"-cpu", "EPYC-v1,+svm,+npt,la57=off,cx16=off", "-smp", "1", "-m", fmt.Sprintf("%dM", o.memoryMB),
		"-kernel", in("vmlinuz"), "-initrd", in("initrd.img"), "-append", kernelLine,
		"-drive", "file="+in("rootfs.ext4")+",format=raw,if=virtio,cache=unsafe,snapshot=on",
		"-drive", "file="+in("work.ext4")+",format=raw,if=virtio,cache=unsafe,discard=unmap",
		"-device", "virtio-rng-pci", "-serial", "stdio", "-monitor", "none", "-qmp", "unix:"+in("qmp.sock")+",server=on,wait=off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true} // Ctrl-C goes only to us
	cmd.Stderr = io.Discard                                                           // warnings about processor features
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := errors.New("the outer guest ended before its program did")
	var stands atomic.Bool
	still := time.AfterFunc(stillLimit, func() {
		stands.Store(true)
		_ = cmd.Process.Kill() // it may have ended
	})
	defer still.Stop()
	nudge := time.AfterFunc(nudgeAfter, func() {
		if err := pressKey(in("qmp.sock")); err != nil {
			fmt.Println("the outer guest is silent, and could not be woken:", err)
		}
	})
	defer nudge.Stop()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := strings.TrimRight(lines.Text(), "\r")
		still.Reset(stillLimit)
		nudge.Reset(nudgeAfter)
		switch {
		case line == aliveLine:
		case line == "@nested exit 0":
			ended = nil
		case strings.HasPrefix(line, "@nested exit "):
			ended = errors.New("the program in the outer guest failed: see above")
		default:
			fmt.Println(line)
		}
	}
	err = cmd.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if stands.Load() {
		return errStill
	}
	if ended != nil {
		return errors.Join(ended, err)
	}
	return nil
}

// pressKey presses and releases a key of the guest's keyboard, to which nothing there
// listens.
func pressKey(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(nudgeAfter)); err != nil {
		return err
	}
	answers := json.NewDecoder(conn)
	for _, command := range []string{
		"", // QEMU speaks first
		`{"execute": "qmp_capabilities"}`,
		`{"execute": "send-key", "arguments": {"keys": [{"type": "qcode", "data": "shift"}]}}`,
	} {
		if _, err := io.WriteString(conn, command); err != nil {
			return err
		}
		var answer struct{ Error *struct{ Desc string } }
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return errors.New(answer.Error.Desc)
		}
	}
	return nil
}
