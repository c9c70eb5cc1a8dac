package cluster_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/reseal"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAgentsAndDrain(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	n := p.LeaderNode()
	replicas := n.Replicas
	agents, _, err := replicas.Agents(t.Context(), core.ListOptions{})
	if err != nil || len(agents) != 1 || agents[0].ID != "h1" || agents[0].State != "up" || !agents[0].Ready || agents[0].Capacity.MemoryMB != 4096 ||
		agents[0].Address != h.Address() || len(agents[0].Templates) != 1 || agents[0].LastSeenAt == nil {
		t.Fatalf("%+v, %v", agents, err)
	}
	sandboxes := n.Sandboxes
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		return nil
	})
	sb, err := sandboxes.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := replicas.DrainAgent(t.Context(), "h1"); err != nil || !a.Draining || a.Sandboxes != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	_, err = sandboxes.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
	testplane.Want(t, replicas.RemoveAgent(t.Context(), "h1"), apierror.EConflict, "agent has sandboxes")
	if a, err := replicas.UndrainAgent(t.Context(), "h1"); err != nil || a.Draining {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := sandboxes.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := replicas.RemoveAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hosts.Heartbeat(t.Context(), h.Heartbeat()); err == nil {
		t.Fatal("a removed host is heard")
	}
	testplane.Want(t, replicas.RemoveAgent(t.Context(), "h1"), apierror.ENotFound, "")
	_, err = replicas.DrainAgent(t.Context(), "h1")
	testplane.Want(t, err, apierror.ENotFound, "")
}

func TestJoinTokensAndMembers(t *testing.T) {
	p := testplane.New(t, 1, nil)
	n := p.LeaderNode()
	replicas := n.Replicas
	tok, err := replicas.CreateJoinToken(t.Context(), api.CreateJoinToken{}, core.Idempotency{})
	if err != nil || tok.CASHA256 != "f" || len(tok.Peers) != 1 ||
		time.Until(tok.ExpiresAt.Time) > time.Hour || time.Until(tok.ExpiresAt.Time) < 59*time.Minute {
		t.Fatalf("%+v, %v", tok, err)
	}
	for _, row := range raftstore.All(n.Store.View(), record.JoinTokens) {
		if strings.Contains(row.ID, tok.Token) {
			t.Fatal("the token itself is in the store")
		}
	}
	once := core.Idempotency{Key: "k", BodySHA256: []byte("body")}
	first, err := replicas.CreateJoinToken(t.Context(), api.CreateJoinToken{}, once)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := replicas.CreateJoinToken(t.Context(), api.CreateJoinToken{}, once); err != nil || again.Token != first.Token || !again.ExpiresAt.Equal(first.ExpiresAt.Time) {
		t.Errorf("with the same key %+v, %v; the first was %+v", again, err, first)
	}
	for _, ttl := range []int64{-1, 0, 25 * 60 * 60} {
		_, err := replicas.CreateJoinToken(t.Context(), api.CreateJoinToken{TTLSeconds: &ttl}, core.Idempotency{})
		testplane.Want(t, err, apierror.EInvalid, "")
	}
	for _, m := range [][2]string{{"B", "h:1"}, {"b", "h"}, {"b", "0.0.0.0:7001"}, {"b", ":7001"}, {"b", "h:70010"}, {"b", "h:http"}, {"b", "h:-1"}, {"b", "a b:1"}, {"b", "h/x:1"}} {
		testplane.Want(t, replicas.AddPeer(t.Context(), api.AddPeer{ID: m[0], Address: m[1]}), apierror.EInvalid, "invalid peer")
	}
	testplane.Want(t, replicas.AddPeer(t.Context(), api.AddPeer{Address: "h:1"}), apierror.EInvalid, "id is required")
	testplane.Want(t, replicas.AddPeer(t.Context(), api.AddPeer{ID: "b"}), apierror.EInvalid, "address is required")
	testplane.Want(t, replicas.RemovePeer(t.Context(), "zz"), apierror.ENotFound, "")
	testplane.Want(t, replicas.RemovePeer(t.Context(), "a"), apierror.EConflict, "")
	for range 2 {
		if err := replicas.RemoveRouter(t.Context(), "r1"); err != nil {
			t.Fatal(err)
		}
	}
	if row, _ := raftstore.Get(n.Store.View(), record.Clusters, record.ClusterID); !slices.Equal(row.RemovedRouters, []string{"r1"}) {
		t.Errorf("removed routers: %q", row.RemovedRouters)
	}
	testplane.Want(t, replicas.RemoveRouter(t.Context(), "R1"), apierror.ENotFound, "")
	testplane.Want(t, replicas.TransferLeadership(t.Context(), api.TransferLeadership{To: "zz"}), apierror.ENotFound, "")
	testplane.Want(t, replicas.Restore(t.Context(), strings.NewReader("no backup"), false), apierror.EInvalid, "invalid backup")
}

