package slot

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/netfab/nft"
)

// tracked replaces the machine's bound on connections by a file.
func tracked(t *testing.T, value int) (get func() int) {
	t.Helper()
	needRoot(t)
	old := conntrackMax
	conntrackMax = t.TempDir() + "/nf_conntrack_max"
	t.Cleanup(func() { conntrackMax = old })
	check(t, os.WriteFile(conntrackMax, []byte(fmt.Sprintln(value)), 0o600))
	return func() int {
		n, err := readConntrackMax()
		check(t, err)
		return n
	}
}

func TestTableHoldsWhatAllSlotsMayHave(t *testing.T) {
	get := tracked(t, 262144)
	one := newFabric(t, func(c *Config) { c.Count = 32 })
	two := newFabric(t, func(c *Config) {
		c.Host, c.CIDR, c.Count, c.MaxConnections = "h2", prefixes("10.214.0.0/24")[0], 10, 1000
	})
	want := func(when string, n int) {
		t.Helper()
		if got := get(); got != n {
			t.Errorf("%s: the table has room for %d connections, want %d", when, got, n)
		}
	}
	all := 32*DefaultMaxConnections + reservedConnections
	check(t, one.EnsureHost(t.Context()))
	want("one host", all)
	check(t, two.EnsureHost(t.Context()))
	want("two hosts", all+10*1000)
	check(t, os.WriteFile(conntrackMax, []byte("65536"), 0o600)) // as sysctl --system might
	check(t, one.EnsureHost(t.Context()))
	want("after someone lowered it", all+10*1000)
	check(t, os.WriteFile(conntrackMax, []byte("9000000"), 0o600))
	check(t, two.EnsureHost(t.Context()))
	want("after someone raised it", 9000000)
	check(t, os.WriteFile(conntrackMax, []byte(strconv.Itoa(all+10*1000)), 0o600))
	check(t, one.Purge(t.Context()))
	want("after one host left", all+10*1000)
	check(t, two.Purge(t.Context()))
	want("after both left", 262144)
}

func TestBoundWithoutEndStays(t *testing.T) {
	get := tracked(t, 0)
	f := newFabric(t)
	check(t, f.EnsureHost(t.Context()))
	if get() != 0 || f.connections != DefaultMaxConnections {
		t.Errorf("nf_conntrack_max is %d, and a guest may have %d connections", get(), f.connections)
	}
}

// A thousand slots are the default, of which a small machine runs few at once.
func TestGuestsHaveEnoughOfASmallTable(t *testing.T) {
	const all = 1001 * DefaultMaxConnections
	for _, c := range []struct{ each, sum, limit, want int }{
		{DefaultMaxConnections, all, 0, DefaultMaxConnections},
		{DefaultMaxConnections, all, all + reservedConnections, DefaultMaxConnections},
		{DefaultMaxConnections, all, 3151048, 3082},
		{DefaultMaxConnections, all, 262144, leastConnections},
		{DefaultMaxConnections, all, 65536, leastConnections},
		{DefaultMaxConnections, all, 4096, 128},
		{100, 1001 * 100, 65536, 100},
		{DefaultMaxConnections, all, 1, 1},
	} {
		if got := share(c.each, c.sum, c.limit); got != c.want {
			t.Errorf("of %d, and %d for all, a table of %d has %d for a guest, want %d", c.each, c.sum, c.limit, got, c.want)
		}
	}
}

// The bound of this test's own network namespace cannot be set.
func TestGuestsShareWhatTheTableHas(t *testing.T) {
	needRoot(t)
	limit, err := readConntrackMax()
	check(t, err)
	f, log := newLoggedFabric(t, func(c *Config) { c.Count, c.MaxConnections = 16, limit })
	check(t, f.EnsureHost(t.Context()))
	if sum := f.connections * f.cfg.Count; sum > limit || sum < limit/4 {
		t.Errorf("%d slots with %d connections each, and the table has %d", f.cfg.Count, f.connections, limit)
	}
	if there, err := nft.Present(f.hostRules(prefixAddrs(dnsAddr))); err != nil || !there {
		t.Errorf("the host's table is not the one for %d connections: %v", f.connections, err)
	}
	check(t, f.EnsureHost(t.Context()))
	if n := strings.Count(log.String(), "gets a part of it"); n != 1 {
		t.Errorf("the log says %d times that guests have less, want once:\n%s", n, log)
	}
}

// One that was there alone gives way to another.
func TestGuestsOfAllHostsShareWhatTheTableHas(t *testing.T) {
	needRoot(t)
	limit, err := readConntrackMax()
	check(t, err)
	one := newFabric(t, func(c *Config) { c.Count, c.MaxConnections = 16, limit })
	two := newFabric(t, func(c *Config) {
		c.Host, c.CIDR, c.Count, c.MaxConnections = "h2", prefixes("10.214.0.0/24")[0], 16, limit
	})
	check(t, one.EnsureHost(t.Context()))
	alone := one.connections
	check(t, two.EnsureHost(t.Context()))
	check(t, one.EnsureHost(t.Context()))
	if sum := one.connections*one.cfg.Count + two.connections*two.cfg.Count; sum > limit {
		t.Errorf("%d and %d slots with %d and %d connections each, and the table has %d",
			one.cfg.Count, two.cfg.Count, one.connections, two.connections, limit)
	}
	check(t, two.Purge(t.Context()))
	check(t, one.EnsureHost(t.Context()))
	if one.connections != alone {
		t.Errorf("after the other host left, a guest may have %d connections, want %d", one.connections, alone)
	}
	check(t, one.Purge(t.Context()))
}
