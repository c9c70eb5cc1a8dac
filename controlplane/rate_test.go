package controlplane

import (
	"testing"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestWhoMayMakeHowManyRequests(t *testing.T) {
	tiers, err := limits.Load("", "")
	if err != nil {
		t.Fatal(err)
	}
	c := testcluster.New(t, 1)
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{
			Meta: record.Meta{ID: "ws-1"}, Quotas: record.Quotas{RequestsPerSecond: new(100), RequestsBurst: new(300)},
		})
		ann, nan := &record.User{Meta: record.Meta{ID: "usr-ann"}}, &record.User{Meta: record.Meta{ID: "usr-nan"}}
		ann.Join("ws-1", record.RoleMember)
		raftstore.Put(tx, record.Users, ann)
		raftstore.Put(tx, record.Users, nan)
		return nil
	})
	s := &Server{store: c.Leader().Store, tiers: tiers}
	own := limits.Rate{Burst: 300, PerSecond: 100}
	for id, want := range map[string]limits.Rate{
		"ws-1": own, "usr-ann": own, "usr-nan": limits.DefaultRate, "usr-gone": limits.DefaultRate, "ws-gone": limits.DefaultRate,
	} {
		if got := s.rateOf(id); got != want {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
}
