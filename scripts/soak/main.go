// Command soak keeps a whole Berth busy while it is broken, again and again,
// and checks that nothing was lost and nothing done twice. `make soak` runs it;
// scripts/soak/DESIGN.md says what is checked and how.
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
	flag.DurationVar(&o.time, "for", 30*time.Minute, "for how long things are broken")
	flag.IntVar(&o.clients, "clients", 3, "workspaces that work at the same time")
	flag.Uint64Var(&o.seed, "seed", 0, "of the random choices; 0 takes one from the clock (two runs of one seed choose alike, and still differ in time)")
	flag.StringVar(&only, "faults", "", "these faults alone, separated by commas: "+strings.Join(faultNames(), ", "))
	flag.DurationVar(&o.lease, "lease", 10*time.Second, "a host's lease at the control plane")
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

// hostMemoryMB is by the worst case of each sandbox, of which guests take little.
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
	say("seed %d; starting three replicas and two hosts, each on a machine of its own", o.seed)
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

// random is a source of its own for each worker, so that what one chooses does
// not depend on how quick another is.
func (o options) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(o.seed, stream)) //nolint:gosec // a run is chosen again by its seed
}
