package hosts_test

import (
	"crypto/tls"
	"testing"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// The connections to a host are shared by the leader, in each of its terms, and the
// edge.
func TestOneClientAHost(t *testing.T) {
	var dialled []string
	clients := hosts.NewClients(func(hostID, address string) *hostapi.Client {
		dialled = append(dialled, hostID+"@"+address)
		return hostapi.NewClient(address, &tls.Config{MinVersion: tls.VersionTLS13})
	})
	defer clients.Close()
	first := clients.At("h1", "a:1")
	for _, c := range []struct {
		what        string
		do          func()
		id, address string
		dials       int
		first       bool
	}{
		{"again", nil, "h1", "a:1", 1, true},
		{"another host at the same place", nil, "h2", "a:1", 2, false},
		{"the first again", nil, "h1", "a:1", 2, true},
		{"another hung up", func() { clients.HangUp("h2") }, "h1", "a:1", 2, true},
		{"hung up", func() { clients.HangUp("h1") }, "h1", "a:1", 3, false},
		{"moved", nil, "h1", "b:1", 4, false},
		{"never heard of", func() { clients.HangUp("h9") }, "h1", "b:1", 4, false},
	} {
		if c.do != nil {
			c.do()
		}
		if got := clients.At(c.id, c.address); (got == first) != c.first || len(dialled) != c.dials {
			t.Errorf("%s: the first client is %v, dialled %v", c.what, got == first, dialled)
		}
	}
	bound := first.Bind(hostapi.Binding{Host: "h1", Cluster: "c", Term: 7})
	if bound == first || first.Host() != "" || bound.Host() != "h1" {
		t.Errorf("bound to %q, and the first to %q", bound.Host(), first.Host())
	}
}
