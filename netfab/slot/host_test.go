package slot

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Two hosts live on one machine in the local stack. The ids are chosen so
// that one begins the other.
func TestTwoHostsOnOneMachine(t *testing.T) {
	open := func(c *Config) { c.AllowedCIDRs = prefixes("10.0.0.0/8") }
	one := newFabric(t, func(c *Config) { c.Host = "h" }, open)
	two := newFabric(t, func(c *Config) {
		c.Host, c.CIDR, c.BaseUID = "h1", prefixes("10.214.0.0/24")[0], 610000
	}, open)
	a, b := newGuest(t, ensure(t, one, 1)), newGuest(t, ensure(t, two, 1))
	guestd(t, a)
	guestd(t, b)
	ensure(t, two, 13)
	wantList(t, one, 1)
	wantList(t, two, 1, 13)
	a.works(t)
	b.works(t)
	for _, port := range []int{999, 8080} {
		a.unreached(t, "guest of the other host", hostPort(b.slot.NSAddr, port))
		b.unreached(t, "guest of the other host", hostPort(a.slot.NSAddr, port))
		a.refused(t, "the other host's link", hostPort(b.slot.HostAddr, port))
		b.refused(t, "the other host's link", hostPort(a.slot.HostAddr, port))
	}
	a.end(t)
	check(t, one.Purge(t.Context()))
	wantList(t, one)
	wantList(t, two, 1, 13)
	b.works(t)
	check(t, roundTrip(t.Context(), two, 1))
	check(t, two.Remove(t.Context(), 13))
	b.works(t)
	b.end(t)
}

