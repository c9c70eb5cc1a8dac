package controlplane

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/tier"
)

// another creates one more replica with the cluster's keys, as controlplane init --ca does,
// and starts it.
func (s *stack) another(id string) *process {
	s.t.Helper()
	listen := freePort(s.t)
	p := &process{id: id, url: "http://" + listen, peer: freePort(s.t)}
	dir := filepath.Join(s.dir, "another")
	must(s.t, pki.AddReplica(dir, filepath.Join(s.dir, "pki", "a"), pki.Member{ID: id, Address: p.peer}, time.Now()))
	p.env = append(slices.Clone(s.replicas[0].env),
		"BERTH_PKI_DIR="+filepath.Join(dir, id), "BERTH_DATA_DIR="+filepath.Join(s.dir, "data-"+id), "BERTH_LISTEN="+listen)
	var err error
	if p.log, err = os.Create(filepath.Join(s.dir, id+".log")); err != nil {
		s.t.Fatal(err)
	}
	s.replicas = append(s.replicas, p)
	s.start(p)
	return p
}

// says reports whether a replica has logged a text.
func (p *process) says(text string) bool {
	raw, err := os.ReadFile(p.log.Name())
	return err == nil && bytes.Contains(raw, []byte(text))
}

// votersAre waits until the replicas that vote are these, and all are healthy.
func (s *stack) votersAre(among *api.Client, want ...*process) {
	s.t.Helper()
	var ids []string
	for _, p := range want {
		ids = append(ids, p.id)
	}
	slices.Sort(ids)
	testcluster.Await(s.t, "the voters "+strings.Join(ids, " "), func() bool {
		st, err := among.RaftStatus(s.t.Context())
		if err != nil {
			return false
		}
		var voters []string
		for _, p := range st.Peers {
			if p.Voter && p.Healthy {
				voters = append(voters, p.ID)
			}
		}
		slices.Sort(voters)
		return slices.Equal(voters, ids) && len(st.Peers) == len(ids)
	})
}

// A replica is lost and another added, as in docs/operations.md: it takes the place of the
// lost one by itself. That one comes back, says what became of it, and can be added again.
func TestALostReplicaIsReplaced(t *testing.T) {
	tier.Slow(t)
	s := newStack(t, "BERTH_REPLICA_DEAD_AFTER=10s", "BERTH_REPLICA_STABLE_AFTER=1s")
	_, key := s.user("ann")
	lost := s.follower()
	rest := slices.DeleteFunc(slices.Clone(s.replicas), func(p *process) bool { return p == lost })
	lost.kill()
	d := s.another("d")
	admin := s.admin(rest[0].url, rest[1].url)
	must(t, admin.AddPeer(t.Context(), d.id, d.peer))
	s.votersAre(admin, rest[0], rest[1], d)
	entries, _, err := admin.ListAudit(t.Context(), api.AuditQuery{Action: "removePeer"}, api.Page{})
	if err != nil || len(entries) != 1 || entries[0].ActorType != "replica" || entries[0].Resource != "raft/peers/"+lost.id {
		t.Errorf("audit log: %+v, %v", entries, err)
	}
	// One more is lost, and nobody notices.
	rest[0].kill()
	testcluster.Await(t, "an answer of those that are left", func() bool {
		_, _, err := s.client(key, rest[1].url, d.url).ListSandboxes(t.Context(), api.Page{})
		return err == nil
	})
	s.start(rest[0])
	s.votersAre(admin, rest[0], rest[1], d)

	s.start(lost)
	testcluster.Await(t, "the lost one's own words", func() bool {
		return lost.says("this replica was removed from the cluster") && lost.says("berth raft add-peer "+lost.id+" "+lost.peer)
	})
	testcluster.Await(t, "its readiness to tell", func() bool {
		resp, err := http.Get(lost.url + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusServiceUnavailable && bytes.Contains(body, []byte("removed from the cluster"))
	})
	must(t, admin.AddPeer(t.Context(), lost.id, lost.peer))
	s.votersAre(admin, rest[0], rest[1], d, lost)
}
