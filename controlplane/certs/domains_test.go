package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/wfe"
	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

const shop = "shop.example.com"

// gate passes requests to a pebble, which can be replaced, and counts the orders.
type gate struct {
	http.Handler
	mu     sync.Mutex
	orders int
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	if r.URL.Path == "/order-plz" {
		g.orders++
	}
	h := g.Handler
	g.mu.Unlock()
	h.ServeHTTP(w, r)
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.orders
}

// rig has replicas that answer an ACME server's questions, each at an address of its own.
type rig struct {
	*testcluster.Cluster
	t        *testing.T
	clock    *clock
	zone     *zone
	gate     *gate
	of       []*Domains
	httpPort int
	tlsPort  int
	asked    atomic.Pointer[func(replica int)] // called before a question is answered
	answered []atomic.Int32                    // by replica
}

func newRig(t *testing.T, change func(*DomainsConfig)) *rig {
	t.Helper()
	const replicas = 3
	r := &rig{Cluster: testcluster.New(t, replicas), t: t, clock: newClock(), zone: newZone(t), answered: make([]atomic.Int32, replicas)}
	plain, secure := r.ports(replicas), r.ports(replicas)
	r.httpPort, r.tlsPort = portOf(plain[0]), portOf(secure[0])
	r.gate = &gate{Handler: pebbleHandler(t, r.zone, r.httpPort, r.tlsPort)}
	server := httptest.NewTLSServer(r.gate)
	t.Cleanup(server.Close)
	roots := t.TempDir() + "/roots.pem"
	write(t, roots, pemOf(server.Certificate()))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for i, rep := range r.Replicas {
		cfg := DomainsConfig{
			Directory: server.URL + wfe.DirectoryPath, Email: "ops@example.com", Roots: roots, HTTP: true, TLS: true,
			Store: rep.Store, Sealer: keyring(t), Clock: r.clock.now, Log: slog.New(slog.DiscardHandler),
			Look: 20 * time.Millisecond, Delays: []time.Duration{time.Hour, 2 * time.Hour},
		}
		if change != nil {
			change(&cfg)
		}
		d, err := NewDomains(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.of = append(r.of, d)
		r.serve(i, d, plain[i], secure[i])
		all := loops.New(loops.Config{Store: rep.Store, Clock: r.clock.now, Logger: testcluster.Log(), Every: 20 * time.Millisecond})
		all.Register(d.Loops)
		wg.Go(func() { loops.WhileLeading(ctx, rep.Store.Leadership(), all.Run) })
		t.Cleanup(d.client.HTTPClient.CloseIdleConnections)
	}
	r.pointAt(r.follower())
	return r
}

// ports returns listeners at the same port of 127.0.0.1, 127.0.0.2 and so on.
func (r *rig) ports(n int) []net.Listener {
	r.t.Helper()
	for range 50 {
		var out []net.Listener
		for i := range n {
			port := 0
			if i > 0 {
				port = portOf(out[0])
			}
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%d", i+1, port))
			if err != nil {
				break
			}
			out = append(out, l)
		}
		if len(out) == n {
			return out
		}
		for _, l := range out {
			l.Close()
		}
	}
	r.t.Fatal("no port is free at all addresses")
	return nil
}

func portOf(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// serve makes a replica answer at its ports.
func (r *rig) serve(i int, d *Domains, plain, secure net.Listener) {
	h := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if f := r.asked.Load(); f != nil {
			(*f)(i)
		}
		host, _, _ := net.SplitHostPort(req.Host)
		answer, ok := d.AnswerHTTP(req.Context(), host, req.URL.Path)
		if !ok {
			http.NotFound(w, req)
			return
		}
		r.answered[i].Add(1)
		_, _ = io.WriteString(w, answer)
	})
	f := &Front{Domains: d, Name: strings.ToLower, IsDomain: func(name string) bool { return verified(r.Replicas[i].Store.View(), name) }}
	get := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		c, err := f.GetCertificate(hello)
		if c != nil && hello.SupportedProtos != nil && hello.SupportedProtos[0] == alpnChallenge {
			r.answered[i].Add(1)
		}
		return c, err
	}
	for _, l := range []net.Listener{plain, tls.NewListener(secure, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get, NextProtos: f.Protocols()})} {
		s := httptest.NewUnstartedServer(h)
		s.Listener.Close()
		s.Listener = l
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		s.Start()
		r.t.Cleanup(s.Close)
	}
}

func (r *rig) follower() int {
	l := r.Leader()
	for i, rep := range r.Replicas {
		if rep != l {
			return i
		}
	}
	panic("no follower")
}