// A backup that the disk has no room for is told from one that is damaged, and by whose disk.
func TestARestoreThatFindsNoRoomSaysWhere(t *testing.T) {
	p := testplane.New(t, 1, nil)
	err := p.LeaderNode().Replicas.Restore(t.Context(), failing{fmt.Errorf("copy: %w", raftstore.ErrNoRoom)}, false)
	testplane.Want(t, err, apierror.EInsufficient, "insufficient storage for backup")
	if want := "the disk of replica a,"; !strings.Contains(apierror.As(err).Detail, want) {
		t.Errorf("%q is not in %q", want, apierror.As(err).Detail)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Neither what was removed after the backup was taken is trusted after its restore, nor what
// was removed before, which the cluster that it is restored into may not know.
func TestWhoWasRemovedStaysRemovedAfterARestore(t *testing.T) {
	p := testplane.New(t, 1, nil)
	replicas := p.LeaderNode().Replicas
	removed := func(replicas, routers []string) {
		p.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Name: "x", Removed: replicas, RemovedRouters: routers})
			return nil
		})
	}
	removed([]string{"x", "y"}, []string{"r1", "r2"})
	var backup bytes.Buffer
	if err := replicas.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	removed([]string{"y", "z"}, []string{"r2", "r3"})
	if err := replicas.Restore(t.Context(), &backup, false); err != nil {
		t.Fatal(err)
	}
	row, _ := raftstore.Get(p.LeaderNode().Store.View(), record.Clusters, record.ClusterID)
	if !slices.Equal(row.Removed, []string{"x", "y", "z"}) || !slices.Equal(row.RemovedRouters, []string{"r1", "r2", "r3"}) {
		t.Errorf("removed are the replicas %q and the routers %q", row.Removed, row.RemovedRouters)
	}
}

// Hosts obey a restored cluster under its new name, and the restored cluster owns
// what the original one owned.
func TestNamesAfterARestore(t *testing.T) {
	p := testplane.New(t, 1, nil)
	n := p.LeaderNode()
	replicas := n.Replicas
	name := func(id string) (name string) {
		if row, ok := raftstore.Get(n.Store.View(), record.Clusters, id); ok {
			name = row.Name
		}
		return name
	}
	call := func(id, name string) {
		p.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: id}, Name: name})
			return nil
		})
	}
	call(record.ClusterID, "first")
	call(record.OriginID, "owner")
	var backup bytes.Buffer
	if err := replicas.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	call(record.OriginID, "another")
	if err := replicas.Restore(t.Context(), &backup, false); err != nil {
		t.Fatal(err)
	}
	if name(record.OriginID) != "owner" || name(record.ClusterID) == "first" || name(record.ClusterID) == "" {
		t.Errorf("the cluster is %q, and owns what is %q's", name(record.ClusterID), name(record.OriginID))
	}
}

// A backup with secrets that no sealing key opens changes nothing, unless they may be lost: the
// records that it would replace may be the last with secrets.
func TestABackupThatIsSealedWithOtherKeysIsRefused(t *testing.T) {
	p := testplane.New(t, 1, nil)
	n := p.LeaderNode()
	then, now := newKeys(t), newKeys(t)
	with := func(keys *seal.Keyring) *cluster.Cluster {
		return cluster.New(n.Core, cluster.Config{Missing: func(r raftstore.Reader) map[string]int { return reseal.Missing(r, keys) }})
	}
	secret, err := then.Seal([]byte("secret"), record.WebhookContext("hook"))
	if err != nil {
		t.Fatal(err)
	}
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "hook"}, WorkspaceID: "ws", SecretSealed: secret})
		return nil
	})
	var backup bytes.Buffer
	if err := n.Replicas.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	later := func() bool {
		_, ok := raftstore.Get(n.Store.View(), record.Workspaces, "later")
		return ok
	}
	for name, c := range map[string]struct {
		keys        *seal.Keyring
		withoutKeys bool
		refused     bool
	}{
		"with the keys of now":               {keys: now, refused: true},
		"with the keys of now, and the flag": {keys: now, withoutKeys: true},
		"with the keys of then":              {keys: then},
	} {
		t.Run(name, func(t *testing.T) {
			p.Update(func(tx *raftstore.Tx) error {
				raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "later"}, Name: "later"})
				return nil
			})
			err := with(c.keys).Restore(t.Context(), bytes.NewReader(backup.Bytes()), c.withoutKeys)
			if c.refused {
				testplane.Want(t, err, apierror.EConflict, "backup is sealed with other keys")
			} else if err != nil {
				t.Error(err)
			}
			if later() != c.refused {
				t.Errorf("what is newer than the backup is there: %t", later())
			}
		})
	}
}

func newKeys(t *testing.T) *seal.Keyring {
	t.Helper()
	keys, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
