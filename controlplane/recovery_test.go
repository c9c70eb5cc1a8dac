package controlplane

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

// All three replicas are lost, created again with their keys, and restored from a
// backup, as in docs/operations.md. The hosts, which have obeyed higher terms, obey
// the new cluster. What the backup contains continues to run; the rest is kept until
// the operator has had time to look.
func TestRecoveryFromABackup(t *testing.T) {
	tier.Slow(t)
	for name, ending := range map[string]struct {
		keep string
		end  func(t *testing.T, s *stack)
	}{
		"the time passes":      {"2s", func(*testing.T, *stack) {}},
		"the operator says so": {"1h", func(t *testing.T, s *stack) { must(t, s.admin().AcceptRestore(t.Context())) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, "BERTH_KEPT_GRACE="+ending.keep)
			h := s.join("h1", 8192)
			s.raiseTerm(30) // which the next cluster does not reach here
			_, key := s.user("ann")
			known, err := s.client(key).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
			must(t, err)
			var backup bytes.Buffer
			must(t, s.admin().Backup(t.Context(), &backup))
			unknown, err := s.client(key).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
			must(t, err)

			before := s.term()
			for _, p := range s.replicas {
				p.kill()
			}
			for _, p := range s.replicas {
				must(t, os.RemoveAll(filepath.Join(s.dir, "data-"+p.id)))
				s.start(p)
			}
			s.leader()
			must(t, s.admin().Restore(t.Context(), &backup, int64(backup.Len())))

			client := s.client(key)
			testcluster.Await(t, "sandbox of the backup", func() bool {
				sb, err := client.GetSandbox(t.Context(), known.ID)
				if err != nil || sb.Status != "running" {
					return false
				}
				_, err = client.Exec(t.Context(), known.ID, api.Exec{Cmd: api.Argv("true")})
				return err == nil
			})
			// Calls that contain the term are obeyed as well.
			made, err := client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
			must(t, err)
			if ending.keep != "2s" {
				s.heartbeats(h.ID, 20) // longer than the grace of an orphan
				if !slices.Contains(ids(h), unknown.ID) {
					t.Error("what the backup does not know is gone before its time")
				}
			}
			ending.end(t, s)
			testcluster.Await(t, "end of what the backup does not know", func() bool { return !slices.Contains(ids(h), unknown.ID) })
			for _, id := range []string{known.ID, made.ID} {
				if b := h.Boxes()[id]; b.Status != hostapi.StatusRunning {
					t.Errorf("a sandbox that has a row is %+v", b)
				}
			}
			if after := s.term(); after >= before {
				t.Errorf("the hosts obeyed term %d before and %d now, which is no lower one", before, after)
			}
		})
	}
}

// A directory that was created again does not name the cluster's first members: its
// replica logs that it waits, and for what. BERTH_PEERS forms the cluster into which
// a backup is restored.
func TestReplicasThatWereMadeAnewBeginACluster(t *testing.T) {
	s := newStack(t)
	_, key := s.user("ann")
	var backup bytes.Buffer
	must(t, s.admin().Backup(t.Context(), &backup))
	for _, p := range s.replicas {
		p.kill()
	}
	anew := filepath.Join(s.dir, "anew")
	var members []string
	for _, p := range s.replicas {
		must(t, os.RemoveAll(filepath.Join(s.dir, "data-"+p.id)))
		must(t, pki.AddReplica(anew, filepath.Join(s.dir, "pki", "a"), pki.Member{ID: p.id, Address: p.peer}, time.Now()))
		p.env = append(p.env, "BERTH_PKI_DIR="+filepath.Join(anew, p.id))
		members = append(members, p.id+"="+p.peer)
	}
	alone := s.replicas[0]
	s.start(alone)
	testcluster.Await(t, "the remedy in the log", func() bool {
		raw, err := os.ReadFile(alone.log.Name())
		return err == nil && bytes.Contains(raw, []byte("BERTH_PEERS"))
	})
	alone.kill()
	for _, p := range s.replicas {
		p.env = append(p.env, "BERTH_PEERS="+strings.Join(members, ","))
		s.start(p)
	}
	s.leader()
	must(t, s.admin().Restore(t.Context(), &backup, int64(backup.Len())))
	client := s.client(key)
	testcluster.Await(t, "the backup's records", func() bool {
		_, _, err := client.ListSandboxes(t.Context(), api.Page{})
		return err == nil
	})
}

// Two of three replicas are lost for good. What the third has becomes the beginning of a
// new cluster, by the commands of docs/operations.md: nothing that was acknowledged is lost,
// and hosts obey the new cluster.
func TestTwoOfThreeReplicasAreLost(t *testing.T) {
	s := newStack(t)
	h := s.join("h1", 8192)
	_, key := s.user("ann")
	sb, err := s.client(key).CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
	must(t, err)
	last := s.follower()
	st, err := s.admin(s.leader().url).RaftStatus(t.Context())
	must(t, err)
	testcluster.Await(t, "the records on the replica that is left", func() bool {
		own, err := s.admin(last.url).RaftStatus(t.Context())
		return err == nil && own.AppliedIndex >= st.CommitIndex
	})
	for _, p := range s.replicas {
		p.kill()
	}
	data := func(id string) string { return filepath.Join(s.dir, "data-"+id) }
	var backup bytes.Buffer
	_, _, err = cluster.Salvage((&Config{DataDir: data(last.id)}).StoreDir(), &backup)
	must(t, err)
	must(t, os.Rename(filepath.Join(data(last.id), "raft"), filepath.Join(data(last.id), "raft.lost")))
	for _, p := range s.replicas {
		if p != last {
			must(t, os.RemoveAll(data(p.id)))
		}
		s.start(p)
	}
	s.leader()
	must(t, s.admin().Restore(t.Context(), &backup, int64(backup.Len())))
	client := s.client(key)
	testcluster.Await(t, "the sandbox, by the key of before", func() bool {
		_, err := client.Exec(t.Context(), sb.ID, api.Exec{Cmd: api.Argv("true")})
		return err == nil
	})
	if !slices.Contains(ids(h), sb.ID) {
		t.Error("the sandbox is another one")
	}
}

