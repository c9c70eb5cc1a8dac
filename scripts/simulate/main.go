// Command simulate measures how far one cell goes: three replicas, each a process of
// its own, and a thousand hosts in this one. The hosts have no virtual machines; what
// they say and answer is the real protocol, over mutual TLS. `make simulate` runs it;
// docs/scale.md explains the numbers.
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
)

// options are the sizes of a run.
type options struct {
	bin        string // the controlplane program
	dir        string // of the replicas' data; emptied first
	hosts      int
	sandboxes  int
	templates  int
	workspaces int
	clients    int
	work       time.Duration // of the mixed work
	idle       time.Duration // how long the filled cell is only watched
	kills      int
	events     bool
	heartbeat  time.Duration
	out        string
	etcd       string // the etcd program: measure beside it, and nothing else
	port       int
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin/controlplane", "the controlplane program")
	flag.StringVar(&o.dir, "dir", "", "directory for the replicas' data, on the disk to measure (default: a temporary one)")
	flag.IntVar(&o.hosts, "hosts", 1000, "number of hosts")
	flag.IntVar(&o.sandboxes, "sandboxes", 100_000, "number of sandboxes")
	flag.IntVar(&o.templates, "templates", 1000, "number of templates, each on every host")
	flag.IntVar(&o.workspaces, "workspaces", 200, "number of workspaces; each may make 25 requests a second")
	flag.IntVar(&o.clients, "clients", 64, "requests that are made at once")
	flag.DurationVar(&o.work, "work", 30*time.Second, "how long the filled cell does mixed work")
	flag.DurationVar(&o.idle, "idle", 20*time.Second, "how long the filled cell is watched at rest")
	flag.IntVar(&o.kills, "kills", 3, "how often the leader is killed")
	flag.BoolVar(&o.events, "events", true, "hosts send events")
	flag.DurationVar(&o.heartbeat, "heartbeat", time.Second, "time between a host's heartbeats")
	flag.StringVar(&o.out, "o", "", "write the numbers to a file, as JSON")
	flag.StringVar(&o.etcd, "etcd", "", "an etcd program: compare the control store with three nodes of it, and measure nothing else")
	flag.IntVar(&o.port, "port", 21100, "first of the six ports of the replicas, and of the six of etcd")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to cancel
	}
}

func (o options) check() error {
	if o.hosts < 1 || o.sandboxes < 1 || o.templates < 1 || o.workspaces < 1 || o.clients < 1 || o.kills < 0 {
		return errors.New("hosts, sandboxes, templates, workspaces and clients are at least 1")
	}
	return nil
}

func run(ctx context.Context, o options) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "berth-simulate-*"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	} else if err := os.RemoveAll(filepath.Join(o.dir, "cell")); err != nil {
		return err
	}
	r := &results{Options: describe(o)}
	say("starting three replicas")
	if o.etcd != "" {
		if err := besideEtcd(ctx, o, r); err != nil {
			return err
		}
		return r.finish(o)
	}
	c, err := startCell(ctx, o)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := measureAll(ctx, o, c, r); err != nil {
		return err
	}
	return r.finish(o)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05")+" "+format+"\n", args...)
}
