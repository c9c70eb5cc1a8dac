package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
	"github.com/berth-cloud/berth/tier"
)

const (
	tsigName = "berth-acme."
	tsigKey  = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="
)

// zone is a DNS server for db.example.com that accepts updates.
type zone struct {
	t    *testing.T
	addr string

	mu      sync.Mutex
	txt     map[string][]string
	updates int
	a       string // the address of every name; "": names have no address
}

func newZone(t *testing.T) *zone {
	t.Helper()
	z := &zone{t: t, txt: map[string][]string{}}
	var tcp net.Listener
	var udp net.PacketConn
	for range 20 { // both must have the same port number
		var err error
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			break
		}
		tcp.Close()
	}
	z.addr = tcp.Addr().String()
	accept := func(h dns.Header) dns.MsgAcceptAction { // the default refuses updates
		if int(h.Bits>>11)&0xF == dns.OpcodeUpdate {
			return dns.MsgAccept
		}
		return dns.DefaultMsgAcceptFunc(h)
	}
	for _, s := range []*dns.Server{{Listener: tcp}, {PacketConn: udp}} {
		s.Handler, s.MsgAcceptFunc, s.TsigSecret = z, accept, map[string]string{tsigName: tsigKey}
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.ActivateAndServe()
		}()
		<-ready
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-done
		})
	}
	return z
}

func (z *zone) ServeDNS(w dns.ResponseWriter, in *dns.Msg) {
	out := new(dns.Msg)
	out.SetReply(in)
	out.Authoritative = true
	z.mu.Lock()
	defer z.mu.Unlock()
	if in.Opcode == dns.OpcodeUpdate {
		if in.IsTsig() == nil || w.TsigStatus() != nil {
			out.Rcode = dns.RcodeNotAuth
		} else {
			z.update(in.Ns)
			out.SetTsig(tsigName, dns.HmacSHA256, 300, time.Now().Unix())
		}
		_ = w.WriteMsg(out)
		return
	}
	q := in.Question[0]
	name := strings.ToLower(q.Name)
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET}
	soa := &dns.SOA{Hdr: dns.RR_Header{Name: domain + ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET}, Ns: "ns." + domain + ".", Mbox: "x." + domain + "."}
	switch {
	case q.Qtype == dns.TypeTXT && len(z.txt[name]) > 0:
		for _, v := range z.txt[name] {
			out.Answer = append(out.Answer, &dns.TXT{Hdr: header, Txt: []string{v}})
		}
	case q.Qtype == dns.TypeA && z.a != "":
		out.Answer = append(out.Answer, &dns.A{Hdr: header, A: net.ParseIP(z.a)})
	case q.Qtype == dns.TypeSOA && name == domain+".":
		out.Answer = append(out.Answer, soa)
	default:
		out.Ns = append(out.Ns, soa)
	}
	_ = w.WriteMsg(out)
}

func (z *zone) update(changes []dns.RR) {
	z.updates++
	for _, rr := range changes {
		txt, ok := rr.(*dns.TXT)
		if !ok {
			continue
		}
		name := strings.ToLower(txt.Hdr.Name)
		if txt.Hdr.Class == dns.ClassINET {
			z.txt[name] = append(z.txt[name], strings.Join(txt.Txt, ""))
		} else {
			z.txt[name] = slices.DeleteFunc(z.txt[name], func(v string) bool { return v == strings.Join(txt.Txt, "") })
		}
	}
}

// newPebble starts an ACME server that queries the zone. roots is the file with its CA.
func newPebble(t *testing.T, z *zone) (directory, roots string) {
	t.Helper()
	server, roots := newPebbleAt(t, z, 0, 0)
	return server.URL + wfe.DirectoryPath, roots
}

// newPebbleAt is newPebble with the ports at which the server checks http-01 and
// tls-alpn-01 challenges.
func newPebbleAt(t *testing.T, z *zone, httpPort, tlsPort int) (server *httptest.Server, roots string) {
	t.Helper()
	server = httptest.NewTLSServer(pebbleHandler(t, z, httpPort, tlsPort))
	t.Cleanup(server.Close)
	roots = filepath.Join(t.TempDir(), "pebble.pem")
	write(t, roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return server, roots
}

func pebbleHandler(t *testing.T, z *zone, httpPort, tlsPort int) http.Handler {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	t.Setenv("PEBBLE_WFE_AUTHZREUSE", "0") // every order must prove its name
	quiet := log.New(io.Discard, "", 0)
	if testing.Verbose() {
		quiet = log.New(t.Output(), "pebble ", 0)
	}
	store := db.NewMemoryStore()
	authority := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 90 * 24 * 3600}})
	front := wfe.New(quiet, store, va.New(quiet, httpPort, tlsPort, false, z.addr, store), authority, []string{"pebble.letsencrypt.org"}, false, false, 0, 0)
	return front.Handler()
}

