package service_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestFirstLoginMakesUserAndWorkspaceOnce(t *testing.T) {
	c := testcluster.New(t, 1)
	ident := service.NewIdentity(c.Leader().Store, testplane.Sealer{}, time.Now)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, _, err := ident.SignIn(t.Context(), "iss", "ann", "ann@example.com"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	view := c.Leader().Store.View()
	if u, w := len(raftstore.All(view, record.Users)), len(raftstore.All(view, record.Workspaces)); u != 1 || w != 1 {
		t.Fatalf("%d users, %d workspaces", u, w)
	}
	user, workspace, err := ident.SignIn(t.Context(), "iss", "ann", "new@example.com")
	if err != nil {
		t.Fatal(err)
	}
	me, err := ident.Me(t.Context(), service.Caller{UserID: user, WorkspaceID: workspace, ViaJWT: true})
	if err != nil || me.Email != "new@example.com" || me.CurrentWorkspaceID != workspace || len(me.Workspaces) != 1 || me.Workspaces[0].Name != "ann" {
		t.Fatalf("%+v, %v", me, err)
	}
	if other, _, _ := ident.SignIn(t.Context(), "is", "sann", ""); other == user {
		t.Fatal("another issuer's user is the same")
	}
}

func TestTokens(t *testing.T) {
	c := testcluster.New(t, 1)
	ident := service.NewIdentity(c.Leader().Store, testplane.Sealer{}, time.Now)
	login := func(subject string) service.Caller {
		u, w, err := ident.SignIn(t.Context(), "iss", subject, "")
		if err != nil {
			t.Fatal(err)
		}
		return service.Caller{UserID: u, WorkspaceID: w, ViaJWT: true}
	}
	ann, eve := login("ann"), login("eve")
	tok, err := ident.CreateToken(t.Context(), ann, service.CreateToken{Name: "laptop"})
	if err != nil {
		t.Fatal(err)
	}
	prefix, ok := service.APIKeyPrefix(tok.Key)
	if !ok || prefix != tok.Prefix || !strings.HasPrefix(tok.Key, "brt_"+prefix+"_") || len(prefix) != 8 {
		t.Fatalf("%+v", tok)
	}
	list, _, err := ident.ListTokens(t.Context(), ann, service.ListOptions{})
	if err != nil || len(list) != 1 || list[0].Key != "" || list[0].Name != "laptop" || list[0].CreatedBy != ann.UserID {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := ident.RevokeToken(t.Context(), eve, prefix); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("another workspace revokes: %v", err)
	}
	if _, err := ident.SetCurrentOrg(t.Context(), eve, ann.WorkspaceID); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("another workspace entered: %v", err)
	}
	if me, err := ident.SetCurrentOrg(t.Context(), ann, ann.WorkspaceID); err != nil || me.CurrentWorkspaceID != ann.WorkspaceID {
		t.Fatalf("%+v, %v", me, err)
	}
	if err := ident.RevokeToken(t.Context(), ann, prefix); err != nil {
		t.Fatal(err)
	}
	if err := ident.RevokeToken(t.Context(), ann, prefix); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("second revoke: %v", err)
	}
	for _, bad := range []string{"a\nb", strings.Repeat("x", 101), "\xff"} {
		if _, err := ident.CreateToken(t.Context(), ann, service.CreateToken{Name: bad}); apierror.CodeOf(err) != apierror.EInvalid {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	if _, err := ident.CreateToken(t.Context(), ann, service.CreateToken{ExpiresAt: time.Now()}); apierror.As(err).Message != "invalid expires_at" {
		t.Errorf("a token that has expired already: %v", err)
	}
	last := time.Date(9999, time.December, 31, 23, 59, 59, 0, time.FixedZone("", -3600)) // the year 10000, which no JSON has
	if _, err := ident.CreateToken(t.Context(), ann, service.CreateToken{ExpiresAt: last}); apierror.As(err).Message != "invalid expires_at" {
		t.Errorf("a token for too long: %v", err)
	}
	end := time.Now().Add(time.Hour).UTC()
	if got, err := ident.CreateToken(t.Context(), ann, service.CreateToken{ExpiresAt: end}); err != nil || !got.ExpiresAt.Equal(end) {
		t.Errorf("%+v, %v", got, err)
	}
	key := service.Caller{WorkspaceID: ann.WorkspaceID, KeyID: "k"}
	if _, err := ident.Me(t.Context(), key); apierror.As(err).Detail != "jwt required" {
		t.Fatalf("an API key as a JWT: %v", err)
	}
}

func TestATokenIsMadeOnceAKey(t *testing.T) {
	c := testcluster.New(t, 1)
	ident := service.NewIdentity(c.Leader().Store, testplane.Sealer{}, time.Now)
	user, workspace, err := ident.SignIn(t.Context(), "iss", "ann", "")
	if err != nil {
		t.Fatal(err)
	}
	ann := service.Caller{UserID: user, WorkspaceID: workspace, ViaJWT: true}
	in := service.CreateToken{Name: "ci", Idempotency: service.Idempotency{Key: "k1", BodySHA256: []byte("body")}}
	first, err := ident.CreateToken(t.Context(), ann, in)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ident.CreateToken(t.Context(), ann, in)
	if err != nil || again != first || again.Key == "" {
		t.Fatalf("the same request made %+v, then %+v, %v", first, again, err)
	}
	other := in
	other.Idempotency.BodySHA256 = []byte("another")
	if _, err := ident.CreateToken(t.Context(), ann, other); apierror.CodeOf(err) != apierror.EConflict {
		t.Fatalf("another body: %v", err)
	}
	bob := ann
	bob.UserID = "usr-bob"
	if his, err := ident.CreateToken(t.Context(), bob, in); err != nil || his.Key == first.Key {
		t.Fatalf("another member of the workspace with the same idempotency key got %+v, %v", his, err)
	}
	if err := ident.RevokeToken(t.Context(), ann, first.Prefix); err != nil {
		t.Fatal(err)
	}
	if _, err := ident.CreateToken(t.Context(), ann, in); apierror.CodeOf(err) != apierror.ENotFound {
		t.Fatalf("of a revoked key: %v", err)
	}
}

func TestAPIKeyPrefix(t *testing.T) {
	good := "brt_abcdefgh_" + strings.Repeat("a", 32)
	if p, ok := service.APIKeyPrefix(good); !ok || p != "abcdefgh" {
		t.Fatal(p, ok)
	}
	for _, bad := range []string{"", "brt_", good[:len(good)-1], good + "a", strings.Replace(good, "_a", "-a", 1), strings.Replace(good, "h_", "hx", 1)} {
		if _, ok := service.APIKeyPrefix(bad); ok {
			t.Errorf("%q was taken for a key", bad)
		}
	}
}

func TestRequestID(t *testing.T) {
	for _, good := range []string{"a", "my-id/1", strings.Repeat("x", 64)} {
		if service.RequestID(good) != good {
			t.Errorf("%q was replaced", good)
		}
	}
	for _, bad := range []string{"", strings.Repeat("x", 65), "a b", "a\nb", "ä", "a\x00"} {
		if got := service.RequestID(bad); got == bad || !strings.HasPrefix(got, "req_") || len(got) > 64 {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestAgentsAndDrain(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	n := p.LeaderNode()
	cluster := service.NewCluster(service.ClusterConfig{Store: n.Store, Hosts: n.Hosts, CAFingerprint: "f", Clock: time.Now})
	agents, _, err := cluster.Agents(t.Context(), service.ListOptions{})
	if err != nil || len(agents) != 1 || agents[0].ID != "h1" || agents[0].State != "up" || !agents[0].Ready || agents[0].MemoryMB != 4096 ||
		agents[0].Address != h.Address() || len(agents[0].Templates) != 1 || agents[0].LastSeen.IsZero() {
		t.Fatalf("%+v, %v", agents, err)
	}
	sandboxes := service.NewSandboxes(service.SandboxesConfig{Store: n.Store, Hosts: n.Hosts, Flows: n.Flows, Templates: n.Templates, Engine: n.Engine, Clock: time.Now, Logger: testcluster.Log()})
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		return nil
	})
	sb, err := sandboxes.Create(t.Context(), caller, service.CreateSandbox{Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := cluster.DrainAgent(t.Context(), "h1"); err != nil || !a.Draining || a.Sandboxes != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	_, err = sandboxes.Create(t.Context(), caller, service.CreateSandbox{Template: "base"})
	want(t, err, apierror.EBadGateway, "no available compute node")
	want(t, cluster.RemoveAgent(t.Context(), "h1"), apierror.EConflict, "agent has sandboxes")
	if a, err := cluster.UndrainAgent(t.Context(), "h1"); err != nil || a.Draining {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := sandboxes.Delete(t.Context(), caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	if err := cluster.RemoveAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Hosts.Heartbeat(t.Context(), h.Heartbeat()); err == nil {
		t.Fatal("a removed host is heard")
	}
	want(t, cluster.RemoveAgent(t.Context(), "h1"), apierror.ENotFound, "")
	_, err = cluster.DrainAgent(t.Context(), "h1")
	want(t, err, apierror.ENotFound, "")
}

func TestJoinTokensAndMembers(t *testing.T) {
	p := testplane.New(t, 1, nil)
	n := p.LeaderNode()
	cluster := service.NewCluster(service.ClusterConfig{Store: n.Store, Hosts: n.Hosts, CAFingerprint: "f", Clock: time.Now})
	tok, err := cluster.CreateJoinToken(t.Context(), 0)
	if err != nil || tok.CASHA256 != "f" || len(tok.Peers) != 1 ||
		time.Until(tok.ExpiresAt) > time.Hour || time.Until(tok.ExpiresAt) < 59*time.Minute {
		t.Fatalf("%+v, %v", tok, err)
	}
	for _, row := range raftstore.All(n.Store.View(), record.JoinTokens) {
		if strings.Contains(row.ID, tok.Token) {
			t.Fatal("the token itself is in the store")
		}
	}
	for _, ttl := range []time.Duration{-1, 25 * time.Hour} {
		_, err := cluster.CreateJoinToken(t.Context(), ttl)
		want(t, err, apierror.EInvalid, "")
	}
	for _, m := range [][2]string{{"", "h:1"}, {"B", "h:1"}, {"b", "h"}, {"b", "0.0.0.0:7001"}, {"b", ":7001"}} {
		want(t, cluster.AddPeer(t.Context(), m[0], m[1]), apierror.EInvalid, "invalid peer")
	}
	want(t, cluster.RemovePeer(t.Context(), "zz"), apierror.ENotFound, "")
	want(t, cluster.RemovePeer(t.Context(), "a"), apierror.EConflict, "")
	want(t, cluster.TransferLeadership(t.Context(), "zz"), apierror.ENotFound, "")
	want(t, cluster.Restore(t.Context(), strings.NewReader("no backup")), apierror.EInvalid, "invalid backup")
}

// Hosts obey a restored cluster as another one than it was, and what the one that
// was backed up owned is still its own.
func TestNamesAfterARestore(t *testing.T) {
	p := testplane.New(t, 1, nil)
	n := p.LeaderNode()
	cluster := service.NewCluster(service.ClusterConfig{Store: n.Store, Hosts: n.Hosts, Clock: time.Now})
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
	if err := cluster.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	call(record.OriginID, "another")
	if err := cluster.Restore(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	if name(record.OriginID) != "owner" || name(record.ClusterID) == "first" || name(record.ClusterID) == "" {
		t.Errorf("the cluster is %q, and owns what is %q's", name(record.ClusterID), name(record.OriginID))
	}
}