func TestTwoHostsStartAndStopAtOnce(t *testing.T) {
	hosts := []*Fabric{
		newFabric(t, func(c *Config) { c.Host = "ha" }),
		newFabric(t, func(c *Config) { c.Host, c.CIDR = "hb", prefixes("10.214.0.0/24")[0] }),
	}
	var wg sync.WaitGroup
	for _, f := range hosts {
		wg.Go(func() {
			for range 4 {
				for n := range 3 {
					if _, err := f.Ensure(t.Context(), n); err != nil {
						t.Error(err)
					}
				}
				if err := f.Purge(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	g := newGuest(t, ensure(t, hosts[0], 0))
	g.works(t)
	g.end(t)
	check(t, hosts[0].Purge(t.Context()))
}

func TestForwardingIsRestoredByTheLastHost(t *testing.T) {
	if v, err := forwarding("eth0"); os.Getenv(innerEnv) != "" && (err != nil || v != "0") {
		t.Fatalf("before: forwarding of eth0 is %q, %v", v, err)
	}
	one := newFabric(t, func(c *Config) { c.Host = "ha" })
	two := newFabric(t, func(c *Config) { c.Host, c.CIDR = "hb", prefixes("10.214.0.0/24")[0] })
	want := func(value string) {
		t.Helper()
		if v, err := forwarding("eth0"); err != nil || v != value {
			t.Errorf("forwarding of eth0 is %q, %v; want %s", v, err, value)
		}
		all, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		if err != nil || strings.TrimSpace(string(all)) != "0" {
			t.Errorf("ip_forward of the machine is %q, %v; want it left alone", all, err)
		}
	}
	check(t, one.EnsureHost(t.Context()))
	check(t, two.EnsureHost(t.Context()))
	check(t, one.EnsureHost(t.Context()))
	want("1")
	check(t, one.Purge(t.Context()))
	want("1")
	check(t, two.Purge(t.Context()))
	want("0")
}

func TestForwardingThatWasOnStaysOn(t *testing.T) {
	needRoot(t)
	check(t, os.WriteFile(forwardingPath("eth0"), []byte("1"), 0o644))
	t.Cleanup(func() { check(t, os.WriteFile(forwardingPath("eth0"), []byte("0"), 0o644)) })
	f := newFabric(t)
	check(t, f.EnsureHost(t.Context()))
	check(t, f.Purge(t.Context()))
	if v, err := forwarding("eth0"); err != nil || v != "1" {
		t.Errorf("forwarding of eth0 is %q, %v; want it as it was", v, err)
	}
}

func TestKeepPutsTheHostRight(t *testing.T) {
	f, log := newLoggedFabric(t)
	f.keepEvery = 10 * time.Millisecond
	g := newGuest(t, ensure(t, f, 0))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Keep(ctx) }()
	restored := func(what string) {
		t.Helper()
		await(t, what, func() bool {
			seen, err := g.get(webAddr + ":80")
			return err == nil && seen == hostUplink
		})
	}
	conn := &nftables.Conn{}
	conn.FlushRuleset()
	check(t, conn.Flush())
	restored("rules are restored after a flush")
	// As sysctl --system does on a machine that sets it to 0: every link is reset.
	check(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644))
	check(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644))
	restored("forwarding is restored")
	// The host's DHCP client writes another resolver.
	check(t, os.WriteFile(resolvConf, []byte("nameserver "+webAddr+"\n"), 0o644))
	defer os.WriteFile(resolvConf, []byte("nameserver "+dnsAddr+"\n"), 0o644)
	await(t, "queries go to the other resolver, where nothing listens", func() bool {
		_, err := g.resolve("udp")
		return errors.Is(err, unix.ECONNREFUSED)
	})
	check(t, os.WriteFile(resolvConf, []byte("nameserver 127.0.0.1\n"), 0o644))
	await(t, "an unusable resolver is logged", func() bool { return strings.Contains(log.String(), "no usable upstream") })
	check(t, os.WriteFile(resolvConf, []byte("nameserver "+dnsAddr+"\n"), 0o644))
	await(t, "queries go to the first resolver again", func() bool {
		seen, err := g.resolve("udp")
		return err == nil && seen == hostUplink
	})
	stop()
	check(t, <-done)
	if !strings.Contains(log.String(), "were put right") {
		t.Errorf("the changes are not logged:\n%s", log)
	}
	g.works(t)
	g.end(t)
}

// A machine that is offline, or whose DNS is IPv6 alone, has its hosts and their
// databases all the same.
func TestHostWithoutAResolver(t *testing.T) {
	f, log := newLoggedFabric(t)
	f.keepEvery = 10 * time.Millisecond
	check(t, os.WriteFile(resolvConf, []byte("nameserver 2001:db8::1\n"), 0o644))
	defer os.WriteFile(resolvConf, []byte("nameserver "+dnsAddr+"\n"), 0o644)
	g := newGuest(t, ensure(t, f, 0))
	if seen, err := g.get(webAddr + ":80"); err != nil || seen != hostUplink {
		t.Errorf("without DNS: %q, %v", seen, err)
	}
	if _, err := g.resolve("tcp"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a question that nobody can answer: %v, want a refusal at once", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Keep(ctx) }()
	conn := &nftables.Conn{}
	conn.FlushRuleset()
	check(t, conn.Flush())
	await(t, "rules are restored after a flush", func() bool {
		seen, err := g.get(webAddr + ":80")
		return err == nil && seen == hostUplink
	})
	check(t, os.WriteFile(resolvConf, []byte("nameserver "+dnsAddr+"\n"), 0o644))
	await(t, "questions are answered when there is a server", func() bool {
		seen, err := g.resolve("udp")
		return err == nil && seen == hostUplink
	})
	// It is gone again, as while a DHCP client writes the file anew.
	check(t, os.WriteFile(resolvConf, nil, 0o644))
	await(t, "that is logged", func() bool { return strings.Count(log.String(), "no usable upstream") == 2 })
	conn.FlushRuleset()
	check(t, conn.Flush())
	await(t, "questions go to the server that was the last", func() bool {
		seen, err := g.resolve("udp")
		return err == nil && seen == hostUplink
	})
	stop()
	check(t, <-done)
	if n := strings.Count(log.String(), "no usable upstream"); n != 2 {
		t.Errorf("it is logged %d times:\n%s", n, log)
	}
	g.end(t)
}

// A replica joins while guests run, at an address that they may reach otherwise.
func TestKeepFollowsTheControlPlane(t *testing.T) {
	var found atomic.Pointer[[]netip.Prefix]
	f := newFabric(t, func(c *Config) {
		c.AllowedCIDRs = prefixes(privateAddrs[0] + "/32")
		found.Store(&c.ControlPlane)
		c.FindControlPlane = func(context.Context) []netip.Prefix { return *found.Load() }
	})
	f.keepEvery = 10 * time.Millisecond
	g := newGuest(t, ensure(t, f, 0))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- f.Keep(ctx) }()
	now := prefixes(controlAddr+"/32", privateAddrs[0]+"/32")
	if _, err := g.get(privateAddrs[0] + ":80"); err != nil {
		t.Errorf("before it joined: %v", err)
	}
	found.Store(&now)
	await(t, "guests are refused", func() bool {
		_, err := g.get(privateAddrs[0] + ":80")
		return errors.Is(err, unix.ECONNREFUSED)
	})
	other := newGuest(t, ensure(t, f, 1))
	other.refused(t, "the new replica", privateAddrs[0]+":80")
	g.refused(t, "the old one", controlAddr+":80")
	other.end(t)
	left := prefixes(controlAddr + "/32")
	found.Store(&left)
	await(t, "it left", func() bool {
		_, err := g.get(privateAddrs[0] + ":80")
		return err == nil
	})
	stop()
	check(t, <-done)
	g.end(t)
}

func TestRulesOfOthersThatBlockAreNamed(t *testing.T) {
	f, log := newLoggedFabric(t)
	policy := nftables.ChainPolicyDrop
	conn := &nftables.Conn{}
	table := conn.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	conn.AddChain(&nftables.Chain{
		Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Policy: &policy,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	check(t, conn.Flush())
	defer func() {
		conn.DelTable(table)
		check(t, conn.Flush())
	}()
	check(t, f.EnsureHost(t.Context()))
	check(t, f.EnsureHost(t.Context()))
	if n := strings.Count(log.String(), "ip filter FORWARD"); n != 1 {
		t.Errorf("the blocking chain is named %d times in the log, want once:\n%s", n, log)
	}
	if tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4); err != nil || len(tables) != 1 {
		t.Errorf("others' tables are now %v, %v", tables, err)
	}
}

func TestOverlappingNetworkIsRefused(t *testing.T) {
	f := newFabric(t, func(c *Config) { c.CIDR = prefixes("192.0.2.0/25")[0] })
	err := f.EnsureHost(t.Context())
	if err == nil || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("slot cidr that holds the uplink's address: %v", err)
	}
}

func TestHostWithoutADefaultRouteIsServedWhenItHasOne(t *testing.T) {
	f, log := newLoggedFabric(t)
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	route := &netlink.Route{Dst: all, Gw: net.ParseIP("192.0.2.1")}
	check(t, netlink.RouteDel(route))
	s := ensure(t, f, 0)
	check(t, netlink.RouteAdd(route))
	if !strings.Contains(log.String(), "no default route") {
		t.Error("nothing in the log about the missing default route")
	}
	check(t, f.EnsureHost(t.Context()))
	g := newGuest(t, s)
	g.works(t)
	g.end(t)
}

func TestServerOnTheHostItselfAnswersDNS(t *testing.T) {
	needRoot(t)
	c, err := net.ListenPacket("udp4", hostUplink+":53")
	check(t, err)
	defer c.Close()
	go echo(c)
	f := newFabric(t, func(c *Config) { c.Resolvers = prefixAddrs(hostUplink) })
	s := ensure(t, f, 0)
	g := newGuest(t, s)
	if seen, err := g.resolve("udp"); err != nil || seen != s.NSAddr.String() {
		t.Errorf("dns server on the host saw %q, %v; want the slot's address", seen, err)
	}
	g.refused(t, "host", hostUplink+":8080")
	g.end(t)
}

func TestQueriesTakeTurnsAmongResolvers(t *testing.T) {
	f := newFabric(t, func(c *Config) { c.Resolvers = prefixAddrs(dnsAddr, "203.0.113.77") })
	g := newGuest(t, ensure(t, f, 0))
	answered := 0
	for range 6 {
		c, err := g.dial("udp", hostPort(GatewayAddr, 53), time.Second)
		check(t, err)
		_ = c.SetDeadline(time.Now().Add(150 * time.Millisecond))
		_, err = c.Write([]byte("query"))
		check(t, err)
		if _, err := c.Read(make([]byte, 100)); err == nil {
			answered++
		}
		c.Close()
	}
	if answered != 3 {
		t.Errorf("%d of 6 queries reached the one live server of two, want 3", answered)
	}
	g.end(t)
}
