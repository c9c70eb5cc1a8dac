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
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// All three replicas are lost and made anew with their keys, and a backup is put
// back, as docs/operations.md has it. The hosts, which have obeyed higher terms,
// obey the new cluster; what the backup knows runs on; what it does not know is
// kept until the operator has had the time to look.
func TestRecoveryFromABackup(t *testing.T) {
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
			must(t, s.admin().Restore(t.Context(), backup.Bytes()))

			client := s.client(key)
			testcluster.Await(t, 20*time.Second, "sandbox of the backup", func() bool {
				sb, err := client.GetSandbox(t.Context(), known.ID)
				if err != nil || sb.Status != "running" {
					return false
				}
				_, err = client.Exec(t.Context(), known.ID, api.Exec{Cmd: api.Argv("true")})
				return err == nil
			})
			// Calls that carry the term are obeyed as well.
			made, err := client.CreateSandbox(t.Context(), api.CreateSandbox{Template: "base"}, "")
			must(t, err)
			if ending.keep != "2s" {
				s.heartbeats(h.ID, 20) // longer than the grace of an orphan
				if !slices.Contains(ids(h), unknown.ID) {
					t.Error("what the backup does not know is gone before its time")
				}
			}
			ending.end(t, s)
			testcluster.Await(t, 20*time.Second, "end of what the backup does not know", func() bool { return !slices.Contains(ids(h), unknown.ID) })
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

// A directory that was made anew does not say whom to begin a cluster with: its
// replica says that it waits, and for what. BERTH_PEERS begins the cluster that a
// backup goes into.
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
	testcluster.Await(t, 20*time.Second, "the remedy in the log", func() bool {
		raw, err := os.ReadFile(alone.log.Name())
		return err == nil && bytes.Contains(raw, []byte("BERTH_PEERS"))
	})
	alone.kill()
	for _, p := range s.replicas {
		p.env = append(p.env, "BERTH_PEERS="+strings.Join(members, ","))
		s.start(p)
	}
	s.leader()
	must(t, s.admin().Restore(t.Context(), backup.Bytes()))
	client := s.client(key)
	testcluster.Await(t, 20*time.Second, "the backup's records", func() bool {
		_, _, err := client.ListSandboxes(t.Context(), api.Page{})
		return err == nil
	})
}

// term is the cluster's present one.
func (s *stack) term() uint64 {
	s.t.Helper()
	st, err := s.admin(s.leader().url).RaftStatus(s.t.Context())
	must(s.t, err)
	return st.Term
}

// raiseTerm has the replicas elect each other until the term is at least so high.
func (s *stack) raiseTerm(least uint64) {
	s.t.Helper()
	admin := s.admin()
	testcluster.Await(s.t, time.Minute, "higher term", func() bool {
		_ = admin.TransferLeadership(s.t.Context(), "") // refused while another is under way
		return s.term() >= least
	})
}

// heartbeats waits until the leader has taken n heartbeats of a host.
func (s *stack) heartbeats(host string, n int) {
	s.t.Helper()
	admin := s.admin()
	var last time.Time
	testcluster.Await(s.t, 20*time.Second, "heartbeats", func() bool {
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

// What was removed is refused at once, whatever its certificate says, and its
// connections are cut.
func TestWhatWasRemovedIsTrustedNoMore(t *testing.T) {
	s := newStack(t)
	h := s.join("h1", 8192)
	removed := s.follower()
	must(t, s.admin().RemovePeer(t.Context(), removed.id))
	// Through the removed replica nothing reaches the others.
	testcluster.Await(t, 20*time.Second, "refusal of the removed replica", func() bool {
		_, _, err := s.client(adminToken, removed.url).ListAgents(t.Context(), api.Page{})
		return err != nil
	})
	removed.kill()
	rest := slices.DeleteFunc(s.urls(), func(u string) bool { return u == removed.url })
	h.Silence(true)
	testcluster.Await(t, 20*time.Second, "loss of the host", func() bool {
		return s.client(adminToken, rest...).RemoveAgent(t.Context(), h.ID) == nil
	})
	h.Silence(false)
	agents, _, err := s.client(adminToken, rest...).ListAgents(t.Context(), api.Page{})
	if err != nil || len(agents) != 0 {
		t.Errorf("agents %+v, %v", agents, err)
	}
	// A new certificate of the same name is one of a member again.
	must(t, s.client(adminToken, rest...).AddPeer(t.Context(), removed.id, removed.peer))
	s.start(removed)
	testcluster.Await(t, 20*time.Second, "the replica that is a member again", func() bool {
		_, _, err := s.client(adminToken, removed.url).ListAgents(t.Context(), api.Page{})
		return err == nil
	})
}
