package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// maxCommandStdin is the most input that a command gets at once.
const maxCommandStdin = 512 << 10

func (a *app) sandboxCommand() *cobra.Command {
	g := group("command", "Run commands that go on when you leave",
		`A detached command belongs to the sandbox, and not to who started it: it goes
on when you close your terminal, through hibernate and wake, and in each child of
a fork that keeps memory. A hibernated sandbox is woken by each of these commands.

At most 64 run at once in a sandbox. The last 100 that have ended are listed, and
the last 8 MiB of the output of each are kept.`,
		a.commandRun(), a.commandList(), a.commandGet(), a.commandOutput(), a.commandInput(), a.commandSignal(), a.commandWait(), a.commandRemove())
	g.Aliases = []string{"commands", "cmd"}
	return g
}

func (a *app) commandRun() *cobra.Command {
	var (
		shell, cwd, user, key string
		env                   []string
		stdin, follow, quiet  bool
		timeout               span
	)
	cmd := &cobra.Command{
		Use:     "run ID [-- COMMAND [ARG…] | -c 'COMMAND LINE']",
		Aliases: []string{"start"},
		Short:   "Start a command and print its id",
		Long: `Start a command in a sandbox that goes on when you leave, and print its id.

Its input stays open for berth sandbox command input, unless you pass it with -i:
a program that reads its input to the end waits for --eof.

With -f its output is followed, and its exit code becomes that of berth. Ctrl-C
then ends berth and not the command.`,
		Example: `  cmd=$(berth sandbox command run $id -c 'cd /srv && make test')
  berth sandbox command output $id $cmd -f
  berth sandbox command run $id -f --cwd /srv -- make -j2`,
		Args:              a.execArgs(&shell),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
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
				if len(in.Stdin)+len(in.StdinBase64) == 0 {
					return errors.New("stdin is empty: leave out -i, and end the input with berth sandbox command input --eof")
				}
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if key == "" {
				key = "berth-" + rand.Text()
			}
			started, err := c.StartCommand(cmd.Context(), args[0], in, key)
			if err != nil {
				return err
			}
			switch {
			case follow:
				a.note("%s started", started.ID)
				return a.followCommand(cmd.Context(), c, args[0], started.ID, 0)
			case a.json:
				return a.printJSON(started)
			}
			if !quiet {
				a.note("follow it with: berth sandbox command output %s %s -f", args[0], started.ID)
			}
			fmt.Fprintln(a.stdout, started.ID)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&shell, "command", "c", "", "a command line for sh -c, instead of a command after --")
	f.StringVar(&cwd, "cwd", "", "directory to run in (default: the user's home)")
	f.StringArrayVar(&env, "env", nil, "NAME=VALUE for this command; NAME alone takes your own value; repeatable")
	f.StringVar(&user, "user", "", "name or uid[:gid] to run as (default: root)")
	f.BoolVarP(&stdin, "stdin", "i", false, "pass all of stdin to the command, up to 1 MiB; it then gets no other input")
	f.Var(&timeout, "timeout", "kill it after this time, at most 1h (default: never)")
	f.BoolVarP(&follow, "follow", "f", false, "print its output until it ends")
	f.BoolVarP(&quiet, "quiet", "q", false, "print only the id")
	f.StringVar(&key, "idempotency-key", "", "repeating the command with the same key starts nothing twice")
	return cmd
}

func (a *app) commandList() *cobra.Command {
	return &cobra.Command{
		Use: "ls ID", Aliases: []string{"list"}, Short: "List the commands of a sandbox, newest first",
		Example: "  berth sandbox command ls $id",
		Args:    wants(1, 1, "ID"), ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			list, err := c.ListCommands(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(list)
			}
			rows := [][]string{{"ID", "STATUS", "AGE", "OUTPUT", "COMMAND"}}
			for _, k := range list {
				rows = append(rows, []string{k.ID, commandStatus(&k), age(k.StartedAt.Time), size(k.OutputBytes), oneLine(k.Cmd)})
			}
			return a.table(rows)
		},
	}
}

