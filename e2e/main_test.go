// Package e2e drives a whole Berth from outside: the real programs, real
// guests, the public API. One stack is started for nearly all tests; what a
// test breaks it mends before it ends.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/tier"
)

// theStack is what every test runs against.
var theStack *stack.Stack

// hostMemoryMB holds a parent and sixteen children of the base template, each
// with what its engine needs, and two more. Guests take of it what they touch,
// which is a fraction.
const hostMemoryMB = 12288

// volumeQuotaMB is small enough to be used up on any disk.
const volumeQuotaMB = 4096

func TestMain(m *testing.M) {
	if !tier.HasGuests() {
		fmt.Println("e2e: skipped: these tests start real guests and need root; run them with make e2e, or set " + tier.EnvGuests + "=1")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	root, err := stack.FindRoot()
	if err != nil {
		fmt.Println("e2e:", err)
		return 1
	}
	unmake, err := makeOutside()
	if err != nil {
		fmt.Println("e2e: make the outside world:", err)
		return 1
	}
	o, err := options(root)
	if err != nil {
		fmt.Println("e2e:", err)
		return 1
	}
	// Built by an earlier run, it would be taken in as what somebody built by hand.
	if err := os.Remove(stack.Cache(root, "templates", "names", "later.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Println("e2e:", err)
		return 1
	}
	theStack, err = stack.Start(ctx, o)
	if err != nil {
		fmt.Println("e2e: start the stack:", err)
		return 1
	}
	code = m.Run()
	// Stop ends with a census of the kernel: what is left is an error.
	if err := theStack.Stop(context.Background()); err != nil {
		fmt.Println("e2e: take the stack down:", err)
		return 1
	}
	if err := unmake(); err != nil {
		fmt.Println("e2e: take the outside world down:", err)
		return 1
	}
	return code
}

// options keep this stack apart from a `make up` on the same machine.
func options(root string) (stack.Options, error) {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return stack.Options{}, fmt.Errorf("sysinfo: %w", err)
	}
	// On a smaller machine, sixteen children need both hosts.
	memoryMB := min(hostMemoryMB, int(machine.Totalram*uint64(machine.Unit)>>20)*9/10)
	host := []string{
		"BERTH_RESOLVERS=" + outsideDNS, "BERTH_OCI_ALLOW=" + allowedRegistries,
		"BERTH_TEMPLATE_SOURCES=" + filepath.Join(root, "e2e", "testdata", "templates"),
	}
	return stack.Options{
		Root:         root,
		Dir:          stack.Cache(root, "e2e", "run"),
		Logs:         stack.Cache(root, "e2e", "log"),
		PortBase:     stack.DefaultPortBase + 100,
		HostPrefix:   "e",
		HostRange:    1,
		HostMemoryMB: memoryMB,
		ReplicaEnv: []string{
			"BERTH_VOLUME_QUOTA_MB=" + strconv.Itoa(volumeQuotaMB),
			"BERTH_DB_IDLE=10s", "BERTH_DB_FIRST_BACKUP=3s", "BERTH_DB_ARCHIVE_INTERVAL=5s", "BERTH_DB_TARGET_TIME_MIN_AGE=5s",
			"BERTH_WEBHOOK_ALLOW_PRIVATE=true", "BERTH_WEBHOOK_DELAYS=1s,2s",
			"BERTH_APP_SWEEP=1s", "BERTH_APP_MIN_IDLE=1s", "BERTH_APP_DRAIN=30s", "BERTH_APP_HEALTH=3m", "BERTH_FUNCTION_IDLE=3s", "BERTH_GIT_ALLOW_HTTP=true",
		},
		HostEnv: map[string][]string{"e1": host, "e2": host},
		Notify:  func(format string, args ...any) { fmt.Printf("e2e: "+format+"\n", args...) },
	}, nil
}
