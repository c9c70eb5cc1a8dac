package slot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-cloud/berth/netfab/nft"
	"github.com/berth-cloud/berth/netfab/tap"
	"github.com/berth-cloud/berth/timescale"
)

// tapQueue is how many frames wait for a guest that does not read.
const tapQueue = 1000

// Ensure makes slot n, or completes or repairs what there is of it. A slot
// whose guest runs is repaired under it; one that cannot be repaired is built
// anew, or ErrInUse is returned where its tap is open.
func (f *Fabric) Ensure(ctx context.Context, n int) (Slot, error) {
	if err := f.check(n); err != nil {
		return Slot{}, err
	}
	if err := f.hostReady(ctx); err != nil {
		return Slot{}, err
	}
	unlock, err := f.slots.lock(ctx, n)
	if err != nil {
		return Slot{}, err
	}
	defer unlock()

	existed, err := isNetNS(f.nsPath(n))
	if err != nil {
		return Slot{}, fmt.Errorf("ensure slot %d: %w", n, err)
	}
	err = f.assemble(ctx, n)
	if err != nil && existed && ctx.Err() == nil {
		f.log.Warn("network slot could not be repaired and is built anew", "slot", n, "error", err)
		if err = f.refuseInUse(n); err == nil {
			if err = f.remove(ctx, n); err == nil {
				err = f.assemble(ctx, n)
			}
		}
	}
	if err != nil {
		return Slot{}, fmt.Errorf("ensure slot %d: %w", n, err)
	}
	return f.Slot(n), nil
}

// assemble takes every step of making a slot; each finds out by itself what
// is left to do. The rules stand before the first link does, and the link
// to the host comes up last, so that a half-made slot lets nothing through.
func (f *Fabric) assemble(ctx context.Context, n int) error {
	path := f.nsPath(n)
	if err := f.step(ctx, "namespace"); err != nil {
		return err
	}
	there, err := isNetNS(path)
	if err != nil {
		return err
	}
	if !there {
		if err := makeNetNS(path); err != nil {
			return err
		}
	}
	hostLink, err := findLink(f.cfg.linkName(n))
	if err != nil {
		return err
	}
	netns, err := ns.GetNS(path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer netns.Close()

	stale := false
	inside := func(ns.NetNS) error {
		if err := f.assembleInside(ctx, n); err != nil {
			return err
		}
		var err error
		stale, err = f.dropUnpaired(hostLink)
		return err
	}
	if err := netns.Do(inside); err != nil {
		return err
	}
	if stale {
		if err := deleteLink(hostLink); err != nil {
			return err
		}
	}
	if err := netns.Do(func(host ns.NetNS) error { return f.uplink(ctx, n, host) }); err != nil {
		return err
	}
	if err := f.assembleHostSide(ctx, n); err != nil {
		return err
	}
	if err := awaitUp(ctx, f.cfg.linkName(n)); err != nil {
		return err
	}
	return netns.Do(func(ns.NetNS) error { return awaitUp(ctx, uplinkName) })
}

// upTimeout bounds the wait for a link; a kernel at rest takes a millisecond.
var upTimeout = timescale.Limit(5 * time.Second)

// awaitUp waits until the kernel has noticed that the other end of a veth pair
// is up. Until then it drops, silently, what is sent that way: a guest's first
// packets, which come again only after a second.
func awaitUp(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	for wait := 250 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look up %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for %s to come up: %w", name, ctx.Err())
		}
	}
}

