package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/controlplane/rotation"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/nodecert"
	"github.com/berth-cloud/berth/tier"
)

// exchange is a stack whose CA is exchanged, and what went wrong meanwhile.
type exchange struct {
	*stack
	victim *process // a follower that is killed now and then; no client uses it
	steady []string // the URLs of the others

	calls, beats atomic.Int64
	mu           sync.Mutex
	problems     []string
}

func (x *exchange) problem(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.problems) < 20 {
		x.problems = append(x.problems, fmt.Sprintf(format, args...))
	}
}

func (x *exchange) pki(name string) string { return filepath.Join(x.dir, "pki", name) }

// copyFiles is what an operator does after each step.
func (x *exchange) copyFiles(to string, names ...string) {
	x.t.Helper()
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(x.pki("a"), name))
		if err != nil {
			x.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(x.pki(to), name), raw, 0o600); err != nil {
			x.t.Fatal(err)
		}
	}
}

// restart kills the victim and starts it again, with its files as they are.
func (x *exchange) restart() {
	x.t.Helper()
	x.victim.kill()
	x.start(x.victim)
	testcluster.Await(x.t, "the killed replica", func() bool {
		st, err := x.admin(x.victim.url).RaftStatus(x.t.Context())
		return err == nil && st.LeaderID != "" && !slices.ContainsFunc(st.Peers, func(p api.RaftPeer) bool { return !p.Healthy })
	})
}

// member runs what a host or a router does about its certificate, until ctx ends, every tenth
// of a second instead of every minute.
func (x *exchange) member(ctx context.Context, dir string) *pki.Node {
	x.t.Helper()
	node, err := pki.LoadNode(dir)
	if err != nil {
		x.t.Fatal(err)
	}
	r := renewerOf(node, x.peers)
	x.wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			r.Check(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return node
}

func renewerOf(node *pki.Node, peers []string) *nodecert.Renewer {
	config := func() *tls.Config { return node.ClientTLS(pki.AnyOf(pki.RoleReplica)) }
	return &nodecert.Renewer{
		Certificate: node.Certificate(), Clock: time.Now, Jitter: func() float64 { return 0 }, Log: slog.New(slog.DiscardHandler),
		Ask: func(ctx context.Context, csr []byte) ([]byte, error) {
			return hostapi.AskRenewal(ctx, peers, config(), csr)
		},
		Authorities: func(ctx context.Context, known nodecert.Known) (nodecert.Authorities, error) {
			told, err := hostapi.AskAuthorities(ctx, peers, config(), hostapi.AuthoritiesKnown{Trusts: known.Trusts, Issuer: known.Issuer})
			return nodecert.Authorities{Bundle: []byte(told.Bundle), Signs: told.Signs}, err
		},
	}
}

// joinBy lets a host join at a replica, by a token and the CA that the token names, and writes
// its directory.
func (x *exchange) joinBy(at string, token api.JoinToken, id string) (dir string, err error) {
	x.t.Helper()
	digest, err := hex.DecodeString(token.CASHA256)
	if err != nil {
		x.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, hostKey())
	if err != nil {
		x.t.Fatal(err)
	}
	body, err := json.Marshal(hostapi.Join{Token: token.Token, HostID: id, CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))})
	if err != nil {
		x.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: hostapi.JoinServerName(digest), InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			ca := cs.PeerCertificates[len(cs.PeerCertificates)-1]
			if fmt.Sprintf("%x", sha256.Sum256(ca.Raw)) != token.CASHA256 || cs.PeerCertificates[0].CheckSignatureFrom(ca) != nil {
				return errors.New("not the cluster that the token names")
			}
			return nil
		},
	}}}
	resp, err := client.Post("https://"+at+hostapi.PathJoin, "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	var joined hostapi.Joined
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(raw, &joined) != nil {
		return "", fmt.Errorf("%s: %s", resp.Status, raw)
	}
	key, err := x509.MarshalPKCS8PrivateKey(hostKey())
	if err != nil {
		x.t.Fatal(err)
	}
	dir = x.t.TempDir()
	for name, data := range map[string][]byte{
		pki.FileCACert: []byte(joined.CA), pki.FileNodeCert: []byte(joined.Certificate),
		pki.FileNodeKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			x.t.Fatal(err)
		}
	}
	return dir, nil
}

func (x *exchange) token() api.JoinToken {
	x.t.Helper()
	token, err := x.admin(x.steady...).CreateJoinToken(x.t.Context(), api.CreateJoinToken{})
	if err != nil {
		x.t.Fatal(err)
	}
	return *token
}

