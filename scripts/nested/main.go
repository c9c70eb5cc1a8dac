// Command nested runs the real Cloud Hypervisor on a machine without hardware
// virtualization: in a Debian guest whose processor, with AMD's virtualization,
// QEMU emulates. There it runs the conformance suite and then every operation of
// a sandbox on a stack of its own. `make nested` builds what it needs and starts
// it.
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

	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// The parts of a run.
const (
	partSuite     = "suite"
	partStack     = "stack"
	partDatabases = "databases"
	partApps      = "apps"
)

// slowness is the default of BERTH_TIME_SCALE in the outer guest.
const slowness = "20"

type options struct {
	parts    []string
	run      string // which of the suite's tests, as for go test
	memoryMB int
	time     time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "inside":
		err = inside(ctx)
	case len(os.Args) > 1 && os.Args[1] == "check": // before any slow preparation
		_, err = realEngine(ctx)
	default:
		err = outside(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nested:", err)
		os.Exit(1)
	}
}

func outside(ctx context.Context) error {
	var o options
	all := []string{partSuite, partStack, partDatabases, partApps}
	parts := flag.String("parts", partSuite+","+partStack, "parts to run, of "+strings.Join(all, ", "))
	flag.StringVar(&o.run, "run", "", "only the suite's tests whose names match")
	flag.IntVar(&o.memoryMB, "memory", 6144, "memory of the outer guest in MB")
	flag.DurationVar(&o.time, "timeout", 6*time.Hour, "limit for the whole run")
	flag.Parse()
	o.parts = strings.Split(*parts, ",")
	for _, p := range o.parts {
		if !slices.Contains(all, p) {
			return fmt.Errorf("-parts: %q is none of %s", p, strings.Join(all, ", "))
		}
	}
	if err := timescale.Check(); err != nil {
		return err
	}
	engine, err := realEngine(ctx)
	if err != nil {
		return err
	}
	root, err := stack.FindRoot()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.time, fmt.Errorf("not done within %s", o.time))
	defer cancel()
	dir := stack.Cache(root, "nested")
	sources, err := image.HostSources(outerSuite)
	if err != nil {
		return err
	}
	if err := makeOuter(ctx, root, dir, sources, image.HostAptOptions(ctx)); err != nil {
		return fmt.Errorf("make the outer guest: %w", err)
	}
	if err := fillDisk(ctx, root, dir, engine, o); err != nil {
		return fmt.Errorf("make the outer guest's disk: %w", err)
	}
	return runOuter(ctx, dir, o)
}

const whereToGetOne = `make nested runs the real Cloud Hypervisor, and BERTH_VMM does not name one.
Download the static binary of release v53.0 (cloud-hypervisor-static) from
https://github.com/cloud-hypervisor/cloud-hypervisor/releases, or build that tag with
cargo build --release --no-default-features --features kvm, and run
  make nested BERTH_VMM=/path/to/cloud-hypervisor`

// realEngine returns the program that BERTH_VMM names.
func realEngine(ctx context.Context) (vmm.Engine, error) {
	path := os.Getenv(vmm.EnvVMM)
	if path == "" {
		return vmm.Engine{}, errors.New(whereToGetOne)
	}
	e, err := vmm.Detect(ctx, path)
	if err != nil {
		return e, err
	}
	if e.Kind != vmm.KindCloudHypervisor {
		return e, fmt.Errorf("BERTH_VMM is %s.\n%s", e.Kind, whereToGetOne)
	}
	return e, nil
}
