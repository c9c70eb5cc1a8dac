// Command bench measures a whole Berth on this machine, through its public API,
// and the control store beside plain Raft. `make bench` runs it; it prints a
// table and writes bench.json (name → number and unit).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/raftstore/raftbench"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

func main() {
	out := flag.String("o", "bench.json", "where the numbers are written")
	only := flag.String("only", "", "run one part alone: sandboxes, failover or raft")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, only string) error {
	r := &results{}
	if only == "" || only == "raft" {
		if err := measureRaft(ctx, r); err != nil {
			return err
		}
	}
	if only != "raft" {
		if err := measureStack(ctx, r, only); err != nil {
			return err
		}
	}
	r.print(os.Stdout)
	if err := r.write(out); err != nil {
		return err
	}
	fmt.Println("\nwritten to", out)
	return r.verdict()
}

// measureStack starts a stack of its own beside any other on the machine.
func measureStack(ctx context.Context, r *results, only string) (err error) {
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	progress("starting three replicas and two hosts")
	s, err := stack.Start(ctx, stack.Options{
		Root:       root,
		Dir:        filepath.Join(root, ".berth", "bench", "run"),
		Logs:       filepath.Join(root, ".berth", "bench", "log"),
		PortBase:   stack.DefaultPortBase + 200,
		HostPrefix: "m",
		HostRange:  2,
	})
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := s.Stop(context.WithoutCancel(ctx)); err == nil {
			err = stopErr
		}
	}()
	if only == "" || only == "sandboxes" {
		if err := measureSandboxes(ctx, s, r); err != nil {
			return err
		}
	}
	if only == "" || only == "failover" {
		return measureFailover(ctx, s, r)
	}
	return nil
}

// measureRaft compares raftstore with the library that it stands on.
func measureRaft(ctx context.Context, r *results) error {
	const each = 8 * time.Second
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	// On the disk of the clone: /tmp may be in memory, where a sync costs nothing.
	dir := filepath.Join(root, ".berth", "bench", "raft")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	progress("commits a second, raftstore and plain raft in turns")
	points, err := raftbench.Run(ctx, dir, []int{1, 64, 256}, each)
	if err != nil {
		return fmt.Errorf("raft: %w", err)
	}
	for _, p := range points {
		name := fmt.Sprintf("raft_commits_%d_clients", p.Clients)
		r.add(name+"_raftstore", p.Ours.CommitsPerSecond, "1/s")
		r.add(name+"_plain", p.Plain.CommitsPerSecond, "1/s")
		r.want(name+"_share", 100*p.Ratio(), "%", atLeast, 80)
		r.add(name+"_raftstore_p99", ms(p.Ours.P99), "ms")
		r.add(name+"_plain_p99", ms(p.Plain.P99), "ms")
	}
	return nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05")+" "+format+" …\n", args...)
}
