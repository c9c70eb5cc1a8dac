package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

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
berth.`,
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
	// Reading a terminal cannot be interrupted; the process ends while it waits.
	go func() { _, _ = io.Copy(t, a.stdin) }()
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
