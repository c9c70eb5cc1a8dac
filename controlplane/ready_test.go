package controlplane

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
)

func TestWhatKeepsAReplicaFromServing(t *testing.T) {
	good := raftstore.Status{
		State: "follower", LeaderID: "b", LastContact: time.Now(), CommitIndex: 5000, AppliedIndex: 4999,
		Peers: []raftstore.Peer{{ID: "a"}, {ID: "b"}, {ID: "c"}},
	}
	for want, change := range map[string]func(*raftstore.Status){
		"":                         func(*raftstore.Status) {},
		"member:":                  func(s *raftstore.Status) { s.Peers = s.Peers[1:] },
		"leader: none":             func(s *raftstore.Status) { s.LeaderID = "" },
		"leader: it was not heard": func(s *raftstore.Status) { s.LastContact = time.Time{} },
		"state: 3000 committed":    func(s *raftstore.Status) { s.AppliedIndex = 2000 },
	} {
		st := good
		change(&st)
		err := readiness("a", st)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%q: got %v", want, err)
		}
	}
}

func TestWhenAReplicaThatStartsHasTheOthersRecords(t *testing.T) {
	good := raftstore.Status{LeaderID: "b", CommitIndex: 5000, AppliedIndex: 5000}
	for name, c := range map[string]struct {
		change func(*raftstore.Status)
		want   bool
	}{
		"all":                    {func(*raftstore.Status) {}, true},
		"no leader":              {func(s *raftstore.Status) { s.LeaderID = "" }, false},
		"a heartbeat alone":      {func(s *raftstore.Status) { s.CommitIndex = 0 }, false},
		"some are being applied": {func(s *raftstore.Status) { s.AppliedIndex = 4999 }, false},
	} {
		st := good
		if c.change(&st); hasRecords(st) != c.want {
			t.Errorf("%s: %t", name, !c.want)
		}
	}
}

// A replica that is alone of three is healthy and not ready.
func TestAReplicaWithoutAMajorityIsNotReady(t *testing.T) {
	s := newStack(t)
	for _, p := range s.replicas {
		testcluster.Await(t, "replica "+p.id+" to be ready", func() bool {
			resp, body := raw(t, http.MethodGet, p.url+"/readyz", "", "")
			return resp.StatusCode == http.StatusOK && strings.TrimSpace(body) == `{"status":"ok"}`
		})
	}
	left := s.replicas[0]
	for _, p := range s.replicas[1:] {
		p.kill()
	}
	testcluster.Await(t, "the last replica to know no leader", func() bool {
		resp, body := raw(t, http.MethodGet, left.url+"/readyz", "", "")
		return resp.StatusCode == http.StatusServiceUnavailable && strings.TrimSpace(body) == `{"error":"not ready","detail":"leader: none is known"}`
	})
	if resp, body := raw(t, http.MethodGet, left.url+"/healthz", "", ""); resp.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %d %s", resp.StatusCode, body)
	}
}
