package stack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/scripts/devstack/preflight"
	"github.com/berth-cloud/berth/timescale"
)

// Prepare creates what stacks share and keep: the guest kernel and the base
// template. Progress goes to w. Existing ones are reused; the host's own code
// decides whether a template is up to date.
func Prepare(ctx context.Context, o Options, kernelOnly bool, w io.Writer) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	unix.Umask(openUmask)
	if err := o.checkMachine(preflight.This); err != nil {
		return err
	}
	if err := o.checkRoom(preflight.This); err != nil {
		return err
	}
	if err := o.fetchKernel(ctx, w); err != nil {
		return err
	}
	if kernelOnly {
		return nil
	}
	return o.buildTemplates(ctx, w)
}

// buildTemplates builds the templates, each after the one it is based on, and
// otherwise Options.Builds at once.
func (o Options) buildTemplates(ctx context.Context, w io.Writer) error {
	names := o.Templates
	if len(names) == 0 {
		names = []string{BaseTemplate}
	}
	hosts := make(chan int, min(o.Builds, maxHosts))
	for i := range cap(hosts) {
		hosts <- i
	}
	parents, built := map[string]string{}, map[string]chan struct{}{}
	for _, name := range names {
		def, err := image.ReadDefinition(o.definition(name))
		if err != nil {
			return err
		}
		parents[name] = def.From
	}
	var turns sync.Mutex // one line at a time
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range names {
		out := w
		if len(names) > 1 {
			out = &labelled{label: name + ": ", w: w, turns: &turns}
		}
		mine, parent := make(chan struct{}), built[parents[name]]
		built[name] = mine
		group.Go(func() error {
			if parent != nil {
				select {
				case <-parent:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			host := <-hosts
			defer func() { hosts <- host }()
			if err := o.buildTemplate(ctx, host, name, out); err != nil {
				return fmt.Errorf("build template %s: %w", name, err)
			}
			close(mine)
			return nil
		})
	}
	return group.Wait()
}

// buildTemplate builds a template with hostd, like any host.
func (o Options) buildTemplate(ctx context.Context, host int, name string, w io.Writer) error {
	args := []string{"template", "build", o.definition(name)}
	if o.StoreTemplates {
		args = append(args, "--store")
	}
	cmd := exec.CommandContext(ctx, o.bin("hostd"), args...)
	cmd.Env = o.buildEnv(host)
	cmd.Stdout, cmd.Stderr = w, w
	// It removes its guest and its network before it ends, unless a second signal
	// ends it at once: Ctrl-C at the terminal goes only to us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = timescale.Limit(30 * time.Second)
	return cmd.Run()
}

// definition returns the file that describes a template.
func (o Options) definition(name string) string {
	return filepath.Join(o.Root, "templates", name, "template.yaml")
}

// labelled writes complete lines, each after a label.
type labelled struct {
	label string
	w     io.Writer
	turns *sync.Mutex
	rest  []byte // of a line that has not ended
}

// Write implements io.Writer.
func (l *labelled) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	end := bytes.LastIndexByte(l.rest, '\n') + 1
	lines := l.rest[:end]
	l.rest = bytes.Clone(l.rest[end:])
	l.turns.Lock()
	defer l.turns.Unlock()
	for line := range bytes.Lines(lines) {
		if _, err := l.w.Write(append([]byte(l.label), line...)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// fetchKernel downloads the guests' kernel, unless BERTH_KERNEL names another.
func (o Options) fetchKernel(ctx context.Context, w io.Writer) error {
	if os.Getenv("BERTH_KERNEL") != "" {
		return nil // it was checked before
	}
	cmd := exec.CommandContext(ctx, filepath.Join(o.Root, "scripts", "fetch-kernel"), o.kernelDir())
	cmd.Env = append(os.Environ(), "BERTH_HOSTD="+o.bin("hostd"))
	cmd.Stdout, cmd.Stderr = w, w
	// The script removes what it has downloaded; it waits for the command that it runs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = timescale.Limit(10 * time.Second)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch the guest kernel: %w", err)
	}
	return nil
}