// host starts a host whose heartbeats, and the calls to it, have a handshake each.
func (x *exchange) host(id, dir string) *pki.Node {
	x.t.Helper()
	node := x.member(x.ctx, dir)
	h := fakehost.NewAs(x.t, node, 16384)
	h.HangUp()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: node.ClientTLS(pki.AnyOf(pki.RoleReplica))}}
	at, next := x.peers[0], 0
	send := func(ctx context.Context, hb hostapi.Heartbeat) error {
		body, err := json.Marshal(hb)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+at+hostapi.PathHeartbeat, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			defer resp.Body.Close()
			var to hostapi.NotLeader
			switch {
			case resp.StatusCode == http.StatusOK:
				x.beats.Add(1)
				return nil
			case resp.StatusCode == http.StatusMisdirectedRequest && json.NewDecoder(resp.Body).Decode(&to) == nil && to.LeaderAddress != "":
				at = to.LeaderAddress
				return errors.New("redirected")
			}
		}
		if err != nil && (strings.Contains(err.Error(), "tls") || strings.Contains(err.Error(), "certificate")) {
			x.problem("heartbeat of %s to %s: %v", id, at, err)
		}
		next++
		at = x.peers[next%len(x.peers)]
		return errors.New("not taken")
	}
	x.wg.Go(func() { h.SendHeartbeats(x.ctx, 50*time.Millisecond, send) })
	testcluster.Await(x.t, "host "+id, func() bool {
		agent, err := x.admin(x.steady...).GetAgent(x.t.Context(), id)
		return err == nil && agent.State == "up" && agent.Ready
	})
	return node
}

// load creates, uses and deletes sandboxes until ctx ends.
func (x *exchange) load(ctx context.Context, key string) {
	for i := range 3 {
		c := x.client(key, x.steady[i%len(x.steady)])
		x.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				sb, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: "base"}, fmt.Sprintf("k-%d-%d", i, n))
				if err == nil {
					_, err = c.Exec(ctx, sb.ID, api.Exec{Cmd: api.Command{Shell: "echo hi"}})
				}
				if err == nil {
					err = c.DeleteSandbox(ctx, sb.ID)
				}
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					x.problem("request %d of client %d: %v", n, i, err)
					return
				}
				x.calls.Add(3)
			}
		})
	}
}

// done waits until a step is taken.
func (x *exchange) done(step func(out io.Writer) error) {
	x.t.Helper()
	var last error
	defer func() {
		if x.t.Failed() {
			x.t.Log(last)
		}
	}()
	testcluster.Await(x.t, "step of the exchange", func() bool {
		last = step(io.Discard)
		return last == nil
	})
}

