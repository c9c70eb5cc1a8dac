// Command devstack starts and stops a complete Berth on this machine; `make up`
// and `make down` run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// Set by the build.
var version, commit = "devel", "unknown"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	// The first Ctrl-C stops everything in order. A second one ends us at once,
	// and the next up or down removes what is left.
	context.AfterFunc(ctx, cancel)
	err := timescale.Check()
	if err == nil {
		err = command().ExecuteContext(ctx)
	}
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "devstack: "+err.Error())
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "devstack",
		Short:         "Run a complete Berth on this machine",
		Version:       version + " (" + commit + ")",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	up := &cobra.Command{
		Use:   "up",
		Short: "Start three replicas and two hosts, run a first command in a first sandbox, and stay in the foreground",
		Args:  cobra.NoArgs,
	}
	level := up.Flags().String("log-level", "warn", "lowest level of log events to show: debug, info, warn or error")
	hosts := up.Flags().Int("hosts", 2, "number of host daemons")
	up.RunE = func(cmd *cobra.Command, _ []string) error {
		var l slog.Level
		if err := l.UnmarshalText([]byte(*level)); err != nil {
			return fmt.Errorf("--log-level: %w", err)
		}
		return runUp(cmd.Context(), stack.Options{
			Hosts: *hosts, Supervise: true, AllTemplates: true, StoreTemplates: true, Notify: notify,
			Address: os.Getenv("BERTH_DEV_ADDRESS"), Domain: os.Getenv("BERTH_DEV_DOMAIN"),
		}, l)
	}
	down := &cobra.Command{
		Use:   "down",
		Short: "Stop the running stack, or remove what a killed one left behind",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := stack.Down(cmd.Context(), stack.Options{Notify: notify}); err != nil {
				return err
			}
			fmt.Println("Nothing of Berth runs here: no process, namespace, link, rule, mount or cgroup.")
			return nil
		},
	}
	prepare := &cobra.Command{
		Use:   "prepare",
		Short: "Fetch the guest kernel and build the base template, if they are missing",
		Args:  cobra.NoArgs,
	}
	kernelOnly := prepare.Flags().Bool("kernel-only", false, "do not build the template")
	templates := prepare.Flags().StringSlice("template", nil, "build these templates instead, each after the one it is based on")
	builds := prepare.Flags().Int("at-once", 0, "build so many templates at once (default: one per CPU)")
	prepare.RunE = func(cmd *cobra.Command, _ []string) error {
		return stack.Prepare(cmd.Context(), stack.Options{Templates: *templates, Builds: *builds, Notify: notify}, *kernelOnly, os.Stderr)
	}
	token := &cobra.Command{
		Use:     "token",
		Short:   "Print a JWT of another person, for a day, on the stack whose settings are loaded",
		Example: "  BERTH_JWT=$(bin/devstack token --email grace@example.com) bin/berth org accept LINK",
		Args:    cobra.NoArgs,
	}
	email := token.Flags().String("email", "", "the person's address, which is also who the person is")
	token.RunE = func(cmd *cobra.Command, _ []string) error {
		key := os.Getenv(stack.JWTKey)
		if key == "" {
			return errors.New(stack.JWTKey + " is not set: load the settings of the running stack: set -a; . .berth/dev.env; set +a")
		}
		if !strings.Contains(*email, "@") {
			return fmt.Errorf("--email %q: want an address such as grace@example.com", *email)
		}
		jwt, err := stack.MintJWT(key, *email, *email, 24*time.Hour)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), jwt)
		return nil
	}
	root.AddCommand(up, down, prepare, token)
	return root
}

// notify prints the stack's messages between the log lines.
func notify(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05.000")+" --- "+format+"\n", args...)
}

// healthEmulated is how long an app may take to answer in an emulated guest, which starts
// it many times slower.
const healthEmulated = 4 * time.Minute

// patience returns the replicas' limits where guests are emulated and no one has chosen
// others.
func patience(ctx context.Context) ([]string, error) {
	const health = "BERTH_APP_HEALTH"
	engine, err := vmm.Detect(ctx, "")
	if err != nil || engine.Kind == vmm.KindCloudHypervisor || os.Getenv(health) != "" || os.Getenv(timescale.Env) != "" {
		return nil, err
	}
	return []string{health + "=" + healthEmulated.String()}, nil
}

func runUp(ctx context.Context, o stack.Options, level slog.Level) (err error) {
	if o.ReplicaEnv, err = patience(ctx); err != nil {
		return err
	}
	claim, err := stack.NewClaim(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claim.Release()) }()
	if err := stack.Prepare(ctx, o, false, os.Stderr); err != nil {
		return err
	}
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	fmt.Println("Starting three control-plane replicas and", o.Hosts, "hosts …")
	began := time.Now()
	s, err := claim.Start(ctx)
	if err != nil {
		return err
	}
	defer func() {
		fmt.Println("\nStopping everything …")
		// Ctrl-C ended ctx; stopping must still complete.
		if stopErr := s.Stop(context.WithoutCancel(ctx)); stopErr != nil {
			err = errors.Join(err, stopErr)
			return
		}
		fmt.Println("Done: no process, namespace, link, rule, mount or cgroup is left.")
	}()
	env := filepath.Join(root, ".berth", "dev.env")
	if err := s.WriteEnv(env); err != nil {
		return err
	}
	fmt.Printf("Healthy after %s.\n\n", seconds(time.Since(began)))
	follow, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() { followed <- s.Follow(follow, os.Stdout, level) }()
	if err := firstSandbox(ctx, s, os.Stdout); err != nil {
		cancel()
		return errors.Join(fmt.Errorf("the first sandbox: %w", err), <-followed)
	}
	printNext(os.Stdout, s)
	select {
	case <-ctx.Done():
		return <-followed
	case err := <-followed:
		return err
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// printNext prints what to do next. The examples can be pasted.
func printNext(w io.Writer, s *stack.Stack) {
	fmt.Fprintf(w, `
Berth is running.
  API      %[1]s  (replicas also at %[2]s)
  token    %[3]s
  all settings, with a JWT and the operator's token: .berth/dev.env

In another terminal, in this directory, as root:
  set -a; . .berth/dev.env; set +a
  bin/berth sandbox create base
  bin/berth sandbox ls
  bin/berth sandbox exec <id> -- uname -a
  curl -s $BERTH_URL/v1/sandboxes -H "Authorization: Bearer $BERTH_TOKEN" -d '{"template":"base"}'
  bin/berth raft status

Kill a replica or a host daemon (kill -9): sandboxes keep running, and the process is restarted.
Databases boot from their disks if this machine was suspended for longer than the hosts' lease.
Ctrl-C, or make down, stops everything. Complete logs are in .berth/log/. Warnings follow.

`, s.URLs[0], joinURLs(s.URLs[1:]), s.Token)
}
