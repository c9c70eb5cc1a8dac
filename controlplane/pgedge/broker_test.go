package pgedge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// guest serves guestpg's port in the database's box.
func (r *rig) guest(h http.HandlerFunc) {
	s := httptest.NewServer(h)
	r.t.Cleanup(s.Close)
	r.host.set(func(h *host) { h.ports["998"] = s.Listener.Addr().String() })
}

func TestTheBrokerTokenIsOfItsDatabaseAlone(t *testing.T) {
	r := newRig(t)
	b := NewBroker(r.reach)
	admit := func(id string, authorization ...string) (string, error) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
		req.Header["Authorization"] = authorization
		return b.Admit(req, id)
	}
	if ws, err := admit(database, "Bearer "+token); err != nil || ws != "ws" {
		t.Error(ws, err)
	}
	if _, err := admit(database); apierror.As(err).Detail != apierror.DetailMissingToken {
		t.Errorf("no header: %v", err)
	}
	deny := func(what, id, token string) {
		t.Helper()
		if _, err := admit(id, "Bearer "+token); apierror.CodeOf(err) != apierror.EUnauthorized || apierror.As(err).Detail != apierror.DetailInvalidToken {
			t.Errorf("%s: %v", what, err)
		}
	}
	deny("another token", database, "another")
	deny("an unknown database", "0b8b1c1e-0000-4c56-9a51-0d4b7f6f1c11", token)
	r.change(func(e *Entry) { e.Verifier, e.BrokerTokenHash = "", nil })
	deny("no credentials yet", database, "x")
	r.change(func(e *Entry) { *e = entry(); e.Status = record.DatabaseDeleting })
	deny("a deleted one", database, token)
}

func TestACallWakesTheDatabaseAndPassesThrough(t *testing.T) {
	r := newRig(t)
	r.guest(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, "%s %s %s %s", req.Method, req.URL.Path, req.Header.Get("Accept"), body)
	})
	r.sleep()
	resp, err := NewBroker(r.reach).Call(t.Context(), database, http.MethodPost, "query", http.Header{"Accept": {"x/y"}}, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadRequest || string(raw) != "POST /v1/query x/y {}" {
		t.Errorf("%d %s", resp.StatusCode, raw)
	}
	if r.wakes.Load() != 1 {
		t.Errorf("%d wakes", r.wakes.Load())
	}
}

// A database that had to be booted from its disk starts PostgreSQL first, and its callers
// are held until then. What may have run is not sent again.
func TestACallIsHeldWhilePostgreSQLStarts(t *testing.T) {
	for name, c := range map[string]struct {
		header       string // of the refusals
		wants, calls int
	}{"nothing ran": {"1", http.StatusOK, 4}, "a statement failed": {"", http.StatusServiceUnavailable, 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var calls atomic.Int64
			r.guest(func(w http.ResponseWriter, req *http.Request) {
				if body, err := io.ReadAll(req.Body); string(body) != `{"sql":"SELECT 1"}` || err != nil || req.Header.Get("Accept") != "x/y" {
					t.Errorf("call %d has body %q, %v", calls.Load(), body, err)
				}
				if calls.Add(1) > 3 {
					w.WriteHeader(http.StatusOK)
					return
				}
				if c.header != "" {
					w.Header().Set(pgapi.HeaderRetryAfter, c.header)
				}
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `{"error":"PostgreSQL does not take connections","sqlstate":"57P03"}`)
			})
			resp, err := NewBroker(r.reach).Call(t.Context(), database, http.MethodPost, "query", http.Header{"Accept": {"x/y"}}, strings.NewReader(`{"sql":"SELECT 1"}`))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.wants || int(calls.Load()) != c.calls {
				t.Errorf("status %d after %d calls", resp.StatusCode, calls.Load())
			}
		})
	}
}

// There is an end to that: then the answer is the guest's.
func TestACallToADatabaseThatNeverServes(t *testing.T) {
	r := newRig(t)
	r.guest(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(pgapi.HeaderRetryAfter, "1")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "why")
	})
	before := brokerWait
	brokerWait = timescale.Limit(2 * time.Second) // each connection is made within it, too
	defer func() { brokerWait = before }()
	resp, err := NewBroker(r.reach).Call(t.Context(), database, http.MethodGet, "schema", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || string(raw) != "why" {
		t.Errorf("%d %s", resp.StatusCode, raw)
	}
}

