package slot

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestGuestHasInternetAndDNSByNAT(t *testing.T) {
	f := newFabric(t)
	newGuest(t, ensure(t, f, 0)).works(t)
	newGuest(t, ensure(t, f, 3)).works(t)
}

func TestGuestReachesNothingElse(t *testing.T) {
	f := newFabric(t)
	a, b := ensure(t, f, 0), ensure(t, f, 1)
	g, other := newGuest(t, a), newGuest(t, b)

	// Listeners that would answer if a packet got through to them.
	var gateway, guestd net.Listener
	check(t, ns.WithNetNSPath(a.NetNSPath, func(ns.NetNS) (err error) {
		gateway, err = net.Listen("tcp4", ":999")
		return err
	}))
	check(t, other.ns.Do(func(ns.NetNS) (err error) {
		guestd, err = net.Listen("tcp4", ":999")
		return err
	}))
	for _, l := range []net.Listener{gateway, guestd} {
		go serve(l)
		defer l.Close()
	}

	g.refused(t, "gateway", hostPort(GatewayAddr, 999))
	g.refused(t, "own slot address", hostPort(a.NSAddr, 999))
	g.refused(t, "host by its uplink", hostUplink+":8080")
	g.refused(t, "host by the slot's link", hostPort(a.HostAddr, 8080))
	g.refused(t, "dns of the host's link, not of the gateway", hostPort(a.HostAddr, 53))
	g.refused(t, "dns server directly", dnsAddr+":53")
	g.refused(t, "another slot", hostPort(b.NSAddr, 999))
	g.refused(t, "host by another slot's link", hostPort(b.HostAddr, 8080))
	g.refused(t, "metadata", metadataAddr+":80")
	g.refused(t, "control plane", controlAddr+":80")
	for _, addr := range privateAddrs {
		g.refused(t, "private range", addr+":80")
	}
	for _, addr := range []string{hostPort(GatewayAddr, 123), hostPort(b.NSAddr, 123), "10.99.0.1:123"} {
		if _, err := g.ask(addr, "x"); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("udp to %s: %v; want it refused by ICMP", addr, err)
		}
	}
	g.works(t)
}

func TestNobodyReachesTheGuestButItsHost(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	var guestd net.Listener
	check(t, g.ns.Do(func(ns.NetNS) (err error) {
		guestd, err = net.Listen("tcp4", ":999")
		return err
	}))
	defer guestd.Close()
	go serve(guestd)

	c, err := f.Dial(t.Context(), 0, 999)
	check(t, err)
	defer c.Close()
	buf := make([]byte, 100)
	n, _ := c.Read(buf)
	if got := string(buf[:n]); got != GatewayAddr.String()+"\n" {
		t.Errorf("guest saw its host as %q, want the gateway", got)
	}
	if c, err := net.DialTimeout("tcp", hostPort(s.NSAddr, 999), 300*time.Millisecond); err == nil {
		c.Close()
		t.Error("a process of the host reached the guest from outside of its namespace")
	}
	// A machine on the uplink that knows the host as a router.
	_, cidr, _ := net.ParseCIDR(testCIDR.String())
	route := &netlink.Route{Dst: cidr, Gw: net.ParseIP(hostUplink)}
	check(t, internet.Do(func(ns.NetNS) error {
		if err := netlink.RouteAdd(route); err != nil {
			return err
		}
		defer netlink.RouteDel(route)
		if c, err := net.DialTimeout("tcp", hostPort(s.NSAddr, 999), 300*time.Millisecond); err == nil {
			c.Close()
			t.Error("another machine reached the guest")
		}
		return nil
	}))
}

func TestSpoofedFramesAreDropped(t *testing.T) {
	f := newFabric(t)
	g := newGuest(t, ensure(t, f, 0))
	otherMAC := net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}
	for text, b := range map[string][]byte{
		"spoofed: address":          frame(GuestMAC, netip.MustParseAddr("198.18.0.3"), "spoofed: address"),
		"spoofed: public address":   frame(GuestMAC, netip.MustParseAddr("203.0.113.50"), "spoofed: public address"),
		"spoofed: slot's address":   frame(GuestMAC, g.slot.NSAddr, "spoofed: slot's address"),
		"spoofed: gateway's":        frame(GuestMAC, GatewayAddr, "spoofed: gateway's"),
		"spoofed: hardware address": frame(otherMAC, GuestAddr, "spoofed: hardware address"),
	} {
		if _, err := g.wire.Write(b); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	// Sent last: once it is there, the others would be.
	_, err := g.wire.Write(frame(GuestMAC, GuestAddr, "honest"))
	check(t, err)
	await(t, "the honest datagram arrives", func() bool { _, ok := heard.Load("honest"); return ok })
	heard.Range(func(text, from any) bool {
		if len(text.(string)) > 7 && text.(string)[:7] == "spoofed" {
			t.Errorf("%q got out as %v", text, from)
		}
		return true
	})
	heard.Clear()
}

