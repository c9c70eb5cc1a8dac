package peer

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestTheAddressOfAClient(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	for name, c := range map[string]struct {
		remote string
		said   []string
		want   string
	}{
		"directly":                         {"192.0.2.1:7", nil, "192.0.2.1:7"},
		"what it says itself":              {"192.0.2.1:7", []string{"203.0.113.7"}, "192.0.2.1:7"},
		"by a proxy":                       {"10.0.0.5:7", []string{"203.0.113.7"}, "203.0.113.7:0"},
		"by a proxy, on a dual-stack port": {"[::ffff:10.0.0.5]:7", []string{"203.0.113.7"}, "203.0.113.7:0"},
		"by a proxy of IPv6":               {"[2001:db8::5]:7", []string{"fd00::1"}, "[fd00::1]:0"},
		"by two proxies":                   {"10.0.0.5:7", []string{"192.0.2.66, 203.0.113.7", "10.0.0.6"}, "203.0.113.7:0"},
		"with its port":                    {"10.0.0.5:7", []string{"203.0.113.7:99"}, "203.0.113.7:0"},
		"with its port, of IPv6":           {"10.0.0.5:7", []string{"[fd00::1]:99"}, "[fd00::1]:0"},
		"from a proxy itself":              {"10.0.0.5:7", nil, "10.0.0.5:7"},
		"from one proxy by another":        {"10.0.0.5:7", []string{"10.0.0.6"}, "10.0.0.6:0"},
		"what is no address":               {"10.0.0.5:7", []string{"203.0.113.7, unknown"}, "10.0.0.5:7"},
		"a connection without an address":  {"@", []string{"203.0.113.7"}, "@"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{HeaderFor: c.said}}
		if got := ClientAddr(r, proxies); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
