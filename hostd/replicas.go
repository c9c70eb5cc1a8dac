package hostd

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// lookupTimeout bounds a search for the addresses of all replicas. The host's network
// rules wait for it.
var lookupTimeout = timescale.Limit(2 * time.Second)

// replicas finds the addresses of the control plane, which guests never reach,
// whatever addresses the operator allows.
type replicas struct {
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	log    *slog.Logger

	mu    sync.Mutex
	peers []string                  // host:port
	known map[string][]netip.Prefix // by host: what its name meant last
	told  map[string]bool           // hosts whose names do not resolve; that was logged
}

func newReplicas(peers []string, log *slog.Logger) *replicas {
	return &replicas{lookup: net.DefaultResolver.LookupNetIP, log: log, peers: peers, known: map[string][]netip.Prefix{}, told: map[string]bool{}}
}

// moved names those that are the replicas now.
func (r *replicas) moved(peers []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers = slices.Clone(peers)
}

// addresses resolves the replicas' names. One that does not resolve counts for what it
// meant last. If it never did it is left out: it has most likely a private address,
// which is denied anyway.
func (r *replicas) addresses(ctx context.Context) []netip.Prefix {
	r.mu.Lock()
	peers := r.peers
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found := make([][]netip.Prefix, len(peers))
	var lookups sync.WaitGroup
	for i, p := range peers {
		host, _, err := net.SplitHostPort(p)
		if err != nil {
			continue
		}
		if ip, err := netip.ParseAddr(host); err == nil {
			if ip = ip.Unmap(); ip.Is4() { // guests have no IPv6
				found[i] = []netip.Prefix{netip.PrefixFrom(ip, 32)}
			}
			continue
		}
		lookups.Go(func() { found[i] = r.resolve(ctx, host) })
	}
	lookups.Wait()
	// Sorted, because servers take turns with the order, and that is no change.
	out := slices.Concat(found...)
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(out)
}

func (r *replicas) resolve(ctx context.Context, host string) []netip.Prefix {
	ips, err := r.lookup(ctx, "ip4", host)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if !r.told[host] {
			r.log.Warn("a replica's address does not resolve", "peer", host, "error", err)
		}
		r.told[host] = true
		return r.known[host]
	}
	delete(r.told, host)
	addresses := make([]netip.Prefix, len(ips))
	for i, ip := range ips {
		addresses[i] = netip.PrefixFrom(ip.Unmap(), 32)
	}
	r.known[host] = addresses
	return addresses
}
