package webhook_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// failed waits for an attempt to fail and returns the reason and the status.
func (r *rig) failed(id string) (why string, status int) {
	r.t.Helper()
	d := r.becomes(id, api.WebhookFailed, 1)
	a := d.Attempts[0]
	if a.Error == nil {
		r.t.Fatalf("%+v", d)
	}
	if a.StatusCode != nil {
		status = *a.StatusCode
	}
	return *a.Error, status
}

func TestWhatIsNoSuccess(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	target := newReceiver(t, nil)
	tls := httptest.NewTLSServer(target)
	defer tls.Close()
	nobody := httptest.NewServer(nil)
	nobody.Close()
	redirect := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, target.URL, code) }
	}
	for name, c := range map[string]struct {
		url    string
		status int
		why    string
	}{
		"301":                     {newReceiver(t, redirect(301)).URL, 301, "redirects are not followed"},
		"302":                     {newReceiver(t, redirect(302)).URL, 302, "redirects are not followed"},
		"307":                     {newReceiver(t, redirect(307)).URL, 307, "redirects are not followed"},
		"308":                     {newReceiver(t, redirect(308)).URL, 308, "redirects are not followed"},
		"304":                     {newReceiver(t, status(304)).URL, 304, "redirects are not followed"},
		"404":                     {newReceiver(t, status(404)).URL, 404, "the status is not 2xx"},
		"410":                     {newReceiver(t, status(410)).URL, 410, "the status is not 2xx"},
		"500":                     {newReceiver(t, status(500)).URL, 500, "the status is not 2xx"},
		"503":                     {newReceiver(t, status(503)).URL, 503, "the status is not 2xx"},
		"nobody":                  {nobody.URL, 0, "the connection was refused"},
		"unknown authority":       {tls.URL, 0, "the certificate is not valid"},
		"TLS where there is none": {strings.Replace(target.URL, "http:", "https:", 1), 0, "the connection failed, or was no HTTP"},
		"long headers": {newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}).URL, 0, "the connection failed, or was no HTTP"},
		"cut off": {newReceiver(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }).URL, 0, "the connection failed, or was no HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			e := r.register(c.url)
			r.test(e.ID)
			if why, status := r.failed(e.ID); why != c.why || status != c.status {
				t.Errorf("%q with status %d, want %q with %d", why, status, c.why, c.status)
			}
			if err := r.webhooks().Delete(t.Context(), caller, e.ID); err != nil {
				t.Error(err)
			}
		})
	}
	if n := len(target.requests()); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestPrivateAddressesAreNotDialled(t *testing.T) {
	r := newRig(t, 1, webhook.Config{Allowed: webhook.Public})
	hook := newReceiver(t, nil)
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		e := r.register(strings.Replace(hook.URL, "127.0.0.1", host, 1))
		r.test(e.ID)
		if why, _ := r.failed(e.ID); why != "the address is not public" {
			t.Errorf("%s: %s", host, why)
		}
	}
	if n := len(hook.requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// The endpoint was registered when every address was allowed.
func TestNothingIsSentInPlaintext(t *testing.T) {
	r := newRigOf(t, 1, webhook.Config{Allowed: func(netip.Addr) bool { return true }})
	hook := newReceiver(t, nil)
	e := r.register("https://example.com")
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.WebhookEndpoints, e.ID)
		row = row.Clone()
		row.URL = hook.URL
		raftstore.Put(tx, record.WebhookEndpoints, row)
		return nil
	})
	r.test(e.ID)
	if why, _ := r.failed(e.ID); why != "the URL does not begin with https://" || len(hook.requests()) != 0 {
		t.Errorf("%s, %d requests", why, len(hook.requests()))
	}
}

