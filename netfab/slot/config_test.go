package slot

import (
	"errors"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixAddrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for i, t := range texts {
		out[i] = netip.MustParseAddr(t)
	}
	return out
}

// The file by which packages tell systemd-networkd what it leaves alone has to match the
// names of links, and little else.
func TestSystemdLeavesLinksAlone(t *testing.T) {
	raw, err := os.ReadFile("../../scripts/systemd/berth.network")
	if err != nil {
		t.Fatal(err)
	}
	pattern := ""
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(line, "Name="); ok {
			pattern = strings.TrimSpace(name)
		}
	}
	for name, want := range map[string]bool{
		Config{Host: "h1"}.linkName(0): true, Config{Host: "abcdefgh"}.linkName(4095): true, "br-lan": false, "bond0": false, "eth0": false,
	} {
		if got, err := path.Match(pattern, name); err != nil || got != want {
			t.Errorf("%q matches %s: %v, %v", pattern, name, got, err)
		}
	}
}

func TestBadConfigIsRefused(t *testing.T) {
	good := Config{Host: "h1", CIDR: testCIDR}
	if _, err := good.withDefaults(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no host":               func(c *Config) { c.Host = "" },
		"host too long":         func(c *Config) { c.Host = "abcdefghi" },
		"host with a dash":      func(c *Config) { c.Host = "a-b" },
		"host with a slash":     func(c *Config) { c.Host = "../a" },
		"host with a newline":   func(c *Config) { c.Host = "a\n" },
		"host in capitals":      func(c *Config) { c.Host = "A" },
		"no cidr":               func(c *Config) { c.CIDR = netip.Prefix{} },
		"cidr of IPv6":          func(c *Config) { c.CIDR = netip.MustParsePrefix("fd00::/64") },
		"cidr of one address":   func(c *Config) { c.CIDR = netip.MustParsePrefix("10.0.0.1/32") },
		"cidr with the guests":  func(c *Config) { c.CIDR = netip.MustParsePrefix("198.18.0.0/16") },
		"more slots than fit":   func(c *Config) { c.Count = 129 },
		"negative count":        func(c *Config) { c.Count = -1 },
		"a system user":         func(c *Config) { c.BaseUID = 33 },
		"mtu too small":         func(c *Config) { c.MTU = 500 },
		"mtu too big":           func(c *Config) { c.MTU = 9000 },
		"loopback resolver":     func(c *Config) { c.Resolvers = prefixAddrs("127.0.0.53") },
		"IPv6 resolver":         func(c *Config) { c.FallbackResolvers = prefixAddrs("2001:db8::1") },
		"an empty prefix":       func(c *Config) { c.ControlPlane = []netip.Prefix{{}} },
		"a limit of a few bits": func(c *Config) { c.EgressBits = 100 },
		"negative connections":  func(c *Config) { c.MaxConnections = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			change(&c)
			if _, err := c.withDefaults(); err == nil {
				t.Errorf("accepted: %+v", c)
			}
		})
	}
}

func TestAddressesAreUniqueAndInsideTheCIDR(t *testing.T) {
	c, err := Config{Host: "abcdefgh", CIDR: netip.MustParsePrefix("10.213.77.9/18")}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.Count != 8192 {
		t.Errorf("a /18 has room for %d slots, want 8192", c.Count)
	}
	seen := make(map[netip.Addr]bool)
	for n := range c.Count {
		for _, a := range []netip.Addr{c.hostAddr(n), c.nsAddr(n)} {
			if seen[a] || !c.CIDR.Contains(a) {
				t.Fatalf("slot %d has %s, taken or outside of %s", n, a, c.CIDR)
			}
			seen[a] = true
		}
	}
	whole, err := Config{Host: "abcdefgh", CIDR: netip.MustParsePrefix("10.0.0.0/8")}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if name := whole.linkName(whole.Count - 1); len(name) > 15 {
		t.Errorf("link name %s is longer than the kernel takes", name)
	}
}

func TestNumbersAreReadFromNamesOfThisHostOnly(t *testing.T) {
	c := Config{Host: "h1"}
	for name, want := range map[string]int{
		"bh1-0": 0, "bh1-42": 42, "bh1-": -1, "bh1-x": -1, "bh1-07": -1, "bh1--1": -1, "bh1-1 ": -1,
		"bh-1": -1, "bh11-1": -1, "eth0": -1, "bh1-99999999999999999999": -1,
	} {
		n, ok := number(name, c.linkPrefix())
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%q is slot %d, want %d", name, n, want)
		}
	}
}

func TestResolversComeFromTheHost(t *testing.T) {
	dir := t.TempDir()
	oldConf, oldSystemd := resolvConf, systemdResolvConf
	t.Cleanup(func() { resolvConf, systemdResolvConf = oldConf, oldSystemd })
	resolvConf, systemdResolvConf = filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "systemd.conf")
	for name, c := range map[string]struct {
		conf, systemd string
		cfg           Config
		want          []string
	}{
		"plain":                    {conf: "# x\nnameserver 10.0.0.1\noptions edns0\nnameserver 10.0.0.2\n", want: []string{"10.0.0.1", "10.0.0.2"}},
		"at most three, each once": {conf: "nameserver 1.1.1.1\nnameserver 1.1.1.1\nnameserver 2.2.2.2\nnameserver 3.3.3.3\nnameserver 4.4.4.4", want: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3"}},
		"stub of systemd":          {conf: "nameserver 127.0.0.53\n", systemd: "nameserver 10.0.0.3\n", want: []string{"10.0.0.3"}},
		"stub without systemd":     {conf: "nameserver 127.0.0.1\n", cfg: Config{FallbackResolvers: prefixAddrs("9.9.9.9")}, want: []string{"9.9.9.9"}},
		"loopback beside another":  {conf: "nameserver 127.0.0.1\nnameserver 10.0.0.4\n", want: []string{"10.0.0.4"}},
		"IPv6 only":                {conf: "nameserver 2001:db8::1\n", cfg: Config{FallbackResolvers: prefixAddrs("9.9.9.9")}, want: []string{"9.9.9.9"}},
		"configured":               {conf: "nameserver 10.0.0.1\n", cfg: Config{Resolvers: prefixAddrs("8.8.8.8")}, want: []string{"8.8.8.8"}},
		"none":                     {conf: "search example\n"},
		"nonsense":                 {conf: "nameserver\nnameserver x\nnameserver 10.0.0.1x\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for path, text := range map[string]string{resolvConf: c.conf, systemdResolvConf: c.systemd} {
				_ = os.Remove(path)
				if text != "" {
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, err := c.cfg.resolvers()
			if (err != nil) != (c.want == nil) || (err != nil && !errors.Is(err, errNoResolver)) {
				t.Fatalf("error %v", err)
			}
			var texts []string
			for _, a := range got {
				texts = append(texts, a.String())
			}
			if diff := cmp.Diff(c.want, texts); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseNameservers(f *testing.F) {
	for _, seed := range []string{"nameserver 10.0.0.1\n", "nameserver ::1%lo\r\n", "nameserver\t1.1.1.1 # x", "\x00nameserver 1.1.1.1"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		usable := firstResolvers(parseNameservers(data))
		if len(usable) > maxResolvers || slices.ContainsFunc(usable, func(a netip.Addr) bool { return !UsableResolver(a) }) {
			t.Errorf("%q gives %v", data, usable)
		}
	})
}