// commandStatus is a command's status with its exit code.
func commandStatus(k *api.SandboxCommand) string {
	switch {
	case k.ExitCode == nil:
		return string(k.Status)
	case k.TimedOut:
		return "timed out"
	}
	return fmt.Sprintf("%s %d", k.Status, *k.ExitCode)
}

// oneLine shows the beginning of a command on one line.
func oneLine(cmd api.Command) string {
	text := cmd.Shell
	if cmd.Argv != nil {
		text = strings.Join(cmd.Argv, " ")
	}
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > 60 {
		text = string(runes[:59]) + "…"
	}
	return text
}

func (a *app) commandGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID COMMAND", Short: "Show one command",
		Example: "  berth sandbox command get $id $cmd",
		Args:    wants(2, 2, "ID and COMMAND"), ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			k, err := c.GetCommand(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			return a.showCommand(k)
		},
	}
}

func (a *app) showCommand(k *api.SandboxCommand) error {
	if a.json {
		return a.printJSON(k)
	}
	ended := "-"
	if k.EndedAt != nil {
		ended = k.EndedAt.String()
	}
	return a.fields("id", k.ID, "command", oneLine(k.Cmd), "status", commandStatus(k), "started", k.StartedAt.String(), "ended", ended, "output", size(k.OutputBytes))
}

func (a *app) commandOutput() *cobra.Command {
	var (
		follow bool
		since  int64
	)
	cmd := &cobra.Command{
		Use: "output ID COMMAND", Aliases: []string{"logs"}, Short: "Print what a command has written, from the beginning or live",
		Long: `Print what a command has written: its stdout to stdout, its stderr to stderr.

With -f new output follows until the command ends, whose exit code then becomes
that of berth. If the connection breaks, berth goes on where it was. Ctrl-C ends
berth and not the command; a sandbox that is hibernated meanwhile ends it, too.`,
		Example: `  berth sandbox command output $id $cmd
  berth sandbox command output $id $cmd -f
  berth sandbox command output $id $cmd --since 4096 --json`,
		Args: wants(2, 2, "ID and COMMAND"), ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			if since < 0 {
				return usage(cmd, "--since is an offset in bytes, from 0")
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if follow {
				return a.followCommand(cmd.Context(), c, args[0], args[1], since)
			}
			end, err := c.CommandOutput(cmd.Context(), args[0], args[1], since, a.printPiece)
			if err == nil && end != nil && a.json {
				err = a.printLine(map[string]any{"event": "exit", "exit_code": end.ExitCode, "duration_ms": end.DurationMS, "timed_out": end.TimedOut, "offset": end.Offset})
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "continue with new output until the command ends")
	f.Int64Var(&since, "since", 0, "offset in bytes to begin at")
	return cmd
}

// followCommand prints output until the command ends, and ends as it did.
func (a *app) followCommand(ctx context.Context, c *api.Client, id, command string, since int64) error {
	a.failure = exitExecFailed
	end, err := c.FollowCommand(ctx, id, command, since, a.printPiece)
	if ctx.Err() != nil {
		a.note("%s goes on; follow it with: berth sandbox command output %s %s -f", command, id, command)
	}
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printLine(map[string]any{"event": "exit", "exit_code": end.ExitCode, "duration_ms": end.DurationMS, "timed_out": end.TimedOut, "offset": end.Offset}); err != nil {
			return err
		}
	}
	return a.ended(end.ExitCode, end.TimedOut, end.DurationMS)
}

func (a *app) printPiece(p api.CommandPiece) error {
	if a.json {
		if p.Gap {
			return a.printLine(map[string]any{"event": "gap", "offset": p.Offset})
		}
		return a.printLine(map[string]any{"event": p.Stream, "offset": p.Offset, "data": strings.ToValidUTF8(string(p.Data), "\uFFFD")})
	}
	if p.Gap {
		a.note("berth: output before byte %d is not kept any more", p.Offset)
		return nil
	}
	out := a.stdout
	if p.Stream == "stderr" {
		out = a.stderr
	}
	_, err := out.Write(p.Data)
	return err
}

func (a *app) commandInput() *cobra.Command {
	var (
		text string
		eof  bool
	)
	cmd := &cobra.Command{
		Use: "input ID COMMAND", Short: "Write stdin, or a text, to a command's input",
		Long: `Write to a command's input: all of stdin as it comes, or a text with --text.

It waits while the command does not read and 1 MiB is waiting for it. The input
stays open, unless --eof is given.`,
		Example: `  berth sandbox command input $id $cmd --text yes
  gunzip <dump.gz | berth sandbox command input $id $cmd --eof`,
		Args: wants(2, 2, "ID and COMMAND"), ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("text") {
				return a.writeCommand(cmd.Context(), c, args, []byte(text+"\n"), eof)
			}
			buf := make([]byte, maxCommandStdin)
			for {
				n, err := a.stdin.Read(buf)
				ended := errors.Is(err, io.EOF)
				if n > 0 || ended && eof {
					if err := a.writeCommand(cmd.Context(), c, args, buf[:n], ended && eof); err != nil {
						return err
					}
				}
				switch {
				case ended:
					return nil
				case err != nil:
					return fmt.Errorf("read stdin: %w", err)
				}
			}
		},
	}
	f := cmd.Flags()
	f.StringVar(&text, "text", "", "a line to write, instead of stdin")
	f.BoolVar(&eof, "eof", false, "nothing follows: the command reads the end of its input")
	return cmd
}

