package guestio

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// files is a guest that has files and nothing else.
type files struct {
	mu     sync.Mutex
	have   map[string]string
	writes int
	full   bool // its disk
}

func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	path := r.URL.Query().Get("path")
	content, there := f.have[path]
	switch {
	case r.URL.Path != guestapi.PathFS:
		w.WriteHeader(http.StatusTeapot)
	case r.Method == http.MethodGet && there:
		_, _ = io.WriteString(w, content)
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
	case f.full:
		w.WriteHeader(http.StatusInsufficientStorage)
	default:
		raw, _ := io.ReadAll(r.Body)
		f.have[path] = string(raw)
		f.writes++
		w.WriteHeader(http.StatusCreated)
	}
}

func TestTrust(t *testing.T) {
	const ca = "-----BEGIN CERTIFICATE-----\nY2E=\n-----END CERTIFICATE-----\n"
	for what, c := range map[string]struct {
		have, want map[string]string
		full       bool
		logs       bool
	}{
		"as it comes": {
			have: map[string]string{bundlePath: "others\n"},
			want: map[string]string{bundlePath: "others\n" + ca, authorityPath: ca},
		},
		"a bundle without a last line's end": {
			have: map[string]string{bundlePath: "others"},
			want: map[string]string{bundlePath: "others\n" + ca, authorityPath: ca},
		},
		"a child of one that has it": {
			have: map[string]string{bundlePath: "its own\n", authorityPath: ca},
			want: map[string]string{bundlePath: "its own\n", authorityPath: ca},
		},
		"interrupted in the middle": {
			have: map[string]string{bundlePath: "others\n" + ca},
			want: map[string]string{bundlePath: "others\n" + ca, authorityPath: ca},
		},
		"of another stack": {
			have: map[string]string{bundlePath: "others\nold\n", authorityPath: "old\n"},
			want: map[string]string{bundlePath: "others\nold\n" + ca, authorityPath: ca},
		},
		"an image without authorities": {have: map[string]string{}, want: map[string]string{authorityPath: ca}},
		"a full disk": {
			have: map[string]string{bundlePath: "others\n"}, full: true,
			want: map[string]string{bundlePath: "others\n"}, logs: true,
		},
		"a bundle without an end": {
			have: map[string]string{bundlePath: strings.Repeat("x", maxBundle+1)},
			want: map[string]string{bundlePath: strings.Repeat("x", maxBundle+1)}, logs: true,
		},
	} {
		t.Run(what, func(t *testing.T) {
			guest := &files{have: c.have, full: c.full}
			server := httptest.NewServer(guest)
			defer server.Close()
			var log bytes.Buffer
			g := New(Config{
				Dial: func(ctx context.Context, _, _ int) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
				},
				Authority: []byte(ca), Log: slog.New(slog.NewTextHandler(&log, nil)),
			}, nil)
			defer g.Close()
			g.Trust(t.Context(), 3)
			if !maps.Equal(guest.have, c.want) {
				t.Errorf("it has %.200q", guest.have)
			}
			if (log.Len() > 0) != c.logs {
				t.Errorf("logged: %s", log.String())
			}
			before := guest.writes
			if !c.logs {
				if g.Trust(t.Context(), 3); guest.writes != before {
					t.Error("it is written again")
				}
			}
		})
	}
}
