package hostd

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Guests must reach no replica, also none that joined, or whose name was found, after
// the daemon's start.
func TestReplicasThatGuestsMayNotReach(t *testing.T) {
	names := map[string][]string{}
	var log strings.Builder
	r := newReplicas([]string{"10.1.2.1:7401", "two.example:7401", "[2001:db8::1]:7401"}, slog.New(slog.NewTextHandler(&log, nil)))
	r.lookup = func(_ context.Context, network, host string) ([]netip.Addr, error) {
		if network != "ip4" {
			t.Errorf("it asked for %s", network)
		}
		var out []netip.Addr
		for _, a := range names[host] {
			out = append(out, netip.MustParseAddr(a))
		}
		if len(out) == 0 {
			return nil, errors.New("no such host")
		}
		return out, nil
	}
	want := func(what string, prefixes ...string) {
		t.Helper()
		var got []string
		for _, p := range r.addresses(t.Context()) {
			got = append(got, p.String())
		}
		if diff := cmp.Diff(prefixes, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	want("a name that does not resolve yet", "10.1.2.1/32")
	want("again", "10.1.2.1/32")
	if n := strings.Count(log.String(), "does not resolve"); n != 1 {
		t.Errorf("that is logged %d times:\n%s", n, log.String())
	}
	names["two.example"] = []string{"10.1.2.3", "10.1.2.2", "10.1.2.3"}
	want("it resolves", "10.1.2.1/32", "10.1.2.2/32", "10.1.2.3/32")
	names["two.example"] = nil
	want("DNS fails", "10.1.2.1/32", "10.1.2.2/32", "10.1.2.3/32")
	r.moved([]string{"10.1.2.9:7401", "two.example:7401"})
	want("one joined and one left", "10.1.2.2/32", "10.1.2.3/32", "10.1.2.9/32")
	names["two.example"] = []string{"10.1.2.4"}
	want("a name means another machine", "10.1.2.4/32", "10.1.2.9/32")
}
