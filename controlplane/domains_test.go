package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/domain"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// nameServer answers for all names: with one TXT record of a name, and with this machine.
type nameServer struct {
	addr string
	mu   sync.Mutex
	txt  map[string]string
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	n := &nameServer{txt: map[string]string{}}
	var tcp net.Listener
	var udp net.PacketConn
	for range 20 { // one port number for both
		tcp = loopbackPort(t)
		var err error
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			break
		}
		tcp.Close()
	}
	n.addr = tcp.Addr().String()
	for _, s := range []*dns.Server{{Listener: tcp}, {PacketConn: udp}} {
		s.Handler = n
		ready, done := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
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
	return n
}

func (n *nameServer) ServeDNS(w dns.ResponseWriter, in *dns.Msg) {
	out := new(dns.Msg)
	out.SetReply(in)
	q := in.Question[0]
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch txt := n.txt[q.Name]; {
	case q.Qtype == dns.TypeTXT && txt != "":
		out.Answer = append(out.Answer, &dns.TXT{Hdr: header, Txt: []string{txt}})
	case q.Qtype == dns.TypeA:
		out.Answer = append(out.Answer, &dns.A{Hdr: header, A: net.IPv4(127, 0, 0, 1)})
	case q.Qtype == dns.TypeTXT:
		out.Rcode = dns.RcodeNameError
	}
	_ = w.WriteMsg(out)
}

func (n *nameServer) set(name, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.txt[name+"."] = value
}

// pebble is an ACME server that proves names at this port without TLS.
func pebble(t *testing.T, n *nameServer, port int) (directory, roots string, authority func() *x509.CertPool) {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 90 * 24 * 3600}})
	front := wfe.New(quiet, store, va.New(quiet, port, 0, false, n.addr, store), issuer, nil, false, false, 0, 0)
	server := httptest.NewTLSServer(front.Handler())
	t.Cleanup(server.Close)
	roots = filepath.Join(t.TempDir(), "pebble.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return server.URL + wfe.DirectoryPath, roots, func() *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AddCert(issuer.GetRootCert(0).Cert)
		return pool
	}
}

// domainRig is a replica with ports for domains, and an app of a workspace.
type domainRig struct {
	*Server
	t       *testing.T
	dns     *nameServer
	client  *api.Client
	roots   *x509.CertPool
	domains net.Listener
	plain   net.Listener
}

func runDomains(t *testing.T, change func(*Config, *domainRig)) *domainRig {
	t.Helper()
	r := &domainRig{t: t, dns: newNameServer(t), domains: loopbackPort(t), plain: loopbackPort(t)}
	r.Server = runRouter(t, func(c *Config) {
		c.DBDevCA = t.TempDir()
		c.AppSuffix, c.PreviewSuffix = "app.berth.dev", "preview.berth.dev"
		c.DomainResolvers, c.DomainListener, c.HTTPListener = []string{r.dns.addr}, r.domains, r.plain
		change(c, r)
	})
	testcluster.Await(t, "a leader", func() bool {
		resp, _ := raw(t, "GET", "http://"+r.Addr()+"/v1/admin/agents", adminToken, "")
		return resp.StatusCode == 200
	})
	key := "brt_aaaaaaaa_" + strings.Repeat("s", 32)
	if err := r.store.Update(t.Context(), func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "key"}, WorkspaceID: "ws", Prefix: "aaaaaaaa", SHA256: org.APIKeyDigest(key), LastUsedAt: time.Now()})
		raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-1"}, WorkspaceID: "ws", Status: record.AppCreated})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.client, err = api.NewClient(nil, key, "http://"+r.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	return r
}

// verified claims a domain and proves it.
func (r *domainRig) verified(name string) *api.AppDomain {
	r.t.Helper()
	d, err := r.client.CreateAppDomain(r.t.Context(), "app-1", api.CreateAppDomain{Domain: name}, "")
	if err != nil {
		r.t.Fatal(err)
	}
	r.dns.set(d.DNS[0].Name, d.DNS[0].Value)
	d, err = r.client.VerifyAppDomain(r.t.Context(), "app-1", name)
	if err != nil || d.Status != api.DomainVerified {
		r.t.Fatalf("%+v %v", d, err)
	}
	return d
}