// The two that were lost run again after all, with what they had. Together they lead the old
// cluster, whose member the third was; it does not follow them out of the new one.
func TestTheLostTwoDoNotTakeTheThird(t *testing.T) {
	s := newStack(t)
	_, key := s.user("ann")
	last := s.follower()
	lost := slices.DeleteFunc(slices.Clone(s.replicas), func(p *process) bool { return p == last })
	st, err := s.admin(s.leader().url).RaftStatus(t.Context()) // what a follower knows of commits trails
	must(t, err)
	testcluster.Await(t, "the records on the replica that is left", func() bool {
		own, err := s.admin(last.url).RaftStatus(t.Context())
		return err == nil && own.AppliedIndex >= st.CommitIndex
	})
	for _, p := range s.replicas {
		p.kill()
	}
	data := filepath.Join(s.dir, "data-"+last.id)
	var backup bytes.Buffer
	_, former, err := cluster.Salvage((&Config{DataDir: data}).StoreDir(), &backup)
	must(t, err)
	if !slices.Equal(former, []string{"a", "b", "c"}) {
		t.Errorf("members of before: %q", former)
	}
	must(t, os.Rename(filepath.Join(data, "raft"), filepath.Join(data, "raft.lost")))
	d, e := s.another("d"), s.another("e") // they wait for a cluster
	own := []*process{last, d, e}
	var members []string
	for _, p := range own {
		p.kill()
		members = append(members, p.id+"="+p.peer)
	}
	for _, p := range own {
		p.env = append(p.env, "BERTH_PEERS="+strings.Join(members, ","))
		s.start(p)
	}
	s.leader()
	admin := s.admin(last.url, d.url, e.url)
	must(t, admin.Restore(t.Context(), &backup, int64(backup.Len())))
	s.votersAre(admin, own...)

	for _, p := range lost {
		s.start(p)
	}
	testcluster.Await(t, "leadership of the lost two, and the third's refusal", func() bool {
		st, err := s.admin(lost[0].url).RaftStatus(t.Context())
		return err == nil && (st.LeaderID == lost[0].id || st.LeaderID == lost[1].id) && last.says("of a former member")
	})
	s.votersAre(s.admin(last.url), own...)
	if _, _, err := s.client(key, last.url).ListSandboxes(t.Context(), api.Page{}); err != nil {
		t.Error(err)
	}
}

// term returns the cluster's current term.
func (s *stack) term() uint64 {
	s.t.Helper()
	st, err := s.admin(s.leader().url).RaftStatus(s.t.Context())
	must(s.t, err)
	return st.Term
}

// raiseTerm forces elections until the term is high enough.
func (s *stack) raiseTerm(least uint64) {
	s.t.Helper()
	admin := s.admin()
	testcluster.Await(s.t, "higher term", func() bool {
		_ = admin.TransferLeadership(s.t.Context(), "") // refused while another is under way
		return s.term() >= least
	})
}

// heartbeats waits until the leader has received n heartbeats of a host.
func (s *stack) heartbeats(host string, n int) {
	s.t.Helper()
	admin := s.admin()
	var last time.Time
	testcluster.Await(s.t, "heartbeats", func() bool {
		agents, _, err := admin.ListAgents(s.t.Context(), api.Page{})
		for _, a := range agents {
			if err == nil && a.ID == host && a.LastSeenAt != nil && !a.LastSeenAt.Equal(last) {
				last = a.LastSeenAt.Time
				n--
			}
		}
		return n <= 0
	})
}

func ids(h *fakehost.Host) []string {
	var out []string
	for id := range h.Boxes() {
		out = append(out, id)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A removed member is refused at once, whatever its certificate says, and its
// connections are closed.
func TestWhatWasRemovedIsTrustedNoMore(t *testing.T) {
	tier.Slow(t)
	s := newStack(t)
	h := s.join("h1", 8192)
	removed := s.follower()
	rest := slices.DeleteFunc(s.urls(), func(u string) bool { return u == removed.url })
	// Not by way of the removed one: its connection to the leader is cut first.
	must(t, s.client(adminToken, rest...).RemovePeer(t.Context(), removed.id))
	// A removed replica cannot reach the others.
	testcluster.Await(t, "refusal of the removed replica", func() bool {
		_, _, err := s.client(adminToken, removed.url).ListAgents(t.Context(), api.Page{})
		return err != nil
	})
	removed.kill()
	h.Silence(true)
	testcluster.Await(t, "loss of the host", func() bool {
		return s.client(adminToken, rest...).RemoveAgent(t.Context(), h.ID) == nil
	})
	h.Silence(false)
	agents, _, err := s.client(adminToken, rest...).ListAgents(t.Context(), api.Page{})
	if err != nil || len(agents) != 0 {
		t.Errorf("agents %+v, %v", agents, err)
	}
	// A new certificate with the same name belongs to a member again.
	must(t, s.client(adminToken, rest...).AddPeer(t.Context(), removed.id, removed.peer))
	s.start(removed)
	testcluster.Await(t, "the replica that is a member again", func() bool {
		_, _, err := s.client(adminToken, removed.url).ListAgents(t.Context(), api.Page{})
		return err == nil
	})
}