// The kernel has one neighbour table for all namespaces, and a full one takes
// the whole machine off its network. Either guard suffices.
func TestForgedARPLeavesNoNeighbour(t *testing.T) {
	flush := func() error {
		conn := &nftables.Conn{}
		conn.FlushRuleset()
		return conn.Flush()
	}
	loose := func() error { // as a host's own setting is passed on to new namespaces
		return writeSysctls(map[string]string{"net/ipv4/conf/all/rp_filter": "2", "net/ipv4/conf/" + TapName + "/rp_filter": "2"})
	}
	onLink := netip.PrefixFrom(GatewayAddr, linkBits).Masked()
	for name, c := range map[string]struct {
		weaken func() error
		again  bool // Ensure is called once more
		bare   bool // what is left takes any address of the link
	}{
		"as made":                     {weaken: func() error { return nil }},
		"without rules":               {weaken: flush, bare: true},
		"without reverse path filter": {weaken: loose},
		"of an earlier version":       {weaken: func() error { return errors.Join(flush(), loose()) }, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			s := ensure(t, f, 0)
			g := newGuest(t, s)
			check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error { return c.weaken() }))
			if c.again {
				ensure(t, f, 0)
			}
			for i := range 50 {
				forged := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
				mac := net.HardwareAddr{0x52, 0x54, 0, 1, 2, byte(i)}
				for _, b := range [][]byte{
					arpFrame(1, mac, forged), arpFrame(2, mac, forged), arpFrame(1, GuestMAC, forged),
					arpFrame(1, mac, netip.AddrFrom4([4]byte{198, 18, 0, byte(i)})), neighbourSolicitation(mac),
				} {
					_, err := g.wire.Write(b)
					check(t, err)
				}
			}
			g.resolvesGateway(t) // after all those before it
			check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error {
				link, err := netlink.LinkByName(TapName)
				if err != nil {
					return err
				}
				for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
					neighs, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, family) })
					if err != nil {
						return err
					}
					for _, n := range neighs {
						ip, _ := netip.AddrFromSlice(n.IP)
						if n.State&netlink.NUD_NOARP == 0 && ip != GuestAddr && !(c.bare && onLink.Contains(ip)) {
							t.Errorf("forged neighbour %v is in the kernel's table", n)
						}
					}
				}
				return nil
			}))
			if !c.bare {
				g.works(t)
			}
		})
	}
}

func TestNoIPv6(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	check(t, g.ns.Do(func(ns.NetNS) error {
		if err := addAddr("eth0", "fd00:1::2/64"); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		gateway := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP("fd00:1::1"), HardwareAddr: TapMAC,
		}
		if err := netlink.NeighSet(gateway); err != nil {
			return err
		}
		_, all, _ := net.ParseCIDR("::/0")
		return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: net.ParseIP("fd00:1::1")})
	}))
	// Even if someone switches it on in the namespace.
	check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error {
		if v, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6"); err != nil || string(v) != "1\n" {
			t.Errorf("disable_ipv6 in the namespace is %q, %v", v, err)
		}
		if err := writeSysctls(map[string]string{"net/ipv6/conf/all/disable_ipv6": "0"}); err != nil {
			return err
		}
		if err := addAddr(TapName, "fd00:1::1/64"); err != nil {
			return err
		}
		l, err := net.Listen("tcp6", "[::]:999")
		if err == nil {
			go serve(l)
			t.Cleanup(func() { l.Close() })
		}
		return err
	}))
	g.unreached(t, "gateway by IPv6", "[fd00:1::1]:999")
	g.unreached(t, "internet by IPv6", "[2001:db8::1]:80")
}

func TestPolicyIsConfigurable(t *testing.T) {
	f := newFabric(t, func(c *Config) {
		c.AllowedCIDRs = prefixes("10.99.0.0/16", "169.254.0.0/16", "10.213.0.0/16", controlAddr+"/32")
		c.DeniedCIDRs = append(prefixes(webAddr+"/32"), DefaultDenied...)
	})
	a, b := ensure(t, f, 0), ensure(t, f, 1)
	g := newGuest(t, a)
	if seen, err := g.get("10.99.0.1:80"); err != nil || seen != hostUplink {
		t.Errorf("allowed private address: saw %q, %v", seen, err)
	}
	g.refused(t, "denied public address", webAddr+":80")
	g.refused(t, "private address that is not allowed", "192.168.77.1:80")
	g.refused(t, "metadata, though allowed", metadataAddr+":80")
	g.refused(t, "control plane, though allowed", controlAddr+":80")
	g.refused(t, "another slot, though allowed", hostPort(b.NSAddr, 999))
	g.refused(t, "host, though allowed", hostPort(b.HostAddr, 8080))
}