// pointAt makes all names resolve to one replica; -1: to none.
func (r *rig) pointAt(replica int) {
	r.zone.mu.Lock()
	defer r.zone.mu.Unlock()
	if r.zone.a = ""; replica >= 0 {
		r.zone.a = "127.0.0." + strconv.Itoa(replica+1)
	}
}

// put writes a domain of a workspace.
func (r *rig) put(name string, status record.DomainStatus, workspace string) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		d := &record.Domain{Meta: record.Meta{ID: "dom-" + name}, WorkspaceID: workspace, AppID: "app", Name: name, Status: record.DomainPending}
		if before, ok := raftstore.Get(tx, record.Domains, d.ID); ok {
			d = before.Clone()
		}
		d.Status = status
		raftstore.Put(tx, record.Domains, d)
		return nil
	})
}

func (r *rig) verify(name string) {
	r.t.Helper()
	r.put(name, record.DomainPending, "ws")
	r.put(name, record.DomainVerified, "ws")
}

func (r *rig) tls(name string) record.DomainTLS {
	d, _ := raftstore.Get(r.Leader().Store.View(), record.Domains, "dom-"+name)
	return d.Certificate
}

func (r *rig) await(what string, holds func() bool) {
	r.t.Helper()
	testcluster.Await(r.t, what, holds)
}

// shown returns the certificate that a replica shows for a name.
func (r *rig) shown(replica int, name string) (*x509.Certificate, error) {
	d := tls.Dialer{Config: &tls.Config{ServerName: name, InsecureSkipVerify: true}} // the name is checked below
	c, err := d.DialContext(r.t.Context(), "tcp", fmt.Sprintf("127.0.0.%d:%d", replica+1, r.tlsPort))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	leaf := c.(*tls.Conn).ConnectionState().PeerCertificates[0]
	return leaf, leaf.VerifyHostname(name)
}

// everywhere waits until all replicas show the same certificate for a name.
func (r *rig) everywhere(name string) *x509.Certificate {
	r.t.Helper()
	var first *x509.Certificate
	for i := range r.Replicas {
		r.await(fmt.Sprintf("certificate of %s at replica %d", name, i), func() bool {
			leaf, err := r.shown(i, name)
			if err == nil && first == nil {
				first = leaf
			}
			return err == nil && leaf.Equal(first)
		})
	}
	return first
}

func TestADomainGetsACertificateThroughAnotherReplica(t *testing.T) {
	tier.Slow(t)
	for name, only := range map[string]func(*DomainsConfig){
		"at port 80": func(c *DomainsConfig) { c.TLS = false }, "in the handshake": func(c *DomainsConfig) { c.HTTP = false },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, only)
			follower := r.follower()
			r.verify(shop)
			first := r.everywhere(shop)
			if r.answered[follower].Load() == 0 || r.gate.count() != 1 {
				t.Errorf("%d answers of the follower, %d orders", r.answered[follower].Load(), r.gate.count())
			}
			r.await("the row", func() bool { return !r.tls(shop).ExpiresAt.IsZero() })
			if c := r.tls(shop); !c.ExpiresAt.Equal(first.NotAfter) || c.Ordering || c.Tries != 0 || c.Error != "" {
				t.Errorf("%+v", c)
			}
			view := r.Leader().Store.View()
			for _, row := range raftstore.All(view, record.CertFiles) {
				if strings.Contains(row.ID, domainChallenges) {
					t.Errorf("%s is left", row.ID)
				}
				if bytes.Contains(row.ValueSealed, []byte("PRIVATE KEY")) || bytes.Contains(row.ValueSealed, []byte("chain")) {
					t.Errorf("%s is not sealed", row.ID)
				}
			}
			r.clock.advance(50 * 24 * time.Hour)
			r.put("other.example.com", record.DomainPending, "ws") // wakes the loop for another pass
			r.verify("other.example.com")
			r.everywhere("other.example.com")
			if leaf := r.everywhere(shop); !leaf.Equal(first) || r.gate.count() != 2 {
				t.Error("one that is good for long was renewed")
			}
			r.clock.advance(15 * 24 * time.Hour)
			r.await("renewal", func() bool { leaf, err := r.shown(follower, shop); return err == nil && !leaf.Equal(first) })
		})
	}
}

func TestNobodyOrdersForANameThatIsNotVerified(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, nil)
	r.put("pending.example.com", record.DomainPending, "ws")
	for i := range r.Replicas {
		for _, name := range []string{"pending.example.com", "stranger.example.com", "127.0.0.1", "", "*.example.com"} {
			if leaf, err := r.shown(i, name); err == nil {
				t.Errorf("%q: %v", name, leaf.DNSNames)
			}
			if got, ok := r.of[i].AnswerHTTP(t.Context(), name, PathChallenge+"token"); ok {
				t.Errorf("%q: %q", name, got)
			}
		}
	}
	r.verify(shop) // any order for the names above would have been made by then
	r.everywhere(shop)
	if n := r.gate.count(); n != 1 {
		t.Errorf("%d orders", n)
	}
	// After an order is over, its challenge gets no answer.
	if got, ok := r.of[0].AnswerHTTP(t.Context(), shop, PathChallenge+"token"); ok {
		t.Error(got)
	}
}

