// Command machines does on real machines under systemd what docs/operations.md says: it
// boots Debian guests of its own in one network, installs the packages of dist/, forms a
// cluster of three, joins a host, kills the leader's machine, and goes on. QEMU emulates
// the machines, so that no virtualization is needed. `make systemd` builds what it needs
// and starts it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

type options struct {
	packages string
	programs string
	slowness int
	time     time.Duration
}

func main() {
	// The machines end with this thread (Pdeathsig).
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.StringVar(&o.packages, "packages", "dist", "directory with the packages")
	flag.StringVar(&o.programs, "programs", "dist/build/linux-amd64", "directory with berth and controlplane of the same version")
	flag.IntVar(&o.slowness, "slowness", 8, "BERTH_TIME_SCALE on the machines")
	flag.DurationVar(&o.time, "timeout", time.Hour, "limit for the whole run")
	flag.Parse()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "machines:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("root is needed, for a network of machines; run it with sudo")
	}
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.time, fmt.Errorf("not done within %s", o.time))
	defer cancel()
	dir := stack.Cache(root, "machines")
	f := &fleet{dir: dir, space: "berth-machines", began: time.Now()}
	t := &trial{fleet: f, options: o, dir: filepath.Join(dir, "operator")}
	if err := t.whole(); err != nil {
		return err
	}
	sources, err := image.HostSources(suite)
	if err != nil {
		return err
	}
	if err := makeImage(ctx, root, dir, sources, image.HostAptOptions(ctx)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.showLogs()
		}
		err = errors.Join(err, f.close(context.WithoutCancel(ctx)))
	}()
	if err := f.network(ctx); err != nil {
		return err
	}
	return t.all(ctx)
}

// suite is the Debian of the machines.
const suite = "bookworm"

// makeImage makes what the machines boot, from packages of these sources, which apt
// reaches by these options.
func makeImage(ctx context.Context, root, dir string, sources []byte, aptOptions []string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(root, "scripts", "machines", "make-image"), append([]string{dir, suite}, aptOptions...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(sources), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("make the machines' image: %w", err)
	}
	return nil
}

// command runs a program and shows its output.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", filepath.Base(name), strings.Join(args, " "), err)
	}
	return nil
}
