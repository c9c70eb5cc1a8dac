// Command berth is Berth's command-line client: sandboxes, and for operators
// the control store and the hosts. `berth help` explains it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version and commit are set by the build.
var (
	version = "devel"
	commit  = "unknown"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}

// run is the program without its process. It returns the exit code.
func run(args []string, stdin *os.File, stdout, stderr io.Writer, env func(string) string) int {
	// The first Ctrl-C cancels the call and ends what it started. The second ends the
	// program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, env: env, failure: exitFailure}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && strings.HasPrefix(err.Error(), "required flag") { // cobra has no type for it
		err = usage(cmd, "%s", err)
	}
	return a.report(ctx, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Run commands in microVMs",
		Long: `berth runs commands in sandboxes: microVMs that start in a fraction of a
second, each with its own kernel, memory, disk and network.

Sign in once with berth login: it keeps the service's address and your key as a
context. Or set them in the environment, which comes before contexts:

  BERTH_URL          address of a replica, such as http://127.0.0.1:8080
  BERTH_URLS         addresses of several replicas, comma-separated: if one does
                     not answer, the next is tried
  BERTH_TOKEN        API key, for sandboxes
  BERTH_JWT          JWT, for API keys and organizations (and for sandboxes if BERTH_TOKEN is not set)
  BERTH_ADMIN_TOKEN  operator's token, for raft, agents, join-token and admin
  BERTH_CONTEXT      name of the context to use, if BERTH_URL is not set

A local stack (make up) writes all of them to one file:

  set -a; . .berth/dev.env; set +a`,
		Example: `  id=$(berth sandbox create base)
  berth sandbox exec $id -- python3 -c 'print(6*7)'
  echo hello | berth sandbox exec $id -i -- tr a-z A-Z
  berth cp ./src $id:/app && berth shell $id
  berth fork $id -n 4 && berth tree $id
  berth sandbox rm $id`,
		SilenceErrors: true, // report prints them
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          showHelp,
	}
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, also for errors (on stderr)")
	root.PersistentFlags().StringSliceVar(&a.urls, "url", nil, "address of a replica, instead of BERTH_URL and BERTH_URLS; credentials of the context go to its own only")
	root.PersistentFlags().StringVar(&a.contextFlag, "context", "", "name of the context to use, whatever the environment says")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%s", err) })
	root.AddCommand(a.lifecycle()...)
	root.AddCommand(a.sandbox(), a.sandboxExec(), a.sandboxList(), a.sandboxRemove(), a.shell(), a.copy(), a.logs(), a.events(), a.metrics(), a.port(), a.fork(), a.tree(), a.promote(), a.snapshot(),
		a.template(), a.volume(), a.database(), a.apps(), a.functions(), a.deployHere(), a.webhook(), a.github(), a.raft(), a.agents(), a.joinToken(), a.admin(), a.usage(), a.orgAudit(), a.org(), a.token(), a.login(), a.contextCommands(), a.version())
	return root
}

// group is a command that only contains others.
func group(use, short, long string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Long: long, Args: knownCommand, RunE: showHelp}
	g.AddCommand(commands...)
	return g
}

func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// knownCommand refuses unknown commands and suggests similar ones.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	cmd.SuggestionsMinimumDistance = 2
	if close := cmd.SuggestionsFor(args[0]); len(close) > 0 {
		text += "; did you mean " + strings.Join(close, " or ") + "?"
	}
	return usage(cmd, "%s", text)
}
