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
}

func main() {
	o := options{}
	var only string
	flag.DurationVar(&o.time, "for", 30*time.Minute, "how long faults are injected")
	flag.IntVar(&o.clients, "clients", 3, "number of workspaces that work concurrently")
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
	if o.faults, err = chosenFaults(only); err == nil {
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
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
	say("seed %d; starting three replicas and two hosts, each on its own machine", o.seed)
	s, err := stack.Start(ctx, so)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop(context.WithoutCancel(ctx))) }()
	k := &soak{stack: s, options: o, history: newHistory()}
	return k.run(ctx)
}

func say(format string, args ...any) {
	fmt.Printf(time.Now().Format("15:04:05")+" "+format+"\n", args...)
}

// random returns each worker's own source, so that its choices do not depend on
// the speed of others.
func (o options) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(o.seed, stream)) //nolint:gosec // a seed repeats a run's choices
}