func TestAnOrderThatFailsIsRepeatedEverLater(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, nil)
	r.pointAt(-1)
	r.verify(shop)
	r.await("a failure", func() bool { c := r.tls(shop); return c.Error != "" && !c.Ordering })
	c := r.tls(shop)
	if !strings.Contains(c.Error, shop) || !c.ExpiresAt.IsZero() || c.Tries != 1 || !c.NextAt.Equal(c.TriedAt.Add(time.Hour)) {
		t.Errorf("%+v", c)
	}
	r.clock.advance(time.Hour)
	r.await("another failure", func() bool { c := r.tls(shop); return c.Tries == 2 && !c.Ordering })
	if c := r.tls(shop); !c.NextAt.Equal(c.TriedAt.Add(2 * time.Hour)) {
		t.Errorf("%+v", c)
	}
	tried := r.gate.count()
	r.pointAt(r.follower())
	r.clock.advance(time.Hour)
	r.verify("other.example.com")
	r.everywhere("other.example.com")
	if c := r.tls(shop); c.Tries != 2 || r.gate.count() != tried+1 {
		t.Errorf("it was tried too soon: %+v", c)
	}
	r.clock.advance(time.Hour)
	r.everywhere(shop)
	r.await("the row", func() bool { return r.tls(shop).Error == "" })
}

// The leader is lost while the ACME server asks for the answer. The next leader sees that
// and orders again without waiting.
func TestALeaderThatIsLostDuringAnOrder(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, func(c *DomainsConfig) { c.TLS = false })
	lost := r.Leader()
	var once sync.Once
	f := func(int) { once.Do(func() { r.Cut(lost) }) }
	r.asked.Store(&f)
	r.verify(shop)
	for i, rep := range r.Replicas {
		if rep != lost {
			r.await("certificate", func() bool { _, err := r.shown(i, shop); return err == nil })
		}
	}
	if c := r.tls(shop); c.Ordering || c.ExpiresAt.IsZero() {
		t.Errorf("%+v", c)
	}
	if n := r.gate.count(); n != 2 {
		t.Errorf("%d orders", n)
	}
}

func TestHowManyOrdersThereAre(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, func(c *DomainsConfig) { c.PerHour, c.Each = 12, 4 }) // bursts of 3 and 1
	for i, ws := range []string{"a", "a", "a", "b", "c", "d"} {
		name := fmt.Sprintf("n%d.example.com", i)
		r.put(name, record.DomainPending, ws)
		r.put(name, record.DomainVerified, ws)
	}
	count := func() (n int) {
		for i := range 6 {
			if !r.tls(fmt.Sprintf("n%d.example.com", i)).ExpiresAt.IsZero() {
				n++
			}
		}
		return n
	}
	r.await("three", func() bool { return count() == 3 })
	of := 0
	for i := range 3 {
		if !r.tls(fmt.Sprintf("n%d.example.com", i)).TriedAt.IsZero() {
			of++
		}
	}
	if of > 1 || r.gate.count() != 3 {
		t.Errorf("%d orders of one workspace, %d in all", of, r.gate.count())
	}
	r.clock.advance(15 * time.Minute)
	r.await("more", func() bool { return count() > 3 })
	r.clock.advance(2 * time.Hour)
	r.await("all but one", func() bool { return count() >= 5 })
	if n := r.gate.count(); n > 6 {
		t.Errorf("%d orders", n)
	}
}

// A workspace that waits for the service's limit keeps its own orders.
func TestWaitingForTheServiceCostsAWorkspaceNothing(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	k := &keeper{
		Term: loops.NewTerm(loops.Config{Clock: func() time.Time { return now }}), d: &Domains{cfg: DomainsConfig{Each: 4}},
		orders: perHour(4), each: map[string]*rate.Limiter{}, mine: map[string]bool{},
	}
	order := func(ws string) bool { return k.mayOrder(&record.Domain{WorkspaceID: ws}) }
	if !order("a") {
		t.Fatal("the first order was refused")
	}
	for range 10 {
		now = now.Add(time.Minute)
		if order("b") {
			t.Fatal("a second order was allowed within a quarter of an hour")
		}
	}
	now = now.Add(5 * time.Minute)
	if !order("b") {
		t.Error("the workspace may not order, although it has not ordered yet")
	}
}

