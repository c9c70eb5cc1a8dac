package guestclient_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

// A guest that finds a request too large says so, and closes the connection on the rest.
func TestARefusalOfWhatWasNotReadIsRead(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	refused := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			refused <- err
			return
		}
		defer conn.Close()
		const body = `{"error":"body over 100 bytes"}`
		if _, err = http.ReadRequest(bufio.NewReader(conn)); err == nil {
			_, err = fmt.Fprintf(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		}
		refused <- err
	}()
	c := guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	})
	_, err = c.Run(t.Context(), guestapi.ExecRequest{Argv: []string{strings.Repeat("x", 16<<20)}})
	var refusal *guestclient.Error
	if !errors.As(err, &refusal) || refusal.Status != http.StatusRequestEntityTooLarge || refusal.Message != "body over 100 bytes" {
		t.Errorf("got %v", err)
	}
	if err := <-refused; err != nil {
		t.Error(err)
	}
}

// A guest need not keep to the limit that it is told.
func TestRunKeepsTheLimitAgainstAGuestThatDoesNot(t *testing.T) {
	const printed = 20 << 20
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+guestapi.Upgrade+"\r\n\r\n")
		piece := bytes.Repeat([]byte("x"), guestapi.MaxFrame)
		for n := 0; n < printed; n += len(piece) {
			if guestapi.WriteFrame(conn, guestapi.FrameStdout, piece) != nil || guestapi.WriteFrame(conn, guestapi.FrameStderr, piece) != nil {
				return
			}
		}
		raw, _ := json.Marshal(guestapi.ExecExit{ExitCode: 3})
		_ = guestapi.WriteFrame(conn, guestapi.FrameExit, raw)
	}))
	defer server.Close()
	c := guestclient.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	for limit, most := range map[int64]int{0: 8 << 20, 1000: 1000, printed + 1: printed} {
		got, err := c.Run(t.Context(), guestapi.ExecRequest{Argv: []string{"x"}, OutputLimitBytes: limit})
		if err != nil || got.ExitCode != 3 {
			t.Fatal(got.ExecExit, err)
		}
		if len(got.Stdout) != most || len(got.Stderr) != most || got.Truncated != (most < printed) {
			t.Errorf("with a limit of %d: %d and %d bytes are kept, truncated %v", limit, len(got.Stdout), len(got.Stderr), got.Truncated)
		}
	}
}
