package appapi_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/appapi"
)

// An app's guestapp is as old as its build, and takes bodies of 2 MiB. The variables of an
// app and of its previews have more than a quarter of that.
func TestVariablesCountAsTheyAre(t *testing.T) {
	value := strings.Repeat("<&>", 64<<10/3)
	env := map[string]string{}
	for _, name := range strings.Split("ABCDEFGH", "") {
		env[name] = value
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		var got appapi.Build
		if err == nil {
			err = json.Unmarshal(raw, &got)
		}
		if err != nil || len(got.Env) != len(env) || got.Env["H"] != value || len(raw) > 1<<20 {
			t.Errorf("%d bytes with %d variables: %v", len(raw), len(got.Env), err)
		}
		_, _ = io.WriteString(w, "{}")
	}))
	defer server.Close()
	c := appapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	if _, err := c.Build(t.Context(), appapi.Build{ID: "dep-1", Env: env}); err != nil {
		t.Error(err)
	}
}

// A connection that was switched to another protocol does not end with the context.
func TestAGuestThatSwitchesProtocolsIsGivenUp(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
		_, _ = conn.Read(make([]byte, 1)) // until the client leaves
	}))
	defer server.Close()
	c := appapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	if _, err := c.Status(t.Context()); err == nil {
		t.Error("it is taken for a status")
	}
}
