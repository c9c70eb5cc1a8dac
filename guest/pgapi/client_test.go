package pgapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// What a guest says comes into its host's errors, and those into heartbeats and rows.
func TestErrorsAreShortWhateverAGuestAnswers(t *testing.T) {
	const long = 1<<20 - 100
	for what, c := range map[string]struct {
		status int
		body   string
	}{
		"a refusal":                {http.StatusConflict, `{"error":"` + strings.Repeat("<", long) + `"}`},
		"a refusal's other words":  {http.StatusConflict, `{"error":"no","detail":"` + strings.Repeat("<", long/2) + `","code":"` + strings.Repeat("x", long/4) + `"}`},
		"a number out of place":    {http.StatusOK, `{"state":` + strings.Repeat("1", long) + `}`},
		"a time that is none":      {http.StatusOK, `{"started_at":"` + strings.Repeat("<", long) + `"}`},
		"a refusal that never was": {http.StatusTeapot, strings.Repeat("x", long)},
	} {
		guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		client := NewClient(func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", guest.Listener.Addr().String())
		})
		_, err := client.Status(t.Context())
		guest.Close()
		if err == nil {
			t.Fatalf("%s: no error", what)
		}
		n := len(err.Error())
		if r, ok := errors.AsType[*Refusal](err); ok {
			n += len(r.Body.Detail) + len(r.Body.Code)
		}
		if n > 4<<10 {
			t.Errorf("%s: an error of %d bytes", what, n)
		}
	}
}

// A connection that was switched to another protocol does not end with the context.
func TestAGuestThatSwitchesProtocolsIsGivenUp(t *testing.T) {
	guest := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
		_, _ = conn.Read(make([]byte, 1)) // until the client leaves
	}))
	defer guest.Close()
	client := NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	})
	if _, err := client.Status(t.Context()); err == nil {
		t.Error("it is taken for a status")
	}
}
