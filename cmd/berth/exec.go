package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// maxStdin is what fits into an exec's body once it is base64.
const maxStdin = 6 << 20

func (a *app) sandboxExec() *cobra.Command {
	var (
		shell, cwd, user string
		env              []string
		stdin            bool
		timeout          span
	)
	cmd := &cobra.Command{
		Use:   "exec ID [-- COMMAND [ARG…] | -c 'COMMAND LINE']",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox and wait until it ends. Its stdout, stderr and exit
code become those of berth.

A command after -- runs without a shell. A string after -c is run by sh -c in
the sandbox: quote it, so that your own shell does not expand it.

The output is printed as it comes; with --json when the command ends, up to 8 MiB
per stream. Ctrl-C ends the command and everything that it started.

Exit codes:
  0–255  the command's own; 128+n when signal n ended it
  124    the command was killed after its timeout
  125    berth itself failed, for example: no such sandbox, no answer, a wrong flag
  130    interrupted by Ctrl-C`,
		Example: `  berth sandbox exec $id -- uname -a
  berth sandbox exec $id -c 'cd /tmp && ls | wc -l'
  berth sandbox exec $id --cwd /srv --env DEBUG=1 --user nobody -- ./run --fast
  tar c . | berth sandbox exec $id -i --cwd /srv -- tar x
  berth sandbox exec $id --timeout 10m -- make test || echo "exit code $?"`,
		Args:              a.execArgs(&shell),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.failure = exitExecFailed
			vars, err := assignments(env, a.env)
			if err != nil {
				return usage(cmd, "--env %s", err)
			}
			in := api.Exec{Cwd: cwd, User: user, Env: vars, TimeoutSeconds: timeout.seconds, Cmd: api.Shell(shell)}
			if !cmd.Flags().Changed("command") {
				in.Cmd = api.Argv(args[1:]...)
			}
			if stdin {
				if err := a.readStdin(cmd.Context(), &in); err != nil {
					return err
				}
			}
			return a.exec(cmd.Context(), args[0], in)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&shell, "command", "c", "", "a command line for sh -c, instead of a command after --")
	f.StringVar(&cwd, "cwd", "", "directory to run in (default: the user's home)")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for this command; NAME alone takes your own value; repeatable")
	f.StringVar(&user, "user", "", "name or uid[:gid] to run as (default: root)")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass all of stdin to the command, up to 6 MiB")
	f.Var(&timeout, "timeout", "kill it after this time, at most 1h (default 1m)")
	return cmd
}

// execArgs checks that there is one id and one command.
func (a *app) execArgs(shell *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		asked := cmd.Flags().Changed("command")
		switch {
		case len(args) == 0 || cmd.ArgsLenAtDash() == 0:
			return usage(cmd, "ID is missing")
		case asked && len(args) > 1:
			return usage(cmd, "give a command with -c or after --, not both")
		case asked && strings.TrimSpace(*shell) == "":
			return usage(cmd, "the command line of -c is empty")
		case !asked && len(args) == 1:
			return usage(cmd, "COMMAND is missing: give it after --, or with -c")
		}
		return nil
	}
}

// readStdin reads all of stdin for the command, until ctx ends.
func (a *app) readStdin(ctx context.Context, in *api.Exec) error {
	type read struct {
		b   []byte
		err error
	}
	got := make(chan read, 1)
	go func() {
		b, err := io.ReadAll(io.LimitReader(a.stdin, maxStdin+1))
		got <- read{b, err}
	}()
	select {
	case <-ctx.Done():
		// The goroutine ends with the process: nothing can wake a read of a terminal.
		return ctx.Err()
	case r := <-got:
		switch {
		case r.err != nil:
			return fmt.Errorf("read stdin: %w", r.err)
		case len(r.b) > maxStdin:
			return errors.New("stdin is larger than the 6 MiB that an exec takes")
		case utf8.Valid(r.b):
			in.Stdin = string(r.b)
		default:
			in.StdinBase64 = r.b
		}
		return nil
	}
}

func (a *app) exec(ctx context.Context, id string, in api.Exec) error {
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return err
	}
	if !a.json {
		end, err := c.ExecStream(ctx, id, in, a.stdout, a.stderr)
		if err != nil {
			return err
		}
		return a.ended(end.ExitCode, end.TimedOut, end.DurationMS)
	}
	res, err := c.Exec(ctx, id, in)
	if err != nil {
		return err
	}
	if err := a.printJSON(res); err != nil {
		return err
	}
	return a.ended(res.ExitCode, res.TimedOut, res.DurationMS)
}

// ended turns the end of a command into that of the program.
func (a *app) ended(code int, timedOut bool, tookMS int64) error {
	switch {
	case timedOut:
		a.note("berth: timed out after %s; the command was killed", time.Duration(tookMS)*time.Millisecond)
		return exit(exitTimedOut)
	case code != 0:
		return exit(code & 0xff)
	}
	return nil
}
