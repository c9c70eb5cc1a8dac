package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/internal/testca"
)

// verified is what the TLS layer says of a peer whose certificate it checked.
func verified(commonName string) *tls.ConnectionState {
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: commonName}}}}}
}

// While the cluster's authority is exchanged, others count from the next connection on.
func TestTheAuthoritiesThatCountMayChange(t *testing.T) {
	first, second := testca.New(t), testca.New(t)
	both := x509.NewCertPool()
	for _, ca := range []*testca.CA{first, second} {
		both.AppendCertsFromPEM(ca.PEM())
	}
	var now atomic.Pointer[x509.CertPool]
	now.Store(first.Pool)
	s := New(Config{
		Boxes: &boxes{}, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") }),
		Log: slog.New(slog.DiscardHandler), CAs: now.Load,
		GetCertificate: func() func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert := first.Issue(t, "host:h1")
			return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
		}(),
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		must(t, s.Shutdown(ctx))
		must(t, <-served)
	})
	callers := map[*testca.CA]*http.Client{}
	for _, ca := range []*testca.CA{first, second} {
		callers[ca] = &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: hostapi.PeerTLS(ca.Issue(t, "replica:a"), both, hostapi.IsHost("h1")),
		}}
	}
	for _, c := range []struct {
		pool          *x509.CertPool
		first, second bool
	}{{first.Pool, true, false}, {both, true, true}, {second.Pool, false, true}} {
		now.Store(c.pool)
		for ca, want := range map[*testca.CA]bool{first: c.first, second: c.second} {
			resp, err := callers[ca].Get("https://" + l.Addr().String() + hostapi.PathMetrics)
			if err == nil {
				resp.Body.Close()
			}
			if got := err == nil && resp.StatusCode == http.StatusOK; got != want {
				t.Errorf("let in %v, want %v: %v", got, want, err)
			}
		}
	}
}
