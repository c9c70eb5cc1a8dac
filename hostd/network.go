package hostd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/netfab/slot"
)

// newFabric makes the host's network from the configuration.
func newFabric(ctx context.Context, c Config, peers *replicas, log *slog.Logger) (*slot.Fabric, error) {
	cidr, err := netip.ParsePrefix(c.SlotCIDR)
	if err != nil {
		return nil, fmt.Errorf("BERTH_SLOT_CIDR: %w", err)
	}
	allowed, err := parsePrefixes(c.AllowedCIDRs)
	if err != nil {
		return nil, fmt.Errorf("BERTH_ALLOWED_CIDRS: %w", err)
	}
	var resolvers []netip.Addr
	for _, s := range c.Resolvers {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("BERTH_RESOLVERS: %w", err)
		}
		resolvers = append(resolvers, a)
	}
	databases, err := c.databases()
	if err != nil {
		return nil, err
	}
	return slot.NewFabric(slot.Config{
		// One more than sandboxes get: the last is for template builds by hand.
		Host: c.HostID, CIDR: cidr, Count: c.Slots + 1, BaseUID: c.BaseUID, Resolvers: resolvers, AllowedCIDRs: allowed,
		ControlPlane: peers.addresses(ctx), FindControlPlane: peers.addresses, Databases: databases,
	}, log)
}

// slots is the pool as boxes see it. While a slot is taken, its guest is answered for
// names of databases.
type slots struct {
	fabric fabric
	pool   *slot.Pool
	log    *slog.Logger

	mu     sync.Mutex
	names  map[int]io.Closer
	closed bool
}

// fabric is what slots need of a slot.Fabric.
type fabric interface {
	Ensure(ctx context.Context, n int) (slot.Slot, error)
	Dial(ctx context.Context, n, port int) (net.Conn, error)
	Names(n int) (io.Closer, error)
}

func newSlots(fabric fabric, pool *slot.Pool, log *slog.Logger) *slots {
	return &slots{fabric: fabric, pool: pool, log: log, names: map[int]io.Closer{}}
}

func (s *slots) Take(ctx context.Context) (box.Slot, error) {
	got, err := s.pool.Take(ctx)
	if errors.Is(err, slot.ErrExhausted) {
		return box.Slot{}, fmt.Errorf("%w: %w", hosterr.ErrNoSlot, err)
	}
	if err != nil {
		return box.Slot{}, err
	}
	return s.taken(got), nil
}

func (s *slots) Claim(ctx context.Context, n int) (box.Slot, error) {
	s.pool.Hold(n)
	got, err := s.fabric.Ensure(ctx, n)
	if err != nil {
		return box.Slot{}, err
	}
	return s.taken(got), nil
}

// hold keeps the pool from the slot of a box of an earlier daemon, whose guest may run.
func (s *slots) hold(n int) {
	s.pool.Hold(n)
	s.openNames(n)
}

func (s *slots) taken(got slot.Slot) box.Slot {
	s.openNames(got.Number)
	return box.Slot{Number: got.Number, NetNSPath: got.NetNSPath, UID: got.UID, GID: got.UID}
}

// openNames never fails: a guest that is not answered for names of databases has all
// else, and the log says why.
func (s *slots) openNames(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if old := s.names[n]; old != nil { // of a claim before: its namespace may be another
		_ = old.Close()
		delete(s.names, n)
	}
	names, err := s.fabric.Names(n)
	if errors.Is(err, fs.ErrNotExist) {
		return // there is no namespace after a reboot, until the slot is claimed
	}
	if err != nil {
		s.log.Error("a guest is not answered for names of databases", "slot", n, "error", err)
		return
	}
	s.names[n] = names
}

func (s *slots) Return(n int) {
	s.mu.Lock()
	names := s.names[n]
	delete(s.names, n)
	s.mu.Unlock()
	if names != nil {
		_ = names.Close()
	}
	s.pool.Return(n)
}

// close ends the answering. Guests and slots stay as they are.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for n, names := range s.names {
		_ = names.Close()
		delete(s.names, n)
	}
}

func (s *slots) Dial(ctx context.Context, n, port int) (net.Conn, error) {
	return s.fabric.Dial(ctx, n, port)
}
