package edge

import (
	"bytes"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// of returns the lines of one message.
func (l *lines) of(message string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, `msg="`+message+`"`) {
			out = append(out, line)
		}
	}
	return out
}

// Each request has its own id, in the sandbox and in the replica's log, also on a
// connection that another request opened; the host learns the id of the latter.
func TestEachRequestHasItsOwnID(t *testing.T) {
	log := &lines{}
	r := newRig(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	var inside []string // one request at a time
	r.serve(80, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		inside = append(inside, req.Header.Get("X-Request-Id"))
	}))
	for _, id := range []string{"first", "second"} {
		req := r.request(t, http.MethodGet, hostOf(80), "/", http.NoBody)
		req.Header.Set("X-Request-Id", id)
		r.do(t, req)
	}
	if want := []string{"first", "second"}; !slices.Equal(inside, want) {
		t.Errorf("the program saw %q", inside)
	}
	if ids := r.dialledFor(); !slices.Equal(ids, []string{"first"}) {
		t.Errorf("the host was dialled for %q", ids)
	}
	var said []string
	eventually(t, "the lines", func() bool { said = log.of("request passed on"); return len(said) == 2 })
	if len(said) != 2 || !strings.Contains(said[0], "request_id=first opened_by=first") || !strings.Contains(said[1], "request_id=second opened_by=first") {
		t.Errorf("the replica logged %q", said)
	}
}
