package slot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/netfab/nft"
)

// keepInterval is how often Keep checks. It bounds how long guests are without
// network after the machine's rules were flushed.
const keepInterval = 5 * time.Second

// EnsureHost makes what all slots share: the host's rules and the forwarding
// of the uplinks. It is cheap where nothing has changed.
func (f *Fabric) EnsureHost(ctx context.Context) error {
	f.host.Lock()
	defer f.host.Unlock()
	if _, err := f.ensureHost(ctx); err != nil {
		return fmt.Errorf("prepare host for network slots: %w", err)
	}
	return nil
}

// hostReady runs EnsureHost unless it has succeeded before.
func (f *Fabric) hostReady(ctx context.Context) error {
	f.mu.Lock()
	ready := f.ready
	f.mu.Unlock()
	if ready {
		return nil
	}
	return f.EnsureHost(ctx)
}

// Keep runs EnsureHost again and again until ctx ends: rules that someone
// flushed, resolvers and uplinks that changed, forwarding that was switched
// off; and routers of databases and replicas that came or went. What fails is
// logged, and tried again.
func (f *Fabric) Keep(ctx context.Context) error {
	tick := time.NewTicker(f.keepEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		moved := f.lookForRouters(ctx)
		if f.lookForControlPlane(ctx) {
			moved = true
		}
		f.host.Lock()
		f.mu.Lock()
		ready := f.ready // not after Purge
		f.mu.Unlock()
		var changed bool
		var err error
		if ready {
			changed, err = f.ensureHost(ctx)
		}
		f.host.Unlock()
		switch {
		case err != nil && ctx.Err() == nil && !failing:
			f.log.Error("network rules of the host could not be checked", "error", err)
		case changed && !moved:
			f.log.Warn("network rules of the host had changed and were put right")
		}
		failing = err != nil
	}
}

// lookForControlPlane says whether the control plane is elsewhere than before. Slots
// that exist keep their own rules, which are the second of two: the host's, which
// follow at once, are enough to refuse.
func (f *Fabric) lookForControlPlane(ctx context.Context) (moved bool) {
	if f.cfg.FindControlPlane == nil {
		return false
	}
	found := f.cfg.FindControlPlane(ctx)
	if ctx.Err() != nil {
		return false
	}
	f.mu.Lock()
	moved = !slices.Equal(f.controlPlane, found)
	f.controlPlane = found
	f.mu.Unlock()
	if moved {
		f.log.Info("addresses of the control plane that guests may not reach", "addresses", found)
	}
	return moved
}

// ensureHost reports whether it had to repair rules or forwarding. A new share of
// the connections, because a host came or went, is no repair.
func (f *Fabric) ensureHost(ctx context.Context) (changed bool, err error) {
	if err := f.step(ctx, "host"); err != nil {
		return false, err
	}
	if err := f.refuseOverlap(); err != nil {
		return false, err
	}
	resolvers, err := f.resolvers()
	if err != nil {
		return false, err
	}
	uplinks, mtu, err := f.uplinks()
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	first := !f.ready
	if first {
		// Slots keep the size that was found at the first call.
		f.mtu = mtu
	}
	f.mu.Unlock()
	if first && len(uplinks) == 0 {
		f.log.Warn("host has no default route: guests have no internet until it has one")
	}

	stopped := false
	for _, link := range uplinks {
		value, err := forwarding(link)
		if err != nil {
			return false, err
		}
		stopped = stopped || value != "1"
	}
	if first || stopped {
		if err := f.withMachine(func(m *machine) error {
			return errors.Join(m.claimMount(f.cfg.NetNSDir), m.claim(f.cfg.Host, uplinks))
		}); err != nil {
			return false, err
		}
	}
	if stopped && !first {
		// Writing the machine's ip_forward resets every link.
		if err := f.forwardSlots(ctx); err != nil {
			return false, err
		}
	}
	if err := f.step(ctx, "host rules"); err != nil {
		return false, err
	}
	replaced, err := nft.Ensure(f.hostRules(resolvers))
	if err != nil {
		return false, err
	}
	other, err := f.ensureConnections()
	if err != nil {
		return false, err
	}
	if other {
		if _, err := nft.Ensure(f.hostRules(resolvers)); err != nil {
			return false, err
		}
	}
	f.warnForwardDrops()
	f.mu.Lock()
	f.ready = true
	f.mu.Unlock()
	return replaced || stopped && !first, nil
}