// assembleInside makes what is the guest's side of the namespace.
func (f *Fabric) assembleInside(ctx context.Context, n int) error {
	if err := f.step(ctx, "rules"); err != nil {
		return err
	}
	rules := f.slotRules(n)
	for _, table := range []*nft.Ruleset{rules.Ruleset(), rules.ARP()} {
		if _, err := nft.Ensure(table); err != nil {
			return err
		}
	}
	if err := f.step(ctx, "sysctls"); err != nil {
		return err
	}
	if err := writeSysctls(map[string]string{
		"net/ipv6/conf/all/disable_ipv6":     "1",
		"net/ipv6/conf/default/disable_ipv6": "1",
		"net/ipv4/ip_forward":                "1",
		"net/ipv4/conf/all/rp_filter":        "1",
	}); err != nil {
		return err
	}
	if err := f.step(ctx, "tap"); err != nil {
		return err
	}
	link, err := f.tapLink(n)
	if err != nil {
		return err
	}
	// The larger of this value and that for all counts, and 2, which a new
	// namespace may have from the host, would take any sender there is a route to.
	if err := writeSysctls(map[string]string{"net/ipv4/conf/" + TapName + "/rp_filter": "1"}); err != nil {
		return err
	}
	if err := f.step(ctx, "tap address"); err != nil {
		return err
	}
	if err := setLink(link, f.linkMTU(), TapMAC); err != nil {
		return err
	}
	if link.Attrs().TxQLen != tapQueue {
		if err := netlink.LinkSetTxQLen(link, tapQueue); err != nil {
			return fmt.Errorf("set queue length of %s: %w", TapName, err)
		}
	}
	if err := address(link, netip.PrefixFrom(GatewayAddr, linkBits), GuestAddr, GuestMAC); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("look up lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// tapLink returns the guest's tap, making it if it is not there or not the
// slot's user's.
func (f *Fabric) tapLink(n int) (netlink.Link, error) {
	uid := f.cfg.BaseUID + n
	link, err := findLink(TapName)
	if err != nil {
		return nil, err
	}
	if t, ok := link.(*netlink.Tuntap); ok && !t.NonPersist && t.Owner == uint32(uid) && t.Mode == netlink.TUNTAP_MODE_TAP {
		return link, nil
	}
	if err := tap.Create(TapName, uid); err != nil {
		return nil, err
	}
	link, err = netlink.LinkByName(TapName)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", TapName, err)
	}
	return link, nil
}

// dropUnpaired deletes the namespace's uplink if the host's link of the slot
// is not its other end, and says whether the host's link is to go as well: it
// may lead into an older namespace that a process still holds.
func (f *Fabric) dropUnpaired(hostLink netlink.Link) (stale bool, err error) {
	up, err := findLink(uplinkName)
	if err != nil {
		return false, err
	}
	if up != nil && hostLink != nil && up.Type() == "veth" &&
		up.Attrs().ParentIndex == hostLink.Attrs().Index && hostLink.Attrs().ParentIndex == up.Attrs().Index {
		return false, nil
	}
	return hostLink != nil, deleteLink(up)
}

// uplink makes the veth pair, whose other end appears in the host's
// namespace, and the way out through it.
func (f *Fabric) uplink(ctx context.Context, n int, host ns.NetNS) error {
	if err := f.step(ctx, "veth"); err != nil {
		return err
	}
	link, err := findLink(uplinkName)
	if err != nil {
		return err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = uplinkName
		attrs.MTU = f.linkMTU()
		attrs.HardwareAddr = vethMAC(n, false)
		// One queue a direction: one guest with one queue pair is behind it.
		attrs.NumTxQueues, attrs.NumRxQueues = 1, 1
		veth := netlink.NewVeth(attrs)
		veth.PeerName = f.cfg.linkName(n)
		veth.PeerHardwareAddr = vethMAC(n, true)
		veth.PeerNamespace = netlink.NsFd(host.Fd())
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make veth pair %s: %w", veth.PeerName, err)
		}
		if link, err = netlink.LinkByName(uplinkName); err != nil {
			return fmt.Errorf("look up %s: %w", uplinkName, err)
		}
	}
	if err := f.step(ctx, "uplink address"); err != nil {
		return err
	}
	if err := setLink(link, f.linkMTU(), vethMAC(n, false)); err != nil {
		return err
	}
	hostAddr := f.cfg.hostAddr(n)
	if err := address(link, netip.PrefixFrom(f.cfg.nsAddr(n), 31), hostAddr, vethMAC(n, true)); err != nil {
		return err
	}
	if err := f.step(ctx, "route"); err != nil {
		return err
	}
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index,
		Dst:       &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)},
		Gw:        hostAddr.AsSlice(),
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("set default route of the namespace: %w", err)
	}
	return shape(link, f.cfg.EgressBits)
}