// nameServer runs a name server that answers questions of type A and AAAA with what answer
// returns, and returns a resolver that asks it. An answer of the other type is left out.
func nameServer(t *testing.T, answer func(q dns.Question) netip.Addr) *net.Resolver {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: packets, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET}
		switch a := answer(q.Question[0]); {
		case h.Rrtype == dns.TypeA && a.Is4():
			m.Answer = []dns.RR{&dns.A{Hdr: h, A: a.AsSlice()}}
		case h.Rrtype == dns.TypeAAAA && a.Is6():
			m.Answer = []dns.RR{&dns.AAAA{Hdr: h, AAAA: a.AsSlice()}}
		}
		_ = w.WriteMsg(m)
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe()
	}()
	t.Cleanup(func() { _ = packets.Close(); <-done })
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", packets.LocalAddr().String())
	}
	return &net.Resolver{PreferGo: true, Dial: dial}
}

// rebinding returns a resolver that answers with the next address each time, and the number
// of questions.
func rebinding(t *testing.T, addresses ...string) (*net.Resolver, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	return nameServer(t, func(q dns.Question) netip.Addr {
		if q.Qtype != dns.TypeA {
			return netip.Addr{}
		}
		return netip.MustParseAddr(addresses[min(int(asked.Add(1)), len(addresses))-1])
	}), &asked
}