func (f *Fabric) hostRules(resolvers []netip.Addr) *nft.Ruleset {
	f.mu.Lock()
	defer f.mu.Unlock()
	return nft.HostRules{
		Table:          f.cfg.hostTable(),
		LinkPrefix:     f.cfg.linkPrefix(),
		SlotCIDR:       f.cfg.CIDR,
		Resolvers:      resolvers,
		Policy:         f.cfg.policy(f.controlPlane),
		Databases:      f.cfg.Databases.hostRules(f.serving),
		MaxConnections: uint32(f.connections),
	}.Ruleset()
}

func (f *Fabric) releaseHost() error {
	return f.withMachine(func(m *machine) error { return m.release(f.cfg.Host) })
}

// refuseOverlap finds another network of the machine in the slots' prefix:
// its traffic would be misrouted silently.
func (f *Fabric) refuseOverlap() error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ones, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), ones)
		if !f.cfg.CIDR.Overlaps(p) {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			continue // gone since
		}
		if !strings.HasPrefix(link.Attrs().Name, f.cfg.linkPrefix()) {
			return fmt.Errorf("slot cidr %s overlaps %s of link %s", f.cfg.CIDR, p, link.Attrs().Name)
		}
	}
	return nil
}

// uplinks returns the links towards the internet and the MTU of the slots.
func (f *Fabric) uplinks() (names []string, mtu int, err error) {
	names = slices.Clone(f.cfg.Uplinks)
	if len(names) == 0 {
		if names, err = defaultRouteLinks(); err != nil {
			return nil, 0, err
		}
	}
	mtu = maxMTU
	for _, name := range names {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, 0, fmt.Errorf("look up uplink %s: %w", name, err)
		}
		mtu = min(mtu, link.Attrs().MTU)
	}
	if f.cfg.MTU != 0 {
		mtu = f.cfg.MTU
	}
	return names, max(mtu, minMTU), nil
}

func defaultRouteLinks() ([]string, error) {
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var names []string
	add := func(index int) error {
		if index == 0 {
			return nil
		}
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return fmt.Errorf("look up the link of a default route: %w", err)
		}
		if name := link.Attrs().Name; !slices.Contains(names, name) {
			names = append(names, name)
		}
		return nil
	}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if r.Type != unix.RTN_UNICAST {
			continue // such as unreachable
		}
		if err := add(r.LinkIndex); err != nil {
			return nil, err
		}
		for _, hop := range r.MultiPath {
			if err := add(hop.LinkIndex); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// warnForwardDrops says once which chains of others may block our guests.
func (f *Fabric) warnForwardDrops() {
	chains, err := nft.ForwardDrops(hostTablePrefix)
	if err != nil {
		f.log.Warn("rules of other programs could not be listed", "error", err)
		return
	}
	// The older iptables keeps its rules where nftables does not see them.
	if data, err := os.ReadFile("/proc/net/ip_tables_names"); err == nil && slices.Contains(strings.Fields(string(data)), "filter") {
		chains = append(chains, "iptables-legacy filter")
	}
	slices.Sort(chains)
	f.mu.Lock()
	known := slices.Equal(chains, f.warns)
	f.warns = chains
	f.mu.Unlock()
	if !known && len(chains) > 0 {
		f.log.Warn("other programs' rules may drop forwarded packets: guests have no internet unless these let our links pass",
			"chains", chains, "links", f.cfg.linkPrefix()+"*")
	}
}

func (f *Fabric) linkMTU() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mtu
}

// forwardSlots lets the host's ends of all slots forward again.
func (f *Fabric) forwardSlots(ctx context.Context) error {
	numbers, err := f.List(ctx)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if err := setForwarding(f.cfg.linkName(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Forwarding is switched on for our own links and the uplinks, not for the
// whole machine: the kernel decides by the link a packet comes in on, and the
// host should not become a router for others.

func forwardingPath(link string) string { return "/proc/sys/net/ipv4/conf/" + link + "/forwarding" }

func forwarding(link string) (string, error) {
	data, err := os.ReadFile(forwardingPath(link))
	if err != nil {
		return "", fmt.Errorf("read forwarding of %s: %w", link, err)
	}
	return strings.TrimSpace(string(data)), nil
}

func setForwarding(link string) error {
	if err := os.WriteFile(forwardingPath(link), []byte("1"), 0o644); err != nil {
		return fmt.Errorf("switch on forwarding of %s: %w", link, err)
	}
	return nil
}
