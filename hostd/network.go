package hostd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/netfab/slot"
)

// newFabric makes the host's network from the configuration. Guests never reach
// the replicas, whatever addresses the operator allows.
func newFabric(ctx context.Context, c Config, peers []string, log *slog.Logger) (*slot.Fabric, error) {
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
	return slot.NewFabric(slot.Config{
		// One more than sandboxes get: the last is for template builds by hand.
		Host: c.HostID, CIDR: cidr, Count: c.Slots + 1, BaseUID: c.BaseUID, Resolvers: resolvers, AllowedCIDRs: allowed,
		ControlPlane: addressesOf(ctx, peers, log),
	}, log)
}

// addressesOf resolves the replicas' names. One that does not resolve now is
// left out: it has most likely a private address, which is denied anyway.
func addressesOf(ctx context.Context, peers []string, log *slog.Logger) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range peers {
		host, _, err := net.SplitHostPort(p)
		if err != nil {
			continue
		}
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		if err != nil {
			log.Warn("a replica's address does not resolve", "peer", p, "error", err)
			continue
		}
		for _, ip := range ips {
			out = append(out, netip.PrefixFrom(ip.Unmap(), 32))
		}
	}
	return out
}

// slots is the pool as boxes see it.
type slots struct {
	fabric *slot.Fabric
	pool   *slot.Pool
}

func (s *slots) Take(ctx context.Context) (box.Slot, error) {
	got, err := s.pool.Take(ctx)
	if errors.Is(err, slot.ErrExhausted) {
		return box.Slot{}, fmt.Errorf("%w: %w", hosterr.ErrNoSlot, err)
	}
	if err != nil {
		return box.Slot{}, err
	}
	return box.Slot{Number: got.Number, NetNSPath: got.NetNSPath, UID: got.UID, GID: got.UID}, nil
}

func (s *slots) Claim(ctx context.Context, n int) (box.Slot, error) {
	s.pool.Hold(n)
	got, err := s.fabric.Ensure(ctx, n)
	if err != nil {
		return box.Slot{}, err
	}
	return box.Slot{Number: got.Number, NetNSPath: got.NetNSPath, UID: got.UID, GID: got.UID}, nil
}

func (s *slots) Return(n int) { s.pool.Return(n) }

func (s *slots) Dial(ctx context.Context, n, port int) (net.Conn, error) {
	return s.fabric.Dial(ctx, n, port)
}