func TestTheCallersEndEndsTheStatement(t *testing.T) {
	r := newRig(t)
	began, ended := make(chan struct{}), make(chan struct{})
	r.guest(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.ReadAll(req.Body)
		close(began)
		<-req.Context().Done()
		close(ended)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	if _, err := NewBroker(r.reach).Call(ctx, database, http.MethodPost, "query", nil, strings.NewReader("{}")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-ended
}

func TestACallToWhatCannotBeReached(t *testing.T) {
	r := newRig(t)
	call := func() error {
		resp, err := NewBroker(r.reach).Call(t.Context(), database, http.MethodGet, "schema", nil, nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	r.guest(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if err := call(); apierror.CodeOf(err) != apierror.EBadGateway {
		t.Errorf("one that breaks off: %v", err)
	}
	r.host.set(func(h *host) { h.gone = true })
	before := brokerWait
	brokerWait = firstRetry * 3
	defer func() { brokerWait = before }()
	if err := call(); apierror.CodeOf(err) != apierror.EUnavailable {
		t.Errorf("one that does not come: %v", err)
	}
	r.change(func(e *Entry) { e.Status, e.Error = record.DatabaseFailed, "host h1 is lost" })
	if err := call(); apierror.CodeOf(err) != apierror.EConflict || apierror.As(err).Detail != "host h1 is lost" {
		t.Errorf("a failed one: %v", err)
	}
}

// What a month that is spent refuses reaches the caller whole: it is not to be tried again at
// once.
func TestACallInAMonthThatIsSpent(t *testing.T) {
	r := newRig(t)
	r.sleep()
	for code, fields := range map[apierror.Code]map[string]any{
		apierror.EQuota: {"credit_usd": 5.4, "cost_usd_used": 5.5}, apierror.ERateLimited: {"budget_usd": 2.0, "cost_usd_used": 2.5},
	} {
		shared := &apierror.Error{Code: code, Message: "spent", Fields: maps.Clone(fields)}
		r.onWake(func(context.Context) error { return shared })
		_, err := NewBroker(r.reach).Call(t.Context(), database, http.MethodGet, "schema", nil, nil) //nolint:bodyclose // it fails
		want := maps.Clone(fields)
		want["sqlstate"] = "53400"
		if e := apierror.As(err); e.Code != code || !maps.Equal(e.Fields, want) || !maps.Equal(shared.Fields, fields) {
			t.Errorf("%s: %+v, %v", code, e, e.Fields)
		}
	}
}

// A guest that never answers holds a bounded number of a replica's calls.
func TestTheCallsToOneDatabaseAreBounded(t *testing.T) {
	r := newRig(t)
	b := NewBroker(r.reach)
	r.guest(func(w http.ResponseWriter, req *http.Request) {
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	})
	call := func(id string) (*http.Response, error) {
		return b.Call(t.Context(), id, http.MethodGet, "schema", nil, nil)
	}
	var open []*http.Response
	for range maxCalls {
		resp, err := call(database)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		open = append(open, resp)
	}
	if _, err := call(database); apierror.CodeOf(err) != apierror.ERateLimited { //nolint:bodyclose // it fails
		t.Errorf("one more: %v", err)
	}
	if _, err := call("0b8b1c1e-0000-4c56-9a51-0d4b7f6f1c11"); apierror.CodeOf(err) != apierror.ENotFound { //nolint:bodyclose // it fails
		t.Errorf("another database: %v", err)
	}
	for range 2 {
		open[0].Body.Close()
	}
	resp, err := call(database)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

// The leader is not asked about a name that cannot be an id, because strangers can send
// any name.
func TestTheLeaderIsAskedOfIDsAlone(t *testing.T) {
	asked := 0
	r := NewReach(ReachConfig{
		Lookup: func(string) (Entry, bool) { return Entry{}, false },
		Latest: func(context.Context, string) (uint64, bool) { asked++; return 0, true },
	})
	defer r.Close()
	for _, id := range []string{"..", "", "x", strings.ToUpper(database), database + "x"} {
		r.catchUp(t.Context(), id)
	}
	if asked > 0 {
		t.Errorf("asked %d times", asked)
	}
	if r.catchUp(t.Context(), database); asked != 1 {
		t.Errorf("asked %d times of a database", asked)
	}
}

// A replica that has just started has not heard of the newest databases: a login there waits
// until it has.
func TestALoginAwaitsTheRecordsOfAReplicaThatStarts(t *testing.T) {
	begun := make(chan struct{})
	var known atomic.Bool
	r := NewReach(ReachConfig{
		Lookup: func(string) (Entry, bool) {
			return Entry{ID: database, Verifier: "v", User: "app"}, known.Load()
		},
		Latest: func(context.Context, string) (uint64, bool) { return 0, false }, // no leader is known yet
		Begun:  begun,
	})
	defer r.Close()
	resolved := make(chan error, 1)
	go func() {
		_, err := (&resolver{reach: r}).Resolve(t.Context(), database)
		resolved <- err
	}()
	select {
	case err := <-resolved:
		t.Fatalf("resolved before the replica has begun: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	known.Store(true)
	close(begun)
	if err := <-resolved; err != nil {
		t.Error(err)
	}
}

// A replaced token works on no replica any more.
func TestAReplacedTokenIsGoodAtNoFollower(t *testing.T) {
	r := newRig(t)
	r.index = 7
	r.change(func(e *Entry) { e.Index = 6 })
	heard := time.AfterFunc(20*time.Millisecond, func() {
		r.change(func(e *Entry) { e.Index, e.BrokerTokenHash = 7, make([]byte, 32) })
	})
	defer heard.Stop()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	req.Header.Set("Authorization", "Bearer "+token)
	if ws, err := NewBroker(r.reach).Admit(req, database); apierror.CodeOf(err) != apierror.EUnauthorized {
		t.Errorf("admitted to %q, %v", ws, err)
	}
}

// A follower learns of a commit a moment after the client that was told of it.
func TestCredentialsAreGoodAtAFollowerAtOnce(t *testing.T) {
	r := newRig(t)
	r.index = 7
	r.change(func(e *Entry) { e.Index, e.BrokerTokenHash = 6, make([]byte, 32) })
	heard := time.AfterFunc(20*time.Millisecond, func() {
		r.change(func(e *Entry) { *e = entry(); e.Index = 7 })
	})
	defer heard.Stop()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	req.Header.Set("Authorization", "Bearer "+token)
	if _, err := NewBroker(r.reach).Admit(req, database); err != nil {
		t.Error(err)
	}
	r.change(func(e *Entry) { e.Index, e.Verifier = 6, "" })
	heard.Reset(20 * time.Millisecond)
	if _, err := (&resolver{reach: r.reach, metrics: newMetrics()}).Resolve(t.Context(), database); err != nil {
		t.Error(err)
	}
}
