package slot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// Errors that callers branch on.
var (
	// ErrNoSuchSlot: the prefix has no addresses for a slot of this number.
	ErrNoSuchSlot = errors.New("no such slot")
	// ErrInUse: a process still has the slot's tap open.
	ErrInUse = errors.New("slot is in use")
)

// Slot is one network slot, complete and up.
type Slot struct {
	Number    int
	NetNS     string // name of the namespace
	NetNSPath string // where it is mounted
	UID       int    // owner of the tap: the user the VMM runs as
	HostAddr  netip.Addr
	NSAddr    netip.Addr // unique on the host; the host sees the guest as this address
	MTU       int
}

// Fabric makes and removes the slots of one host. Its methods may be called
// concurrently; those that change one slot take turns. The network namespace
// that NewFabric is called in is the host's.
type Fabric struct {
	cfg    Config
	log    *slog.Logger
	hostNS ns.NetNS

	slots keyedLocks
	host  sync.Mutex // one EnsureHost at a time
	mu    sync.Mutex // guards what follows
	ready bool       // EnsureHost has succeeded
	mtu   int
	warns []string // chains last warned about

	upstream   []netip.Addr // DNS servers that guests' queries are sent to
	unresolved bool         // no such server is named now; that was logged

	controlPlane []netip.Prefix // as it was found last

	serving []netip.AddrPort // routers of databases that take connections

	connections  int // of one guest, in the host's table
	conntrackMax int // the kernel's, when that was decided
	claimed      int // by all hosts of the machine, then

	keepEvery time.Duration

	// fault, in tests, fails an operation before the named step.
	fault func(step string) error
}

// NewFabric checks the configuration. It changes nothing on the machine.
func NewFabric(cfg Config, log *slog.Logger) (*Fabric, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("network slots: %w", err)
	}
	hostNS, err := ns.GetCurrentNS()
	if err != nil {
		return nil, fmt.Errorf("network slots: open the host's network namespace: %w", err)
	}
	return &Fabric{cfg: cfg, log: log.With("host", cfg.Host), hostNS: hostNS, keepEvery: keepInterval,
		controlPlane: cfg.ControlPlane, serving: cfg.Databases.Routers, connections: cfg.MaxConnections}, nil
}

// Close releases the fabric's own descriptors; slots stay as they are.
func (f *Fabric) Close() error { return f.hostNS.Close() }

// Count is the number of slots there may be.
func (f *Fabric) Count() int { return f.cfg.Count }

// Slot describes slot n, whether or not it exists.
func (f *Fabric) Slot(n int) Slot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Slot{
		Number:    n,
		NetNS:     f.cfg.nsName(n),
		NetNSPath: f.nsPath(n),
		UID:       f.cfg.BaseUID + n,
		HostAddr:  f.cfg.hostAddr(n),
		NSAddr:    f.cfg.nsAddr(n),
		MTU:       f.mtu,
	}
}

func (f *Fabric) nsPath(n int) string {
	return filepath.Join(f.cfg.NetNSDir, f.cfg.nsName(n))
}

// check refuses a number that has no addresses. One past Count has: it may be the slot
// of a guest from when there were more.
func (f *Fabric) check(n int) error {
	if room := f.cfg.room(); n < 0 || n >= room {
		return fmt.Errorf("slot %d of %d: %w", n, room, ErrNoSuchSlot)
	}
	return nil
}

// step is called before each change, in tests to fail there.
func (f *Fabric) step(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.fault != nil {
		return f.fault(name)
	}
	return nil
}

// findLink returns nil where the calling thread's namespace has no such link.
func findLink(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %s: %w", name, err)
	}
	return link, nil
}

// dumpAttempts bounds how often a listing is read again.
const dumpAttempts = 20

// dump reads a list from the kernel again where something changed meanwhile,
// so that it is complete: what it misses would look as if it were not there.
func dump[T any](read func() ([]T, error)) (list []T, err error) {
	for range dumpAttempts {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return nil, err
}

// keyedLocks is one lock a slot number. Waiting ends with the context.
type keyedLocks struct {
	mu    sync.Mutex
	locks map[int]chan struct{}
}

func (k *keyedLocks) lock(ctx context.Context, n int) (unlock func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[int]chan struct{})
	}
	c, ok := k.locks[n]
	if !ok {
		c = make(chan struct{}, 1)
		k.locks[n] = c
	}
	k.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
