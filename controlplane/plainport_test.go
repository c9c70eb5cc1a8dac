package controlplane

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/certs"
	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/controlplane/stall"
)

// The port without TLS, which anybody reaches, waits for no body for ever.
func TestThePlainPortDoesNotWaitForBodies(t *testing.T) {
	before := stall.RestTime
	t.Cleanup(func() { stall.RestTime = before })
	stall.RestTime = 50 * time.Millisecond
	log := slog.New(slog.DiscardHandler)
	s := &Server{log: log, edge: edge.New(edge.Config{
		Log: log, Apps: &edge.Apps{Domain: func(name string) (string, bool) { return "app-a", name == "a.example.com" }},
	})}
	s.cfg.DomainURL = "https://{domain}/"
	s.domainTLS = struct{ certs.DomainSource }{}
	t.Cleanup(s.edge.Close)
	server := httpapi.NewServer(http.HandlerFunc(s.servePlain), log)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(lis) }() // until Close
	t.Cleanup(func() { server.Close() })
	for host, want := range map[string]int{"a.example.com": http.StatusPermanentRedirect, "b.example.com": http.StatusNotFound} {
		conn, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: "+host+"\r\nContent-Length: 10\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != want || !resp.Close {
			t.Errorf("%s: %+v, %v", host, resp, err)
		}
	}
}
