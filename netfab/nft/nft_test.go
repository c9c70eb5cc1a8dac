package nft

import (
	"encoding/binary"
	"math"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-cloud/berth/tier"
)

func prefixes(texts ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		ps[i] = netip.MustParsePrefix(t)
	}
	return ps
}

var routers = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.9:5432"), netip.MustParseAddrPort("10.0.0.9:5433")}

func hostRules() HostRules {
	return HostRules{
		Table: "berth_t", LinkPrefix: "bt-", SlotCIDR: netip.MustParsePrefix("10.213.0.0/18"),
		Resolvers: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("9.9.9.9")},
		Policy: Policy{
			Never:   prefixes("169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32"),
			Allowed: prefixes("10.1.0.0/16", "10.1.2.0/24"),
			Denied:  prefixes("10.0.0.0/8", "10.0.0.0/9", "fd00::/8"),
		},
	}
}

func slotRules() SlotRules {
	return SlotRules{
		Table: "berth", Tap: "tap0", Uplink: "up0",
		GuestMAC:  net.HardwareAddr{2, 0, 0, 0, 0, 2},
		GuestAddr: netip.MustParseAddr("198.18.0.2"), Gateway: netip.MustParseAddr("198.18.0.1"),
		NSAddr: netip.MustParseAddr("10.213.0.1"), HostAddr: netip.MustParseAddr("10.213.0.0"),
		Policy: hostRules().Policy, MaxConnections: 100,
	}
}

func TestMergedRangesHoldTheSameAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ps []netip.Prefix
		for range rapid.IntRange(0, 12).Draw(t, "count") {
			// Few distinct high bits make overlaps and neighbours likely.
			addr := rapid.SampledFrom([]uint32{0, 0x0a000000, 0x0a800000, 0xfe000000, 0xffffff00}).Draw(t, "base")
			addr += rapid.Uint32Range(0, 255).Draw(t, "low")
			b := binary.BigEndian.AppendUint32(nil, addr)
			a, _ := netip.AddrFromSlice(b)
			ps = append(ps, netip.PrefixFrom(a, rapid.IntRange(0, 32).Draw(t, "bits")))
		}
		merged := mergeRanges(ps)
		for i, r := range merged {
			if r.first > r.last {
				t.Fatalf("range %v is backwards", r)
			}
			if i > 0 && (merged[i-1].last == math.MaxUint32 || merged[i-1].last+1 >= r.first) {
				t.Fatalf("ranges %v and %v are not apart", merged[i-1], r)
			}
		}
		probe := []uint32{0, 1, math.MaxUint32, rapid.Uint32().Draw(t, "probe")}
		for _, r := range merged {
			probe = append(probe, r.first, r.first-1, r.last, r.last+1)
		}
		for _, v := range probe {
			a, _ := netip.AddrFromSlice(binary.BigEndian.AppendUint32(nil, v))
			want := slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Masked().Contains(a) })
			got := slices.ContainsFunc(merged, func(r addrRange) bool { return r.first <= v && v <= r.last })
			if got != want {
				t.Fatalf("%s: in the prefixes %v, in the ranges %v", a, want, got)
			}
		}
	})
}

func TestIPv6AndMappedPrefixes(t *testing.T) {
	got := mergeRanges([]netip.Prefix{
		netip.MustParsePrefix("fd00::/8"), {}, netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	})
	if want := []addrRange{{0x0a000000, 0x0affffff}}; !slices.Equal(got, want) {
		t.Errorf("ranges %v, want %v", got, want)
	}
}

