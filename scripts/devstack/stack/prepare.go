package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Prepare makes what stacks share and keep: the guest kernel and the base
// template. Progress goes to w. What is there already is left as it is; the
// host's own code decides whether a template still fits its inputs.
func Prepare(ctx context.Context, o Options, kernelOnly bool, w io.Writer) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := o.preflight(thisMachine); err != nil {
		return err
	}
	if err := o.fetchKernel(ctx, w); err != nil {
		return err
	}
	if kernelOnly {
		return nil
	}
	cmd := exec.CommandContext(ctx, o.bin("hostd"), o.bakeArgs()...)
	cmd.Env = o.bakeEnv()
	cmd.Stdout, cmd.Stderr = w, w
	// It removes its guest and its network before it ends.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build templates: %w", err)
	}
	return nil
}

// fetchKernel fetches the guests' kernel, unless BERTH_KERNEL names another.
func (o Options) fetchKernel(ctx context.Context, w io.Writer) error {
	if own := os.Getenv("BERTH_KERNEL"); own != "" {
		if _, err := os.Stat(own); err != nil {
			return refusef("BERTH_KERNEL names %s, which cannot be read: %s", own, errors.Unwrap(err))
		}
		return nil
	}
	cmd := exec.CommandContext(ctx, filepath.Join(o.Root, "scripts", "fetch-kernel"), o.kernelDir())
	cmd.Env = append(os.Environ(), "BERTH_HOSTD="+o.bin("hostd"))
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("fetch the guest kernel: %w", err)
	}
	return nil
}
