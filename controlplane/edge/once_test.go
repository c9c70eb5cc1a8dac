package edge

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// A sandbox that stops while it handles a request may have acted on it. The request
// is not repeated; only the next one wakes the sandbox.
func TestARequestThatWasCutOffIsNotSentAgain(t *testing.T) {
	for name, c := range map[string]struct {
		method  string
		upgrade bool
		becomes record.SandboxStatus
		want    int
	}{
		"a GET":                     {"GET", false, record.SandboxHibernated, 502},
		"a POST without a body":     {"POST", false, record.SandboxHibernated, 502},
		"an upgrade":                {"GET", true, record.SandboxHibernated, 502},
		"a GET, by a pause":         {"GET", false, record.SandboxPaused, 409},
		"a POST, by a pause":        {"POST", false, record.SandboxPaused, 409},
		"an upgrade, by a pause":    {"GET", true, record.SandboxPaused, 409},
		"a DELETE without a body":   {"DELETE", false, record.SandboxHibernated, 502},
		"a GET, by a warm fork too": {"GET", false, record.SandboxPaused, 409},
	} {
		for _, cut := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", cut ", cut), func(t *testing.T) {
				r := newRig(t)
				var asked, wakes atomic.Int64
				r.awake = func() error { wakes.Add(1); r.become(record.SandboxRunning); return nil }
				r.serve(80, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
					asked.Add(1)
					r.become(c.becomes)
					if cut {
						r.set(&hostapi.Error{Code: hostapi.CodeNotRunning, Message: "it has stopped"})
						panic(http.ErrAbortHandler) // its connection ends, as with its VMM
					}
					<-req.Context().Done()
				}))
				// Whether the connection is kept open must make no difference.
				req := r.request(t, c.method, hostOf(80), "/", http.NoBody)
				if c.upgrade {
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", "websocket")
				}
				resp, body := r.do(t, req)
				want := c.want
				if cut {
					want = 502
				}
				if resp.StatusCode != want || asked.Load() != 1 || wakes.Load() != 0 {
					t.Errorf("%s %s; asked %d times, woken %d times", resp.Status, body, asked.Load(), wakes.Load())
				}
			})
		}
	}
}

// When a kept connection ends, the edge cannot tell whether the program had closed
// it before the request. If the sandbox cannot be reached any more, the request
// counts as cut off.
func TestAKeptConnectionThatIsCutWakesNobody(t *testing.T) {
	r := newRig(t)
	var asked, wakes atomic.Int64
	r.awake = func() error { wakes.Add(1); r.become(record.SandboxRunning); r.set(nil); return nil }
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/stop" {
			asked.Add(1)
			r.become(record.SandboxHibernated)
			r.set(&hostapi.Error{Code: hostapi.CodeNotRunning, Message: "it is hibernated"})
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "ready")
	}))
	for _, method := range []string{"GET", "POST"} {
		asked.Store(0)
		if _, body := r.do(t, r.request(t, method, hostOf(80), "/", http.NoBody)); body != "ready" {
			t.Fatal(body)
		}
		resp, body := r.do(t, r.request(t, method, hostOf(80), "/stop", http.NoBody))
		if resp.StatusCode != http.StatusBadGateway || asked.Load() != 1 || wakes.Load() != 0 {
			t.Errorf("%s: %s %s; asked %d times, woken %d times", method, resp.Status, body, asked.Load(), wakes.Load())
		}
		r.become(record.SandboxRunning)
		r.set(nil)
	}
}

func TestWhatAProgramMayNotSay(t *testing.T) {
	tier.Slow(t)
	r := newRig(t)
	var got http.Header
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		got = req.Header.Clone()
		for _, k := range []string{"Berth-Not-Leader", "berth-forwarded", "Berth-Operator", "Berth-Anything"} {
			w.Header()[k] = []string{"x"}
		}
		w.Header().Set("X-Request-Id", "forged")
		w.Header().Set("X-Berth", "its own")
	}))
	for _, method := range []string{"GET", "POST"} {
		req := r.request(t, method, hostOf(80), "/", http.NoBody)
		req.Header.Set("X-Request-Id", "mine")
		resp, _ := r.do(t, req)
		for k := range resp.Header {
			if strings.HasPrefix(strings.ToLower(k), "berth-") {
				t.Errorf("%s: %s came through", method, k)
			}
		}
		if v := resp.Header.Values("X-Request-Id"); len(v) != 1 || v[0] != "mine" || got.Get("X-Request-Id") != "mine" {
			t.Errorf("%s: the request's id is %q, and %q in the sandbox", method, v, got.Get("X-Request-Id"))
		}
		if resp.Header.Get("X-Berth") != "its own" {
			t.Errorf("%s: its own header is gone", method)
		}
	}
	for _, h := range []string{"x." + suffix, hostOf(81)} {
		if resp, _ := r.do(t, r.request(t, "GET", h, "/", http.NoBody)); !strings.HasPrefix(resp.Header.Get("X-Request-Id"), "req_") {
			t.Errorf("%s: no request id: %v", h, resp.Header)
		}
	}
}

// A follower's copy of the store may be behind, whether the sandbox was stopped or
// started meanwhile.
func TestFollowerThatIsBehind(t *testing.T) {
	for _, s := range []record.SandboxStatus{record.SandboxStarting, record.SandboxPaused, record.SandboxFailed, record.SandboxDeleting, record.SandboxHibernated} {
		r := newRig(t)
		r.leading.Store(false)
		r.become(s)
		if resp, body := r.get(t, 80, "/"); resp.StatusCode != 200 || !strings.HasPrefix(body, "from the leader") {
			t.Errorf("%s: %s %s", s, resp.Status, body)
		}
	}
}

// A client that stops reading does not keep its connection to the sandbox for ever.
func TestAViewerWhoStopsReadingIsCutOff(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Stall = 300 * time.Millisecond })
	gone := make(chan struct{})
	r.serve(80, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer close(gone)
		for chunk := make([]byte, 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	req := r.request(t, "GET", hostOf(80), "/", http.NoBody)
	resp, err := r.front.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-gone
}
