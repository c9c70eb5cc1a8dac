// Command bench measures a complete Berth on this machine through its public API,
// and the control store next to plain Raft. `make bench` runs it. It prints a
// table and writes bench.json (name → value and unit).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/raftstore/raftbench"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// parts can be measured alone; this is the order in which they run.
var parts = []string{"raft", "fresh", "rest", "sandboxes", "transitions", "forks", "commands", "data", "preview", "databases", "archives", "apps", "failover"}

type options struct {
	out       string
	parts     map[string]bool
	templates bool
}

func main() {
	out := flag.String("o", "bench.json", "file for the results")
	only := flag.String("only", "", "comma-separated parts to run: "+strings.Join(parts, ", "))
	templates := flag.Bool("templates", false, "first build the templates python and node if they are missing")
	render := flag.String("render", "", "measure nothing: write the results in -o into the tables of this document")
	address := flag.String("serve", "", "measure nothing: serve a page at this address, for the parts preview and apps")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	o := options{out: *out, templates: *templates}
	var err error
	switch {
	case *address != "":
		err = serve(*address)
	case *render != "":
		err = renderInto(*render, *out)
	default:
		if o.parts, err = chosen(*only); err == nil {
			err = run(ctx, o)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// chosen reads a list of parts; an empty one is all of them.
func chosen(list string) (map[string]bool, error) {
	names := parts
	if list != "" {
		names = strings.Split(list, ",")
	}
	set := map[string]bool{}
	for _, name := range names {
		if !slices.Contains(parts, name) {
			return nil, fmt.Errorf("unknown part %q; known: %s", name, strings.Join(parts, ", "))
		}
		set[name] = true
	}
	return set, nil
}

func run(ctx context.Context, o options) error {
	r := &results{}
	if o.parts["raft"] {
		if err := measureRaft(ctx, r); err != nil {
			return err
		}
	}
	var failed error
	if len(o.parts) > 1 || !o.parts["raft"] {
		failed = measureStack(ctx, r, o)
	}
	// Results from before a failure are shown and written too.
	r.print(os.Stdout)
	if err := r.write(o.out); err != nil {
		return errors.Join(failed, err)
	}
	fmt.Println("\nwritten to", o.out)
	return errors.Join(failed, r.verdict())
}

// hostMemoryMB is what each host may promise: room for 17 sandboxes of the base
// template, a parent and 16 children. Only one host has so many at a time.
const hostMemoryMB = 12288

// measureStack starts its own stack, next to any other on the machine.
func measureStack(ctx context.Context, r *results, o options) (err error) {
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	so := stack.Options{
		Root:         root,
		Dir:          stack.Cache(root, "bench", "run"),
		Logs:         stack.Cache(root, "bench", "log"),
		Snapshots:    stack.Cache(root, "bench", "snapshots"),
		PortBase:     stack.DefaultPortBase + 200,
		HostPrefix:   "m",
		HostRange:    2,
		HostMemoryMB: hostMemoryMB,
		HostEnv:      map[string][]string{plainHost: {"BERTH_SNAPSHOT_STORE="}},
		ReplicaEnv:   slices.Concat([]string{databaseIdle}, archiveEnv, appSettings),
	}
	if o.templates {
		progress("building missing templates")
		so.Templates = commandTemplates
		if err := stack.Prepare(ctx, so, false, os.Stderr); err != nil {
			return err
		}
	}
	// Of an earlier run: uploads must not find their chunks there.
	if err := os.RemoveAll(so.Snapshots); err != nil {
		return err
	}
	if o.parts["fresh"] {
		progress("storing the base template, as make up does")
		fresh := so
		fresh.Templates, fresh.StoreTemplates = []string{stack.BaseTemplate}, true
		if err := stack.Prepare(ctx, fresh, false, os.Stderr); err != nil {
			return err
		}
	}
	progress("starting three replicas and two hosts")
	s, err := stack.Start(ctx, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	c, err := s.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	c.Patience = electionTime
	b := &bench{s: s, c: c, r: r}
	if o.parts["fresh"] { // before the daemons are idle
		if err := measureFresh(ctx, b); err != nil {
			r.note("fresh", "failed: "+err.Error())
			return fmt.Errorf("fresh: %w", errors.Join(err, b.clear(ctx)))
		}
	}
	return measureParts(ctx, b, o)
}

func measureParts(ctx context.Context, b *bench, o options) (err error) {
	var e *rawEngine
	if o.parts["transitions"] || o.parts["forks"] {
		if e, err = openRaw(ctx, b.s.Root, most); err != nil {
			return fmt.Errorf("engine alone: %w", err)
		}
		defer func() { err = errors.Join(err, e.close(context.WithoutCancel(ctx))) }()
	}
	measures := map[string]func() error{
		"rest":        func() error { return measureRest(ctx, b) },
		"sandboxes":   func() error { return measureSandboxes(ctx, b) },
		"transitions": func() error { return measureTransitions(ctx, b, e) },
		"forks":       func() error { return measureForks(ctx, b, e) },
		"commands":    func() error { return measureCommands(ctx, b) },
		"data":        func() error { return measureData(ctx, b) },
		"preview":     func() error { return measurePreview(ctx, b) },
		"databases":   func() error { return measureDatabases(ctx, b) },
		"archives":    func() error { return measureArchives(ctx, b) },
		"apps":        func() error { return measureApps(ctx, b) },
		"failover":    func() error { return measureFailover(ctx, b.s, b.r) },
	}
	for _, name := range parts {
		if measure := measures[name]; measure != nil && o.parts[name] {
			if rerr := errors.Join(awaitRateLimit(ctx), b.awaitIdle(ctx)); rerr != nil {
				return errors.Join(err, rerr)
			}
			if ferr := measure(); ferr != nil {
				b.r.note(name, "failed: "+ferr.Error())
				err = errors.Join(err, fmt.Errorf("%s: %w", name, ferr), b.clear(ctx))
			}
		}
	}
	return err
}

// singleCommit is the name of the median time of one commit, by one client.
const singleCommit = "raft_commit_1_client_raftstore_p50"

// measureRaft compares raftstore with the Raft library that it uses.
func measureRaft(ctx context.Context, r *results) error {
	const each = 8 * time.Second
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	// On the disk of the clone: /tmp may be in memory, where a sync costs nothing.
	dir := stack.Cache(root, "bench", "raft")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	progress("commits per second, raftstore and plain raft in turns")
	points, err := raftbench.Run(ctx, dir, []int{1, 64, 256}, each)
	if err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	for _, p := range points {
		name := fmt.Sprintf("raft_commits_%d_clients", p.Clients)
		r.add(name+"_raftstore", p.Ours.CommitsPerSecond, "1/s")
		r.add(name+"_plain", p.Plain.CommitsPerSecond, "1/s")
		r.want(name+"_share", 100*p.Ratio(), "%", atLeast, 80)
		if p.Clients == 1 {
			r.add(singleCommit, ms(p.Ours.P50), "ms")
		}
		r.add(name+"_raftstore_p99", ms(p.Ours.P99), "ms")
		r.add(name+"_plain_p99", ms(p.Plain.P99), "ms")
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05")+" "+format+" …\n", args...)
}
