package controlplane

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A host that was removed does not come back with its certificate when another machine
// joins under its id.
func TestARemovedHostIsNotItsSuccessor(t *testing.T) {
	ca, err := pki.NewCA(time.Now().Add(-2 * time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{store: testcluster.New(t, 1).Leader().Store}
	trusts := func(signed time.Time) bool {
		t.Helper()
		id := pki.Identity{Role: pki.RoleHost, Name: "h1"}
		cert, key, err := ca.Issue(id, nil, signed)
		if err != nil {
			t.Fatal(err)
		}
		node, err := pki.ParseNode(ca.CertPEM(), cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return s.trusted(id, node.Leaf())
	}
	now := time.Now()
	if trusts(now) {
		t.Error("a host without a row is trusted")
	}
	err = s.store.Update(t.Context(), func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: "h1"}, State: record.HostLost})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		signed time.Time
		want   bool
	}{
		"its own":                    {now.Add(-2 * time.Second), true},
		"renewed":                    {now.Add(10 * time.Minute), true},
		"of the one that was before": {now.Add(-10 * time.Minute), false},
	} {
		if got := trusts(c.signed); got != c.want {
			t.Errorf("%s: trusted %v, want %v", name, got, c.want)
		}
	}
}