// Whatever a name leads to, in whatever form, is checked when it is dialled.
func TestNamesOfPrivateAddresses(t *testing.T) {
	addresses := []string{
		"127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255",
		"::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1", "2002:7f00:1::1", "2001::1", "fd00::1", "fe80::1", "ff02::1",
	}
	resolver := nameServer(t, func(q dns.Question) netip.Addr {
		n, err := strconv.Atoi(strings.TrimSuffix(q.Name, ".hooks.example.com."))
		if err != nil {
			return netip.Addr{}
		}
		return netip.MustParseAddr(addresses[n])
	})
	r := newRig(t, 1, webhook.Config{Resolver: resolver, Allowed: webhook.Public})
	hook := newReceiver(t, nil)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(hook.URL, "http://"))
	for n, address := range addresses {
		t.Run(address, func(t *testing.T) {
			e := r.register(fmt.Sprintf("http://%d.hooks.example.com:%s", n, port))
			r.test(e.ID)
			if why, _ := r.failed(e.ID); why != "the address is not public" {
				t.Error(why)
			}
			if err := r.webhooks().Delete(t.Context(), caller, e.ID); err != nil {
				t.Error(err)
			}
		})
	}
	if n := len(hook.requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// 127.0.0.1 stands for a public address and 127.0.0.2 for a private one. The receiver
// listens on both.
func TestANameThatIsPublicFirstAndThenPrivate(t *testing.T) {
	resolver, asked := rebinding(t, "127.0.0.1", "127.0.0.2")
	r := newRig(t, 1, webhook.Config{Resolver: resolver, Allowed: func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.1") }})
	hook := &receiver{}
	server := httptest.NewUnstartedServer(hook)
	server.Listener.Close()
	var err error
	if server.Listener, err = net.Listen("tcp4", "0.0.0.0:0"); err != nil {
		t.Fatal(err)
	}
	server.Start()
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	e := r.register("http://hook.example.com:" + port)
	r.test(e.ID)
	r.becomes(e.ID, api.WebhookDelivered, 1)
	r.test(e.ID)
	if why, _ := r.failed(e.ID); why != "the address is not public" || asked.Load() != 2 {
		t.Errorf("%s, after %d questions", why, asked.Load())
	}
	if n := len(hook.requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// Only the status counts, however the answer goes on.
func TestWhatIsASuccess(t *testing.T) {
	r := newRig(t, 1, webhook.Config{Timeout: time.Hour})
	var sent atomic.Int64
	for name, c := range map[string]struct {
		status int
		answer http.HandlerFunc
	}{
		"200": {200, status(200)},
		"201": {201, status(201)},
		"204": {204, status(204)},
		"299": {299, status(299)},
		"closed early": {200, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		"1 GB": {200, func(w http.ResponseWriter, _ *http.Request) {
			piece := make([]byte, 1<<20)
			for range 1 << 10 {
				n, err := w.Write(piece)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := r.register(newReceiver(t, c.answer).URL)
			r.test(e.ID)
			d := r.becomes(e.ID, api.WebhookDelivered, 1)
			if a := d.Attempts[0]; a.StatusCode == nil || *a.StatusCode != c.status || a.Error != nil {
				t.Errorf("%+v", a)
			}
			if err := r.webhooks().Delete(t.Context(), caller, e.ID); err != nil {
				t.Error(err)
			}
		})
	}
	if n := sent.Load(); n == 0 || n > 100<<20 { // what fits into buffers may be sent
		t.Errorf("%d bytes of 1 GB were taken", n)
	}
}

// silent returns a handler that sends head and then nothing, until the peer is gone.
func silent(head string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(head)); err == nil {
			_, _ = conn.Read(make([]byte, 1))
		}
	}
}

// slow returns a handler that sends head and then one byte after another, without end.
func slow(head string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(head)); err != nil {
			return
		}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
		}
	}
}

func TestSlowAnswersEnd(t *testing.T) {
	r := newRig(t, 1, webhook.Config{Timeout: 300 * time.Millisecond})
	for name, head := range map[string]string{
		"no status": "", "no end of the header": "HTTP/1.1 200 OK\r\nX: ", "informational": "HTTP/1.1 103 Early Hints\r\nX: ",
	} {
		t.Run(name, func(t *testing.T) {
			e := r.register(newReceiver(t, slow(head)).URL)
			r.test(e.ID)
			if why, status := r.failed(e.ID); why == "" || status != 0 {
				t.Errorf("%q, status %d", why, status)
			}
		})
	}
	// net/http hands such a connection over, and no longer ends it with the context.
	t.Run("another protocol", func(t *testing.T) {
		e := r.register(newReceiver(t, silent("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")).URL)
		r.test(e.ID)
		if why, status := r.failed(e.ID); why != "the status is not 2xx" || status != 101 {
			t.Errorf("%q, status %d", why, status)
		}
	})
	t.Run("no end of the body", func(t *testing.T) {
		e := r.register(newReceiver(t, slow("HTTP/1.1 200 OK\r\n\r\n")).URL)
		r.test(e.ID)
		r.becomes(e.ID, api.WebhookDelivered, 1)
	})
}

func TestADeadEndpointDelaysNoOther(t *testing.T) {
	r := newRig(t, 1, webhook.Config{Timeout: time.Hour})
	release := make(chan struct{})
	dead := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	live := newReceiver(t, nil)
	d, l := r.register(dead.URL), r.register(live.URL)
	for range 3 {
		r.enqueue("ws", api.WebhookQuotaWarning, api.WebhookQuota{})
	}
	testcluster.Await(t, "what the live one is to get", func() bool { return len(live.times()) == 3 && len(dead.requests()) == 1 })
	for i, got := range r.deliveries(d.ID) {
		if got.Status != api.WebhookPending || i < 2 && len(got.Attempts) != 0 || i == 2 && (len(got.Attempts) != 1 || got.Attempts[0].DurationMS != nil) {
			t.Errorf("%d: %+v", i, got)
		}
	}
	r.becomes(l.ID, api.WebhookDelivered, 1)
}

// The limit on a response applies as it arrives, so the response is not decompressed.
func TestAnswersAreNotDecompressed(t *testing.T) {
	r := newRig(t, 1, webhook.Config{})
	hook := newReceiver(t, nil)
	e := r.register(hook.URL)
	r.test(e.ID)
	r.becomes(e.ID, api.WebhookDelivered, 1)
	if got := hook.requests()[0].header.Values("Accept-Encoding"); len(got) > 0 {
		t.Errorf("asks for %q", got)
	}
}
