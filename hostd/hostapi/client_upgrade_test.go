package hostapi_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// A stream that is kept for another request must not hold what was meant for
// the one before, wherever it lies: in the kernel, in TLS, or in a buffer.
func TestQuiet(t *testing.T) {
	next, done := make(chan string), make(chan struct{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", hostapi.UpgradeTCP)
		rw.Flush()
		for text := range next {
			// Each is a record of its own, and has arrived when Write returns.
			if _, err := io.WriteString(conn, text); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	client := hostapi.NewClient(server.Listener.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS13})
	defer client.Close()
	s, err := client.Dial(t.Context(), hostapi.Call{}, "k7m2qz4xw3v5n6a2j7p4t5r6sd", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	send := func(text string) { next <- text; <-done }
	quiet := func(want bool, when string) {
		t.Helper()
		for range 2 { // to look changes nothing
			if got := s.Quiet(); got != want {
				t.Errorf("%s: quiet is %v", when, got)
			}
		}
	}
	read := func(want string) {
		t.Helper()
		buf := make([]byte, len(want))
		if _, err := io.ReadFull(s, buf); err != nil || string(buf) != want {
			t.Fatalf("read %q, %v, want %q", buf, err, want)
		}
	}

	quiet(true, "at first")
	send("one")
	quiet(false, "with data in the kernel")
	read("o")
	quiet(false, "with data in a buffer")
	read("ne")
	quiet(true, "when all is read")
	send("two")
	send("three")
	read("two")
	quiet(false, "with a record that TLS has read ahead")
	read("three")
	quiet(true, "when all is read again")
	close(next)
	if n, err := s.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("read %d, %v behind the end", n, err)
	}
	quiet(false, "at its end")
}