func TestFingerprintChangesWithEveryField(t *testing.T) {
	seen := map[string]string{hostRules().Ruleset().Fingerprint(): "as it was"}
	if f := hostRules().Ruleset().Fingerprint(); seen[f] == "" {
		t.Error("the same rules have two fingerprints")
	}
	for name, change := range map[string]func(*HostRules){
		"table":         func(h *HostRules) { h.Table = "berth_u" },
		"links":         func(h *HostRules) { h.LinkPrefix = "bu-" },
		"cidr":          func(h *HostRules) { h.SlotCIDR = netip.MustParsePrefix("10.213.0.0/19") },
		"resolver":      func(h *HostRules) { h.Resolvers[1] = netip.MustParseAddr("10.0.0.4") },
		"fewer servers": func(h *HostRules) { h.Resolvers = h.Resolvers[:2] },
		"never":         func(h *HostRules) { h.Policy.Never = h.Policy.Never[1:] },
		"allowed":       func(h *HostRules) { h.Policy.Allowed = nil },
		"denied":        func(h *HostRules) { h.Policy.Denied = prefixes("10.0.0.0/7") },
		"router":        func(h *HostRules) { h.Databases.Routers = routers[:1] },
		"router's port": func(h *HostRules) { h.Databases.Routers = routers[1:2] },
		"serving":       func(h *HostRules) { h.Databases.Port, h.Databases.Serving = 5432, routers[:1] },
		"more serving":  func(h *HostRules) { h.Databases.Port, h.Databases.Serving = 5432, routers },
		"gateway port":  func(h *HostRules) { h.Databases.Port, h.Databases.Serving = 5433, routers },
	} {
		h := hostRules()
		change(&h)
		f := h.Ruleset().Fingerprint()
		if other, ok := seen[f]; ok {
			t.Errorf("%s: the fingerprint is that of %s", name, other)
		}
		seen[f] = name
	}
	for name, change := range map[string]func(*SlotRules){
		"as it was":   func(*SlotRules) {},
		"mac":         func(s *SlotRules) { s.GuestMAC = net.HardwareAddr{2, 0, 0, 0, 0, 3} },
		"address":     func(s *SlotRules) { s.NSAddr = netip.MustParseAddr("10.213.0.3") },
		"tap":         func(s *SlotRules) { s.Tap = "tap1" },
		"connections": func(s *SlotRules) { s.MaxConnections = 101 },
		"router":      func(s *SlotRules) { s.Databases.Routers = routers[:1] },
		"gateway":     func(s *SlotRules) { s.Databases.Port = 5432 },
		"bounded":     func(s *SlotRules) { s.Databases = Databases{Port: 5432, MaxConnections: 10} },
		"domain":      func(s *SlotRules) { s.Databases.Domain = "db.example.com" },
		"longer one":  func(s *SlotRules) { s.Databases.Domain = "db.example.company" },
	} {
		s := slotRules()
		change(&s)
		f := s.Ruleset().Fingerprint()
		if other, ok := seen[f]; ok {
			t.Errorf("slot, %s: the fingerprint is that of %s", name, other)
		}
		seen[f] = "slot, " + name
	}
}

// inNetNS runs the test on a thread in a network namespace of its own, which
// ends with the thread.
func inNetNS(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	tier.Root(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		test(t)
	}()
	<-done
}

func TestKernelTakesTheRulesOnceAndLetsGo(t *testing.T) {
	inNetNS(t, func(t *testing.T) {
		other := (&nftables.Conn{})
		other.AddTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyINet})
		if err := other.Flush(); err != nil {
			t.Error(err)
			return
		}
		bare := hostRules()
		bare.Table, bare.Resolvers, bare.Policy = "berth_bare", nil, Policy{}
		changed := hostRules()
		changed.Policy.Denied = prefixes("0.0.0.0/0")
		for _, r := range []*Ruleset{
			hostRules().Ruleset(), slotRules().Ruleset(), slotRules().ARP(), bare.Ruleset(), changed.Ruleset(), hostRules().Ruleset(),
		} {
			for i, want := range []bool{true, false} {
				if got, err := Ensure(r); err != nil || got != want {
					t.Errorf("table %s, call %d: changed %v, %v", r.Table, i+1, got, err)
				}
			}
		}
		for _, name := range []string{"berth_t", "berth", "berth_bare", "berth_never_was"} {
			if err := Delete(name); err != nil {
				t.Error(err)
			}
		}
		other.DelTable(&nftables.Table{Name: "berth", Family: nftables.TableFamilyARP})
		if err := other.Flush(); err != nil {
			t.Errorf("the slot's table for ARP: %v", err)
		}
		tables, err := other.ListTables()
		if err != nil || len(tables) != 1 || tables[0].Name != "filter" {
			t.Errorf("left are %v, %v; want only the table of others", tables, err)
		}
	})
}

func TestForwardDropsNamesOthersOnly(t *testing.T) {
	inNetNS(t, func(t *testing.T) {
		dropped := nftables.ChainPolicyDrop
		conn := &nftables.Conn{}
		for _, table := range []*nftables.Table{
			{Name: "filter", Family: nftables.TableFamilyIPv4},
			{Name: "berth_x", Family: nftables.TableFamilyINet},
			{Name: "six", Family: nftables.TableFamilyIPv6},
		} {
			conn.AddTable(table)
			conn.AddChain(&nftables.Chain{
				Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Policy: &dropped,
				Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
			})
		}
		if err := conn.Flush(); err != nil {
			t.Error(err)
			return
		}
		got, err := ForwardDrops("berth_")
		if want := []string{"ip filter FORWARD"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("ForwardDrops is %v, %v; want %v", got, err, want)
		}
	})
}