func TestPublishedPortsOfTheHostAreItsServices(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	// What a container engine does for "publish port 8081": the destination
	// becomes one that the guest might reach by itself.
	conn := &nftables.Conn{}
	table := conn.AddTable(&nftables.Table{Name: "engine", Family: nftables.TableFamilyIPv4})
	chain := conn.AddChain(&nftables.Chain{
		Name: "PREROUTING", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	for _, rule := range publishRules(webAddr) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
	}
	check(t, conn.Flush())
	defer func() {
		conn.DelTable(table)
		check(t, conn.Flush())
	}()
	g := newGuest(t, s)
	g.refused(t, "published port", hostUplink+":8081")
	// Port 53 is published as well, and must not take the guests' queries.
	g.works(t)
}

func TestConnectionsOfOneGuestAreBounded(t *testing.T) {
	f := newFabric(t, func(c *Config) { c.MaxConnections = 20 })
	g := newGuest(t, ensure(t, f, 0))
	ok := 0
	for range 30 {
		if _, err := g.ask(webAddr+":123", "x"); err == nil {
			ok++
		}
	}
	// The kernel's count may miss a flow or two that it is still confirming.
	if ok < 10 || ok > 25 {
		t.Errorf("%d of 30 flows were let through, want about 20", ok)
	}
}

// A slot's own rules do not count what does not come from its guest.
func TestConnectionsOfOneSlotAreBoundedByTheHost(t *testing.T) {
	f := newFabric(t, func(c *Config) { c.MaxConnections = 20 })
	a, b := ensure(t, f, 0), ensure(t, f, 1)
	open := func(s Slot, addr string) (made int) {
		check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) error {
			for range 30 {
				c, err := net.DialTimeout("tcp4", addr, 10*time.Second)
				switch {
				case err == nil:
					t.Cleanup(func() { c.Close() })
					made++
				case !errors.Is(err, unix.ECONNREFUSED):
					return err
				}
			}
			return nil
		}))
		return made
	}
	for _, s := range []Slot{a, b} { // the one takes nothing from the other
		if n := open(s, webAddr+":80"); n < 15 || n > 25 {
			t.Errorf("%d of 30 connections of slot %d were let through, want about 20", n, s.Number)
		}
		if n := open(s, hostPort(s.HostAddr, 53)); n > 5 {
			t.Errorf("%d of 30 to the DNS server were let through after that, want none", n)
		}
	}
}

func TestVMMHasNoSocketOfItsOwn(t *testing.T) {
	f := newFabric(t)
	s := ensure(t, f, 0)
	var inside net.Listener
	check(t, ns.WithNetNSPath(s.NetNSPath, func(ns.NetNS) (err error) {
		inside, err = net.Listen("tcp4", "127.0.0.1:999")
		return err
	}))
	defer inside.Close()
	go serve(inside)
	said, kill := launchVMM(t, s, webAddr+":80", hostPort(s.HostAddr, 53), "127.0.0.1:999")
	kill()
	if want := fmt.Sprintf("%s:80: true; %s: true; 127.0.0.1:999: true;", webAddr, hostPort(s.HostAddr, 53)); said != want {
		t.Errorf("refused to the slot's user: %s\nwant: %s", said, want)
	}
	newGuest(t, s).works(t)
}

func TestSegmentsFitTheUplink(t *testing.T) {
	f := newFabric(t, func(c *Config) { c.MTU = 1400 })
	s := ensure(t, f, 0)
	if s.MTU != 1400 {
		t.Errorf("slot says MTU %d, want 1400", s.MTU)
	}
	g := newGuest(t, s) // which still has an MTU of 1500 inside
	c, err := g.dial("tcp", webAddr+":80", time.Second)
	check(t, err)
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	check(t, err)
	check(t, raw.Control(func(fd uintptr) {
		mss, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
		if err != nil || mss > 1360 {
			t.Errorf("guest sends segments of %d bytes, %v; want at most 1360", mss, err)
		}
	}))
}

func TestFlushedHostRulesLeaveTheSlotsClosed(t *testing.T) {
	f := newFabric(t)
	a, b := ensure(t, f, 0), ensure(t, f, 1)
	g := newGuest(t, a)
	conn := &nftables.Conn{}
	conn.FlushRuleset()
	check(t, conn.Flush())
	g.refused(t, "another slot", hostPort(b.NSAddr, 999))
	g.refused(t, "host by the slot's link", hostPort(a.HostAddr, 8080))
	g.refused(t, "private range", "10.99.0.1:80")
	g.refused(t, "metadata", metadataAddr+":80")
	check(t, f.EnsureHost(t.Context()))
	g.works(t)
	g.refused(t, "host by its uplink", hostUplink+":8080")
}