// The CA of a cluster is exchanged while clients create sandboxes, hosts send heartbeats, and a
// replica is killed after each step, when its files are not yet those of the others: no request
// and no heartbeat fails. In the end nobody accepts certificates of the old CA.
func TestTheCAIsExchangedUnderLoad(t *testing.T) {
	tier.Slow(t)
	s := newStack(t, unlimitedEnv+"=1", "BERTH_RAFT_TIMEOUT=2s")
	x := &exchange{stack: s}
	leader := s.leader()
	for _, p := range s.replicas {
		if p != leader && p.id != "a" && x.victim == nil {
			x.victim = p
		} else {
			x.steady = append(x.steady, p.url)
		}
	}
	third := "c"
	if x.victim.id == "c" {
		third = "b"
	}
	ctx := t.Context()
	_, ann := s.user("ann")
	dir := &rotation.Dir{Path: x.pki("a"), Settled: time.Second} // here everybody tells something ten times a second
	refuses := func(step func(context.Context, io.Writer, string) error, id string, says ...string) {
		t.Helper()
		err := step(ctx, io.Discard, id)
		for _, want := range says {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("it is not refused for %q: %v", want, err)
			}
		}
	}
	use := func(id string) func(io.Writer) error {
		return func(out io.Writer) error { return dir.Use(ctx, out, id) }
	}
	remove := func(id string) func(io.Writer) error {
		return func(out io.Writer) error { return dir.Remove(ctx, out, id) }
	}

	join := func(id string) string {
		t.Helper()
		joined, err := x.joinBy(leader.peer, x.token(), id)
		if err != nil {
			t.Fatal(err)
		}
		return joined
	}
	hostDir, off := join("h1"), join("h2")
	h1 := x.host("h1", hostDir)
	if err := pki.AddRouter(s.dir, x.pki("a"), "r1", nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	router := x.member(x.ctx, filepath.Join(s.dir, "r1"))
	missed := t.TempDir() // h2 as it is now: it misses all
	if err := os.CopyFS(missed, os.DirFS(off)); err != nil {
		t.Fatal(err)
	}
	operator, err := pki.LoadOperator(x.pki("operator"))
	if err != nil {
		t.Fatal(err)
	}
	first, err := pki.LoadNode(hostDir) // h1's first certificate
	if err != nil {
		t.Fatal(err)
	}
	loading, stop := context.WithCancel(s.ctx)
	defer stop()
	x.load(loading, ann)

	// 1. Another CA counts.
	old, err := pki.Authorities(dir.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Add(io.Discard); err != nil {
		t.Fatal(err)
	}
	all, err := pki.Authorities(dir.Path)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	before, after := old[0].ID, all[1].ID
	refuses(dir.Use, after, "replica b does not trust it", "replica c does not trust it", "host h2 has told no replica")
	refuses(dir.Remove, before, "signs")
	x.copyFiles(third, pki.FileCACert, pki.FileCAKey)
	x.restart() // with the files of before
	refuses(dir.Use, after, "replica "+x.victim.id+" does not trust it", "berth agents rm h2")
	x.copyFiles(x.victim.id, pki.FileCACert, pki.FileCAKey)
	token := x.token() // names the old CA
	h2 := x.host("h2", off)
	x.done(use(after)) // once everybody has learnt of it

	// 2. It signs.
	refuses(dir.Remove, before, "replica b signs with "+before, "replica c signs with "+before)
	x.copyFiles(third, pki.FileCAKey)
	x.restart() // its files say that the old one signs
	x.copyFiles(x.victim.id, pki.FileCAKey)
	for _, n := range []*pki.Node{h1, h2, router} {
		testcluster.Await(t, "certificate of the new CA for "+n.Identity.CommonName(), func() bool { return strings.HasPrefix(n.CAFingerprint(), after) })
	}
	testcluster.Await(t, "new CA at every replica", func() bool {
		st, err := dir.Ask(ctx)
		return err == nil && !slices.ContainsFunc(st.Replicas, func(r rotation.Replica) bool { return r.Signs != after || r.Issuer != after })
	})
	for id, token := range map[string]api.JoinToken{"h3": token, "h4": x.token()} { // of the old CA, and of the new one
		if !strings.HasPrefix(token.CASHA256, map[string]string{"h3": before, "h4": after}[id]) {
			t.Errorf("the token of %s names %s", id, token.CASHA256)
		}
		joined, err := x.joinBy(s.replicas[0].peer, token, id)
		if err != nil {
			t.Errorf("host %s: %v", id, err)
			continue
		}
		x.member(x.ctx, joined)
	}
	if err := reaches(operator, leader.peer, "/v1/admin/raft-status"); err != nil {
		t.Errorf("an operator of the old CA: %v", err)
	}

	// 3. The old one is gone.
	late := x.token()
	x.done(remove(before))
	x.restart() // its files say that both count
	x.copyFiles(third, pki.FileCACert, pki.FileCAKey)
	x.copyFiles(x.victim.id, pki.FileCACert, pki.FileCAKey)
	testcluster.Await(t, "end of the old CA", func() bool {
		st, err := dir.Ask(ctx)
		only := []string{after}
		return err == nil && !slices.ContainsFunc(st.Replicas, func(r rotation.Replica) bool { return r.Err != nil || !slices.Equal(r.Trusts, only) }) &&
			!slices.ContainsFunc(st.Members, func(m rotation.Member) bool { return !slices.Equal(m.Trusts, only) })
	})
	x.restart()
	for _, p := range s.replicas {
		for name, n := range map[string]*pki.Node{"an operator": operator, "a host": first} {
			if err := reaches(n, p.peer, hostapi.PathAuthorities); err == nil {
				t.Errorf("replica %s accepts %s of the old CA", p.id, name)
			}
		}
	}
	if err := dir.Remove(ctx, io.Discard, before); err != nil {
		t.Errorf("removed once more: %v", err)
	}
	if _, err := x.joinBy(s.replicas[0].peer, late, "h5"); err != nil {
		t.Errorf("a token from before the last step: %v", err)
	}

	// A host that missed it all gets its certificate by hand.
	lost, err := pki.LoadNode(missed)
	if err != nil {
		t.Fatal(err)
	}
	renewerOf(lost, s.peers).Check(ctx)
	if !strings.HasPrefix(lost.CAFingerprint(), before) {
		t.Error("a host of the old CA alone was let in")
	}
	if err := pki.AddHost(s.dir, x.pki("a"), "h2", time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pki.FileCACert, pki.FileNodeCert, pki.FileNodeKey} {
		raw, err := os.ReadFile(filepath.Join(s.dir, "h2", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(missed, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if lost, err = pki.LoadNode(missed); err != nil {
		t.Fatal(err)
	}
	if _, err := hostapi.AskAuthorities(ctx, s.peers, lost.ClientTLS(pki.AnyOf(pki.RoleReplica)), hostapi.AuthoritiesKnown{}); err != nil {
		t.Errorf("with the certificate by hand: %v", err)
	}

	stop()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.problems {
		t.Error(p)
	}
	if x.calls.Load() < 30 || x.beats.Load() < 30 {
		t.Errorf("%d requests and %d heartbeats: that was no load", x.calls.Load(), x.beats.Load())
	}
}

// reaches calls a replica's peer port and returns an error if the certificate is not accepted.
func reaches(n *pki.Node, address, path string) error {
	// The server's certificate is not the question.
	config := n.ClientTLS(pki.AnyOf(pki.RoleReplica))
	config.VerifyConnection = nil
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	resp, err := client.Get("https://" + address + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized {
		return errors.New(resp.Status)
	}
	return nil
}
