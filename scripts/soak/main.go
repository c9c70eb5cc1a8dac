// Command soak keeps a complete Berth busy while it injects faults, and checks
// that nothing is lost or done twice. `make soak` runs it; scripts/soak/DESIGN.md
// says what is checked and how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

type options struct {
	time    time.Duration
	clients int
	seed    uint64
	faults  []string
	lease   time.Duration

	databases bool // work with databases instead of sandboxes
	ops       int  // steps
	hostKills int  // losses of a host, beside them
	out       string
}

func main() {
	o := options{}
	var only, things string
	flag.StringVar(&things, "only", "sandboxes", "what to work with: sandboxes or databases")
	flag.DurationVar(&o.time, "for", 0, "how long faults are injected (default 30m; for databases, until all steps are done)")
	flag.IntVar(&o.clients, "clients", 3, "number of workspaces that work concurrently, or of databases")
	flag.IntVar(&o.ops, "ops", 100, "steps of a run with databases")
	flag.IntVar(&o.hostKills, "host-kills", 5, "losses of a host in a run with databases, beside its steps")
	flag.StringVar(&o.out, "o", "", "write the numbers of the run to a file, as JSON")
	flag.Uint64Var(&o.seed, "seed", 0, "seed of the random choices; 0 uses the clock (two runs with one seed make the same choices, but at different times)")
	flag.StringVar(&only, "faults", "", "comma-separated faults to inject: "+strings.Join(faultNames(), ", "))
	flag.DurationVar(&o.lease, "lease", 10*time.Second, "lease of a host")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var err error
	if o.databases, err = chosenThings(things); err == nil {
		o.faults, err = chosenFaults(only)
	}
	if err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// chosenThings reports whether a run is about databases.
func chosenThings(only string) (databases bool, err error) {
	if only != "sandboxes" && only != "databases" {
		return false, fmt.Errorf("unknown thing %q; known: sandboxes, databases", only)
	}
	return only == "databases", nil
}

// hostMemoryMB covers the most that each sandbox may use; guests use little of
// it.
const hostMemoryMB = 10240

func run(ctx context.Context, o options) (err error) {
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	so := stack.Options{
		Root:         root,
		Dir:          stack.Cache(root, "soak", "run"),
		Logs:         stack.Cache(root, "soak", "log"),
		PortBase:     stack.DefaultPortBase + 300,
		HostPrefix:   "s",
		HostRange:    3,
		HostMemoryMB: hostMemoryMB,
		Machines:     true,
		ReplicaEnv:   []string{"BERTH_HOST_LEASE=" + o.lease.String()},
		Notify:       say,
	}
	if err := os.RemoveAll(so.Logs); err != nil {
		return err
	}
	if o.databases {
		so.ReplicaEnv = append(so.ReplicaEnv, dbEnv...)
		so.Templates = []string{stack.BaseTemplate, "postgres-16"}
		// Each loss of a host would leave another disk.
		so.HostEnv = map[string][]string{"s1": {"BERTH_DB_KEEP_DISKS=0s"}, "s2": {"BERTH_DB_KEEP_DISKS=0s"}}
		if err := stack.Prepare(ctx, so, false, os.Stdout); err != nil {
			return err
		}
	} else if o.time == 0 {
		o.time = defaultTime
	}
	say("seed %d; starting three replicas and two hosts, each on its own machine", o.seed)
	s, err := stack.Start(ctx, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	k := &soak{stack: s, options: o, history: newHistory(), began: time.Now()}
	if o.databases {
		return k.runDatabases(ctx)
	}
	return k.run(ctx)
}

// defaultTime is the length of a run with sandboxes.
const defaultTime = 30 * time.Minute

func say(format string, args ...any) {
	fmt.Printf(time.Now().Format("15:04:05")+" "+format+"\n", args...)
}

// random returns each worker's own source, so that its choices do not depend on
// the speed of others.
func (o options) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(o.seed, stream)) //nolint:gosec // a seed repeats a run's choices
}
