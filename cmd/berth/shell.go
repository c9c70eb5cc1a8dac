package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) shell() *cobra.Command {
	var in api.OpenTerminal
	cmd := &cobra.Command{
		Use:   "shell ID",
		Short: "Open a terminal in a sandbox",
		Long: `Open a terminal in a sandbox, with a login shell or the command of -c. Keys,
including Ctrl-C, go to the program in the sandbox. Its exit code becomes that of
berth. Where stdin is no terminal, Ctrl-D is typed when it ends.`,
		Example: `  berth shell $id
  berth shell $id -c 'vim /etc/hosts'`,
		Args:              wants(1, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			a.failure = exitExecFailed
			return a.runShell(cmd.Context(), c, args[0], in)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&in.Cmd, "command", "c", "", "command line for sh -c, instead of a login shell")
	f.StringVar(&in.Cwd, "cwd", "", "directory to start in (default: the user's home)")
	f.StringVar(&in.User, "user", "", "name or uid[:gid] (default: root)")
	return cmd
}

func (a *app) runShell(ctx context.Context, c *api.Client, id string, in api.OpenTerminal) error {
	fd := int(a.stdin.Fd())
	if term.IsTerminal(fd) {
		if cols, rows, err := term.GetSize(fd); err == nil {
			in.Cols, in.Rows = uint16(cols), uint16(rows)
		}
	}
	t, err := c.OpenTerminal(ctx, id, in)
	if err != nil {
		return err
	}
	defer t.Close()
	if term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return err
		}
		defer func() { _ = term.Restore(fd, old) }()
		stop := followSize(t, fd)
		defer stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Reading a terminal cannot be interrupted; the process ends while it waits.
	go func() {
		last := &lastByte{w: t}
		if _, err := io.Copy(last, a.stdin); err == nil && !term.IsTerminal(fd) {
			endInput(ctx, last)
		}
	}()
	_, err = io.Copy(a.stdout, t)
	switch end := t.Exit(); {
	case err != nil:
		return err
	case end == nil:
		return errors.New("the connection ended before the program did")
	case end.ExitCode != 0:
		return exit(end.ExitCode)
	}
	return nil
}

// eofEvery is how often the end of the input is repeated.
const eofEvery = 300 * time.Millisecond

// endInput types Ctrl-D, on a line of its own, until ctx ends: a terminal has no other end
// of input. One is not enough, because a shell that changes the terminal's mode while it
// starts takes the first for a character.
func endInput(ctx context.Context, w *lastByte) {
	if w.last != '\n' && w.last != 0 {
		_, _ = w.Write([]byte{'\n'})
	}
	tick := time.NewTicker(eofEvery)
	defer tick.Stop()
	for {
		if _, err := w.Write([]byte{4}); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lastByte remembers the last byte that was written.
type lastByte struct {
	w    io.Writer
	last byte
}

// Write implements io.Writer.
func (l *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		l.last = p[len(p)-1]
	}
	return l.w.Write(p)
}

// followSize tells the sandbox when the size of our terminal changes.
func followSize(t *api.Terminal, fd int) (stop func()) {
	changed, quit := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-changed:
				if cols, rows, err := term.GetSize(fd); err == nil {
					_ = t.Resize(uint16(cols), uint16(rows))
				}
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		close(quit)
	}
}