// get sends a request to a port by TLS of a name, or without if that is "".
func (r *domainRig) get(l net.Listener, sni, host, path string) (*http.Response, string, error) {
	r.t.Helper()
	scheme := "http"
	if sni != "" {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, scheme+"://"+l.Addr().String()+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Host = host
	req.Header.Set("User-Agent", "curl/8")
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.roots, ServerName: sni, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// check looks at all ports of a domain that has a certificate.
func (r *domainRig) check(name string) {
	r.t.Helper()
	resp, body, err := r.get(r.domains, name, name, "/a?b=c")
	if err != nil || resp.StatusCode != 404 || !strings.Contains(body, "app has no live deployment") {
		r.t.Fatalf("by TLS: %v %q", err, body)
	}
	if resp, _, err := r.get(r.domains, name, "app-1.app.berth.dev", "/"); err != nil || resp.StatusCode != http.StatusMisdirectedRequest {
		r.t.Errorf("another name over its TLS: %v %v", resp, err)
	}
	if _, _, err := r.get(r.domains, "unknown.example.com", "unknown.example.com", "/"); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		r.t.Errorf("a name that is no domain: %v", err)
	}
	for host, want := range map[string]string{name: "https://" + name + "/a?b=c", strings.ToUpper(name) + ":80": "https://" + name + "/a?b=c"} {
		if resp, _, err := r.get(r.plain, "", host, "/a?b=c"); err != nil || resp.StatusCode != 308 || resp.Header.Get("Location") != want {
			r.t.Errorf("without TLS at %s: %v %v", host, resp, err)
		}
	}
	for _, host := range []string{"unknown.example.com", r.Addr(), "app-1.app.berth.dev"} {
		for _, path := range []string{"/", "/v1/apps", "/.well-known/acme-challenge/x", "/internal/v1/raft/status"} {
			if resp, _, err := r.get(r.plain, "", host, path); err != nil || resp.StatusCode != 404 {
				r.t.Errorf("without TLS at %s%s: %v %v", host, path, resp, err)
			}
		}
	}
	// The public port, which is plain here, serves it as it serves apps.
	if _, body, err := r.get(r.public, "", name, "/v1/apps"); err != nil || !strings.Contains(body, "app has no live deployment") {
		r.t.Errorf("at the public port: %v %q", err, body)
	}
	if err := r.client.DeleteAppDomain(r.t.Context(), "app-1", name); err != nil {
		r.t.Fatal(err)
	}
	if _, _, err := r.get(r.domains, name, name, "/"); err == nil {
		r.t.Error("it is served when it has been given up")
	}
	if resp, _, err := r.get(r.plain, "", name, "/"); err != nil || resp.StatusCode != 404 {
		r.t.Errorf("%v %v", resp, err)
	}
}

func TestDomainsWithADevelopmentAuthority(t *testing.T) {
	dir := t.TempDir()
	r := runDomains(t, func(c *Config, _ *domainRig) { c.DomainDevCA = dir })
	raw, err := os.ReadFile(filepath.Join(dir, certs.DevDomainCAFile))
	if err != nil {
		t.Fatal(err)
	}
	r.roots = x509.NewCertPool()
	r.roots.AppendCertsFromPEM(raw)
	for _, name := range []string{"app.berth.dev", "x.preview.berth.dev", "db.example.com"} {
		if _, err := r.client.CreateAppDomain(t.Context(), "app-1", api.CreateAppDomain{Domain: name}, ""); api.StatusOf(err) != 400 {
			t.Errorf("%s: %v", name, err)
		}
	}
	d := r.verified("shop.example.com")
	if d.Certificate.Status != api.CertificateIssued || d.URL != "https://shop.example.com/" || d.DNS[1].Value != "app-1.app.berth.dev" {
		t.Errorf("%+v", d)
	}
	r.check("shop.example.com")
}

func TestDomainsWithACME(t *testing.T) {
	tier.Slow(t)
	var authority func() *x509.CertPool
	r := runDomains(t, func(c *Config, r *domainRig) {
		c.ACMEDirectory, c.ACMERoots, authority = pebble(t, r.dns, r.plain.Addr().(*net.TCPAddr).Port)
		c.ACMEEmail = "ops@example.com"
	})
	if r.acme != nil || r.certs.public != nil {
		t.Error("the public API has certificates that cannot be proven")
	}
	r.roots = authority()
	r.verified("shop.example.com")
	testcluster.Await(t, "a certificate", func() bool {
		<-time.After(100 * time.Millisecond) // a workspace may ask 25 times a second
		d, err := r.client.GetAppDomain(t.Context(), "app-1", "shop.example.com")
		return err == nil && d.Certificate.Status == api.CertificateIssued && d.Certificate.ExpiresAt != nil
	})
	r.check("shop.example.com")
}

// Without an authority domains are served all the same, and say why they have no TLS.
func TestDomainsWithoutAnAuthority(t *testing.T) {
	r := runDomains(t, func(c *Config, r *domainRig) {
		c.DomainListener = nil
		r.domains.Close()
	})
	d := r.verified("shop.example.com")
	if d.Certificate.Status != api.CertificateUnavailable || !strings.Contains(d.Certificate.Error, "no ACME") || d.URL != "http://shop.example.com/" {
		t.Errorf("%+v", d)
	}
	for _, l := range []net.Listener{r.plain, r.public} {
		if _, body, err := r.get(l, "", "shop.example.com", "/"); err != nil || !strings.Contains(body, "app has no live deployment") {
			t.Errorf("%v %q", err, body)
		}
	}
}

func TestSettingsOfDomains(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"a pattern without a domain": {func(c *Config) { c.DomainURL = "https://x/" }, "BERTH_DOMAIN_URL"},
		"no port":                    {func(c *Config) { c.HTTPListen = "80" }, "BERTH_HTTP_LISTEN"},
		"a resolver without a port":  {func(c *Config) { c.DomainResolvers = []string{"1.1.1.1"} }, "BERTH_DOMAIN_RESOLVERS"},
		"a port without authority":   {func(c *Config) { c.DomainListen = ":443" }, "BERTH_DOMAIN_LISTEN needs"},
		"an authority without port":  {func(c *Config) { c.DomainDevCA = "x" }, "BERTH_DOMAIN_DEV_CA needs"},
		"ACME for domains alone":     {func(c *Config) { c.ACMEDirectory, c.DomainListen = "https://acme.example/dir", ":443" }, ""},
		"ACME beside files":          {func(c *Config) { c.ACMEDirectory, c.TLSCert, c.TLSKey = "https://acme.example/dir", "c", "k" }, ""},
		"ACME without a proof of the API's name": {func(c *Config) {
			c.ACMEDirectory, c.DomainListen, c.ACMENames = "https://acme.example/dir", ":443", []string{"api.example.com"}
		}, "BERTH_ACME_TSIG_NAME"},
	} {
		cfg := Config{}
		c.change(&cfg)
		err := errors.Join(cfg.checkACME(), cfg.checkDomains())
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for want, cfg := range map[domain.Authority]Config{
		domain.NoAuthority: {ACMEDirectory: "https://acme.example/dir"}, domain.Development: {Domains: Domains{DomainListen: ":443", DomainDevCA: "x"}, ACMEDirectory: "https://acme.example/dir"},
		domain.ACME: {TLSCert: "c", ACMEDirectory: "https://acme.example/dir"},
	} {
		if got := cfg.domainAuthority(); got != want {
			t.Errorf("%+v: %v", cfg, got)
		}
	}
	cfg := Config{Domains: Domains{DomainURL: "https://{domain}:8443/"}}
	if got := cfg.domainURL("a.example.com"); got != "https://a.example.com:8443/" {
		t.Error(got)
	}
}