func newACME(t *testing.T, directory, roots, resolver string, store Store, clock func() time.Time) *ACME {
	t.Helper()
	a, err := NewACME(ACMEConfig{
		Directory: directory, Email: "ops@example.com", Roots: roots, Names: []string{"*." + domain},
		DNSServer: resolver, TSIGName: strings.TrimSuffix(tsigName, "."), TSIGKey: tsigKey, TSIGAlg: "hmac-sha256", DNSResolvers: []string{resolver},
		Store: store, Sealer: keyring(t), Clock: clock, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var ring = sync.OnceValues(seal.New)

func keyring(t *testing.T) *seal.Keyring {
	t.Helper()
	k, err := ring()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestACertificateIsIssuedAndRenewedWhileItIsServed(t *testing.T) {
	tier.Slow(t)
	z := newZone(t)
	directory, roots := newPebble(t, z)
	store := testcluster.New(t, 1).Leader().Store
	now := newClock()
	leader, follower := newACME(t, directory, roots, z.addr, store, now.now), newACME(t, directory, roots, z.addr, store, now.now)
	if _, err := follower.current("*." + domain); !errors.Is(err, errNotYet) {
		t.Errorf("before the first: %v", err)
	}
	leader.Keep(t.Context())
	shown := served(t, follower.GetCertificate)
	first := shown()
	if err := Covers(follower, "any."+domain); err != nil {
		t.Error(err)
	}
	z.mu.Lock()
	updates := z.updates
	for name, left := range z.txt {
		if len(left) > 0 {
			t.Errorf("%s has %q still", name, left)
		}
	}
	z.mu.Unlock()
	leader.Keep(t.Context())
	now.advance(50 * 24 * time.Hour)
	leader.Keep(t.Context())
	if shown() != first || z.updates != updates {
		t.Error("one that is good for long was renewed")
	}
	now.advance(15 * 24 * time.Hour)
	leader.Keep(t.Context())
	if shown() == first {
		t.Error("it was not renewed")
	}
	for _, row := range raftstore.All(store.View(), record.CertFiles) {
		if bytes.Contains(row.ValueSealed, []byte("PRIVATE KEY")) {
			t.Errorf("%s is not sealed", row.ID)
		}
	}
}

// Authorities limit how often one may fail.
func TestAFailedNameIsLeftAloneEverLonger(t *testing.T) {
	z := newZone(t)
	_, roots := newPebble(t, z)
	now := newClock()
	a := newACME(t, "https://127.0.0.1:1/dir", roots, z.addr, testcluster.New(t, 1).Leader().Store, now.now)
	for i, want := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		a.Keep(ctx)
		cancel()
		f := a.failed["*."+domain]
		if f.after != want {
			t.Errorf("after failure %d: %s, want %s", i+1, f.after, want)
		}
		if now.advance(want - time.Second); a.due("*." + domain) {
			t.Error("it is tried too soon")
		}
		now.advance(2 * time.Second)
	}
}

func TestFilesInTheStore(t *testing.T) {
	r := &rows{store: testcluster.New(t, 1).Leader().Store, sealer: keyring(t), clock: time.Now, locks: map[string]chan struct{}{}}
	ctx := t.Context()
	for _, key := range []string{"a/b/c", "a/b/d", "a/e", "f"} {
		if err := r.Store(ctx, key, []byte("value of "+key)); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := r.Load(ctx, "a/b/c"); err != nil || string(v) != "value of a/b/c" {
		t.Errorf("%s %v", v, err)
	}
	list := func(path string, recursive bool, want ...string) {
		t.Helper()
		got, err := r.List(ctx, path, recursive)
		slices.Sort(got)
		if !slices.Equal(got, want) || (err == nil) != (len(want) > 0) {
			t.Errorf("List(%s, %v): %q, %v", path, recursive, got, err)
		}
	}
	list("a", true, "a/b/c", "a/b/d", "a/e")
	list("a", false, "a/b", "a/e")
	list("nothing", true)
	if info, err := r.Stat(ctx, "a/e"); err != nil || info.Size != 12 || !info.IsTerminal {
		t.Errorf("%+v %v", info, err)
	}
	if info, err := r.Stat(ctx, "a/b"); err != nil || info.IsTerminal {
		t.Errorf("%+v %v", info, err)
	}
	if err := r.Delete(ctx, "a/b"); err != nil {
		t.Fatal(err)
	}
	list("a", true, "a/e")
	if _, err := r.Load(ctx, "a/b/c"); !errors.Is(err, fs.ErrNotExist) || r.Exists(ctx, "a/b") {
		t.Errorf("%v", err)
	}
	if err := r.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := r.Lock(soon, "x"); err == nil {
		t.Error("locked twice")
	}
	locked := make(chan error, 1)
	go func() { locked <- r.Lock(ctx, "x") }()
	if err := errors.Join(r.Unlock(ctx, "x"), <-locked, r.Unlock(ctx, "x")); err != nil {
		t.Error(err)
	}
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