// assembleHostSide makes the host's end of the veth pair.
func (f *Fabric) assembleHostSide(ctx context.Context, n int) error {
	if err := f.step(ctx, "host link"); err != nil {
		return err
	}
	name := f.cfg.linkName(n)
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("look up %s: %w", name, err)
	}
	if err := setForwarding(name); err != nil {
		return err
	}
	if err := writeSysctls(map[string]string{
		"net/ipv6/conf/" + name + "/disable_ipv6":   "1",
		"net/ipv4/conf/" + name + "/route_localnet": f.cfg.Databases.onLoopback(),
	}); err != nil {
		return err
	}
	if err := setLink(link, f.linkMTU(), vethMAC(n, true)); err != nil {
		return err
	}
	if err := shape(link, f.cfg.IngressBits); err != nil {
		return err
	}
	if err := f.step(ctx, "host address"); err != nil {
		return err
	}
	return address(link, netip.PrefixFrom(f.cfg.hostAddr(n), 31), f.cfg.nsAddr(n), vethMAC(n, false))
}

func (f *Fabric) slotRules(n int) nft.SlotRules {
	f.mu.Lock()
	controlPlane := f.controlPlane
	f.mu.Unlock()
	return nft.SlotRules{
		Table:          slotTable,
		Tap:            TapName,
		Uplink:         uplinkName,
		GuestMAC:       GuestMAC,
		GuestAddr:      GuestAddr,
		Gateway:        GatewayAddr,
		NSAddr:         f.cfg.nsAddr(n),
		HostAddr:       f.cfg.hostAddr(n),
		Policy:         f.cfg.policy(controlPlane),
		Databases:      f.cfg.Databases.slotRules(),
		MaxConnections: uint32(f.cfg.MaxConnections),
	}
}

// setLink gives a link its MTU and hardware address where they differ.
func setLink(link netlink.Link, mtu int, mac net.HardwareAddr) error {
	attrs := link.Attrs()
	if attrs.MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set mtu of %s to %d: %w", attrs.Name, mtu, err)
		}
	}
	if attrs.HardwareAddr.String() != mac.String() {
		if err := netlink.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("set address of %s to %s: %w", attrs.Name, mac, err)
		}
	}
	return nil
}

// address gives a link its address, sets it up, and pins the one neighbour
// there can be: asking for it by ARP costs a second when the first request
// is lost.
func address(link netlink.Link, own netip.Prefix, peer netip.Addr, peerMAC net.HardwareAddr) error {
	name := link.Attrs().Name
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: own.Addr().AsSlice(), Mask: net.CIDRMask(own.Bits(), 32)}}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("add address %s to %s: %w", own, name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	neigh := &netlink.Neigh{
		LinkIndex:    link.Attrs().Index,
		Family:       netlink.FAMILY_V4,
		State:        netlink.NUD_PERMANENT,
		IP:           peer.AsSlice(),
		HardwareAddr: peerMAC,
	}
	if err := netlink.NeighSet(neigh); err != nil {
		return fmt.Errorf("pin neighbour %s of %s: %w", peer, name, err)
	}
	return nil
}

// writeSysctls sets kernel parameters of the calling thread's namespace, by
// path under /proc/sys. One whose feature the kernel lacks is left out.
func writeSysctls(values map[string]string) error {
	for path, value := range values {
		err := os.WriteFile("/proc/sys/"+path, []byte(value), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set kernel parameter: %w", err)
		}
	}
	return nil
}