// inputPause is how long a command may read before it is asked again to take input.
const inputPause = time.Second

// writeCommand writes input, and waits while the command does not take it.
func (a *app) writeCommand(ctx context.Context, c *api.Client, args []string, data []byte, eof bool) error {
	for {
		err := c.WriteCommand(ctx, args[0], args[1], data, eof)
		if api.StatusOf(err) != 429 {
			return err
		}
		select {
		case <-time.After(inputPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *app) commandSignal() *cobra.Command {
	return &cobra.Command{
		Use: "signal ID COMMAND SIGNAL", Aliases: []string{"kill"}, Short: "Send a signal, such as INT or TERM, to a command",
		Long: `Send a signal to a command and all of its process group. To kill it with
everything it started, and forget it, use berth sandbox command rm.`,
		Example: "  berth sandbox command signal $id $cmd INT",
		Args:    wants(3, 3, "ID, COMMAND and SIGNAL"), ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return c.SignalCommand(cmd.Context(), args[0], args[1], args[2])
		},
	}
}

func (a *app) commandWait() *cobra.Command {
	return &cobra.Command{
		Use: "wait ID COMMAND", Short: "Wait for a command's end and end as it did",
		Long: `Wait until a command has ended. Its exit code becomes that of berth; 124 if it
was killed after its timeout, 125 if berth itself failed.`,
		Example: "  berth sandbox command wait $id $cmd && echo done",
		Args:    wants(2, 2, "ID and COMMAND"), ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			a.failure = exitExecFailed
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			k, err := c.WaitCommand(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(k); err != nil {
					return err
				}
			}
			return a.ended(*k.ExitCode, k.TimedOut, k.EndedAt.Sub(k.StartedAt.Time).Milliseconds())
		},
	}
}

func (a *app) commandRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID COMMAND…", Aliases: []string{"remove", "delete"}, Short: "Kill commands with everything they started, and forget them",
		Example: "  berth sandbox command rm $id $cmd",
		Args:    wants(2, -1, "ID and COMMAND"), ValidArgsFunction: a.completeCommands,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			for _, command := range args[1:] {
				if err := c.DeleteCommand(cmd.Context(), args[0], command); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// completeCommands completes a sandbox's id, and then the ids of its commands. It wakes
// no sandbox.
func (a *app) completeCommands(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSandboxes(cmd, args, prefix)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if sb, err := c.GetSandbox(ctx, args[0]); err != nil || sb.Status != api.SandboxRunning {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := c.ListCommands(ctx, args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, k := range list {
		out = append(out, k.ID+"\t"+commandStatus(&k)+", "+oneLine(k.Cmd))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