func TestACertificateGoesWithItsDomain(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, nil)
	r.verify(shop)
	r.verify("kept.example.com")
	r.everywhere(shop)
	r.everywhere("kept.example.com")
	r.put(shop, record.DomainFailed, "ws")
	for i := range r.Replicas {
		r.await("its end", func() bool { _, err := r.shown(i, shop); return err != nil })
	}
	l := r.Leader()
	term := loops.NewTerm(loops.Config{Store: l.Store, Clock: r.clock.now, Logger: testcluster.Log()})
	d := r.of[0]
	d.cfg.Store = l.Store
	left := d.prefix + domainChallenges + "left.example.com"
	if err := (&rows{store: l.Store, sealer: keyring(t), clock: r.clock.now}).Store(t.Context(), left, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	sweep := d.Loops(term)[1].Pass
	sweep(t.Context())
	ids := func() string {
		var out []string
		for _, f := range raftstore.All(l.Store.View(), record.CertFiles) {
			out = append(out, strings.TrimPrefix(f.ID, d.prefix))
		}
		return strings.Join(out, " ")
	}
	if got := ids(); got != "account certificates/kept.example.com challenges/left.example.com" {
		t.Error(got)
	}
	r.clock.advance(2 * challengeKept)
	sweep(t.Context())
	if got := ids(); got != "account certificates/kept.example.com" {
		t.Error(got)
	}
}

// If the ACME server has lost its state, a new account is created.
func TestAnACMEServerThatKnowsTheAccountNoMore(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, nil)
	r.verify(shop)
	r.everywhere(shop)
	fresh := pebbleHandler(t, r.zone, r.httpPort, r.tlsPort)
	r.gate.mu.Lock()
	r.gate.Handler = fresh
	r.gate.mu.Unlock()
	r.verify("other.example.com")
	r.await("a failure", func() bool { c := r.tls("other.example.com"); return c.Error != "" && !c.Ordering })
	r.clock.advance(time.Hour)
	r.everywhere("other.example.com")
}

func TestWhatOwnersAreToldOfErrors(t *testing.T) {
	if got := reason(fmt.Errorf("dial tcp 10.0.0.1:443: refused")); strings.Contains(got, "10.0.0.1") {
		t.Error(got)
	}
	if got := clean(strings.Repeat("ä", maxReason) + "\x00\n"); len(got) > maxReason+len("…") || strings.ContainsAny(got, "\x00\n") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

func TestWhatAPortShows(t *testing.T) {
	own, err := OpenDev(t.TempDir(), domain, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	dev, err := OpenDevDomains(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenDevDomains(dir, time.Now)
	if err != nil || !again.ca.authority.Equal(dev.ca.authority) {
		t.Error("another authority", err)
	}
	covered := "covered." + domain
	f := &Front{
		Own: own, Domains: dev, Name: strings.ToLower, IsDomain: func(name string) bool { return name == shop || name == covered },
		Covered: func(name string) bool { return name == covered },
	}
	long := strings.Repeat("a2345678.", 9) + "example.com"
	show := func(f *Front, name string) string {
		c, err := f.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
		if err != nil {
			t.Fatal(err)
		}
		if c == nil {
			return ""
		}
		return strings.Join(c.Leaf.DNSNames, " ")
	}
	for _, c := range []struct {
		f          *Front
		name, want string
	}{
		{f, "SHOP.example.com", shop}, {f, covered, "*." + domain}, {f, "x." + domain, "*." + domain}, {f, "unknown.example.com", "*." + domain}, {f, "", "*." + domain},
		{&Front{Own: own, Name: f.Name, IsDomain: f.IsDomain}, shop, ""}, // no authority for domains
		{&Front{Domains: dev, Name: f.Name, IsDomain: f.IsDomain}, "unknown.example.com", ""},
		{&Front{Domains: dev, Name: f.Name, IsDomain: f.IsDomain}, "", ""},
	} {
		if got := show(c.f, c.name); got != c.want {
			t.Errorf("%q: %q, want %q", c.name, got, c.want)
		}
	}
	leaf, err := dev.DomainCertificate(nil, long)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(dev.ca.authority)
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: long, Roots: pool}); err != nil {
		t.Error(err)
	}
	first, _ := dev.DomainCertificate(nil, shop)
	for i := range maxDevLeaves {
		if _, err := dev.DomainCertificate(nil, fmt.Sprintf("n%d.example.com", i)); err != nil || len(dev.leaves) > maxDevLeaves {
			t.Fatal(err, len(dev.leaves))
		}
	}
	if second, _ := dev.DomainCertificate(nil, shop); first == second {
		t.Error("they are kept for ever")
	}
}
