package eventstore

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// eachDatabase runs a test on both databases.
func eachDatabase(t *testing.T, test func(t *testing.T, open func() *Store)) {
	t.Run("sqlite", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "events", "events.db")
		test(t, opener(t, Config{File: file, Clock: func() time.Time { return noon }}))
	})
	t.Run("postgres", func(t *testing.T) {
		test(t, opener(t, Config{DSN: postgres(t), Clock: func() time.Time { return noon }}))
	})
}

func opener(t *testing.T, cfg Config) func() *Store {
	return func() *Store {
		t.Helper()
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
}

func event(seq uint64, at time.Time, sandbox string, kind hostapi.EventType, metadata string) hostapi.Event {
	return hostapi.Event{
		Seq: seq, Time: at, SandboxID: sandbox, WorkspaceID: "w1", Template: "base", HostID: "h1", Type: kind, Code: kind.Code(),
		Message: string(kind), Metadata: json.RawMessage(metadata),
	}
}

func appendAll(t *testing.T, s *Store, agent string, events ...hostapi.Event) uint64 {
	t.Helper()
	cursor, err := s.Append(t.Context(), hostapi.EventBatch{HostID: agent, First: 1, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	return cursor
}

func TestSandboxesAreCountedAndMeasured(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		yesterday := noon.Add(-24 * time.Hour)
		var events []hostapi.Event
		for i := range 100 {
			events = append(events, event(uint64(i+1), noon, fmt.Sprint("s", i), hostapi.EventRunning, fmt.Sprintf(`{"boot_ms":%d,"boot_mode":"restore"}`, i+1)))
		}
		events = append(events,
			event(101, noon, "s1", hostapi.EventWoken, `{"wake_ms":7}`),
			event(102, noon, "s1", hostapi.EventForked, `{}`),
			event(103, noon, "s2", hostapi.EventVMDied, `{"signal":"KILL"}`),
			event(104, yesterday, "s2", hostapi.EventRunning, `{"boot_ms":3}`),
			event(105, yesterday, "s2", hostapi.EventWoken, `not an object`),
		)
		if cursor := appendAll(t, s, "h1", events...); cursor != 105 {
			t.Errorf("cursor %d", cursor)
		}
		other := event(1, noon, "x", hostapi.EventRunning, `{"boot_ms":9999}`)
		other.WorkspaceID = "w2"
		appendAll(t, s, "h2", other)

		got, err := s.Sandboxes(t.Context(), Query{WorkspaceID: "w1", From: yesterday, To: noon})
		if err != nil {
			t.Fatal(err)
		}
		day := noon.Truncate(24 * time.Hour)
		want := []Day{{
			Date: day, Label: "base", Sandboxes: 100, Starts: 100, Wakes: 1, Forks: 1, Deaths: 1,
			Boot: Summary{Count: 100, P50: 50, P90: 90, P99: 99, Max: 100},
			Wake: Summary{Count: 1, P50: 7, P90: 7, P99: 7, Max: 7},
		}, {
			Date: day.Add(-24 * time.Hour), Label: "base", Sandboxes: 1, Starts: 1, Wakes: 1,
			Boot: Summary{Count: 1, P50: 3, P90: 3, P99: 3, Max: 3},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		for name, q := range map[string]Query{
			"another template": {WorkspaceID: "w1", From: yesterday, To: noon, Label: "node"},
			"another day":      {WorkspaceID: "w1", From: noon.Add(48 * time.Hour), To: noon.Add(72 * time.Hour)},
			"nobody":           {From: yesterday, To: noon},
		} {
			if got, err := s.Sandboxes(t.Context(), q); err != nil || len(got) != 0 {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	})
}

func TestEventsToldAgainAreKeptOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		first := []hostapi.Event{
			event(1, noon, "s", hostapi.EventRunning, `{"boot_ms":1}`), event(2, noon, "s", hostapi.EventPaused, ""),
		}
		appendAll(t, s, "h1", first...)
		if cursor := appendAll(t, s, "h1", append(first, event(3, noon, "s", hostapi.EventResumed, ""))...); cursor != 3 {
			t.Errorf("cursor %d", cursor)
		}
		if cursor := appendAll(t, s, "h1", first...); cursor != 3 {
			t.Errorf("cursor went back to %d", cursor)
		}
		again := open() // also as a store that is opened while another is open
		if cursor, err := again.Cursor(t.Context(), "h1"); err != nil || cursor != 3 {
			t.Errorf("cursor %d, %v", cursor, err)
		}
		if cursor, err := again.Cursor(t.Context(), "h2"); err != nil || cursor != 0 {
			t.Errorf("cursor of a host never heard of: %d, %v", cursor, err)
		}
		got, err := again.Sandboxes(t.Context(), Query{WorkspaceID: "w1", From: noon, To: noon})
		if err != nil || len(got) != 1 || got[0].Starts != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestConcurrentHostsAndReplicas(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		replicas := []*Store{open(), open(), open()}
		// An SQLite file belongs to one replica, so nothing creates it concurrently.
		if _, err := replicas[0].Cursor(t.Context(), "h0"); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for r, s := range replicas {
			for host := range 3 {
				all.Go(func() {
					agent := fmt.Sprint("h", host)
					for seq := uint64(1); seq <= 40; seq += 10 {
						var events []hostapi.Event
						for n := range uint64(10) {
							events = append(events, event(seq+n, noon, agent, hostapi.EventRunning, `{"boot_ms":5}`))
						}
						if _, err := s.Append(context.Background(), hostapi.EventBatch{HostID: agent, Events: events}); err != nil {
							t.Errorf("replica %d: %v", r, err)
						}
					}
				})
			}
		}
		all.Wait()
		got, err := replicas[0].Sandboxes(t.Context(), Query{WorkspaceID: "w1", From: noon, To: noon})
		if err != nil || len(got) != 1 || got[0].Starts != 120 || got[0].Sandboxes != 3 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestOldEventsArePruned(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		old := noon.Add(-DefaultRetention - time.Minute)
		appendAll(t, s, "h1", event(1, old, "s", hostapi.EventRunning, ""), event(2, old.Add(2*time.Minute), "s", hostapi.EventRunning, ""))
		if n, err := s.Prune(t.Context()); err != nil || n != 1 {
			t.Errorf("%d pruned, %v", n, err)
		}
		if cursor, err := s.Cursor(t.Context(), "h1"); err != nil || cursor != 2 {
			t.Errorf("cursor %d, %v: pruning must not have hosts tell old events again", cursor, err)
		}
	})
}

func TestTheOperatorSaysHowLongEventsAreKept(t *testing.T) {
	s, err := Open(Config{File: t.TempDir() + "/events.db", Retention: time.Hour, Clock: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	old := noon.Add(-time.Hour - time.Minute)
	appendAll(t, s, "h1", event(1, old, "s", hostapi.EventRunning, ""), event(2, old.Add(2*time.Minute), "s", hostapi.EventRunning, ""))
	if n, err := s.Prune(t.Context()); err != nil || n != 1 {
		t.Errorf("%d pruned, %v", n, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, dsn := range map[string]string{
		"a file name": "/tmp/events.db", "another scheme": "mysql://user:secret@host/db", "a broken URL": "postgres://us er:secret@[::1/db",
	} {
		_, err := Open(Config{DSN: dsn})
		if err == nil {
			t.Errorf("%s was opened", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
}

func TestDatabaseThatIsAwayIsAnErrorOfTheCall(t *testing.T) {
	s := opener(t, Config{DSN: "postgres://user:secret@127.0.0.1:1/db?connect_timeout=2"})()
	_, err := s.Cursor(t.Context(), "h1")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestIntake(t *testing.T) {
	s := opener(t, Config{File: filepath.Join(t.TempDir(), "events.db"), Clock: func() time.Time { return noon }})()
	in := &Intake{Store: s, Log: slog.New(slog.DiscardHandler)}
	post := func(host string, body any) (int, hostapi.EventCursor) {
		t.Helper()
		raw, ok := body.(string)
		if !ok {
			b, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			raw = string(b)
		}
		w := httptest.NewRecorder()
		in.ServeEvents(w, httptest.NewRequest(http.MethodPost, hostapi.PathEvents, strings.NewReader(raw)), host)
		var c hostapi.EventCursor
		if w.Code == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), &c); err != nil {
				t.Fatal(err)
			}
		}
		return w.Code, c
	}
	batch := func(first uint64, events ...hostapi.Event) hostapi.EventBatch {
		return hostapi.EventBatch{HostID: "h1", First: first, Events: events}
	}
	at := func(seq uint64) hostapi.Event { return event(seq, noon, "s", hostapi.EventPaused, "") }

	steps := []struct {
		name   string
		host   string
		body   any
		status int
		cursor uint64
	}{
		{"asks where to begin", "h1", batch(1), 200, 0},
		{"begins in the middle: the spool is shorter", "h1", batch(5, at(5), at(6)), 200, 6},
		{"goes on", "h1", batch(5, at(7)), 200, 7},
		{"told again", "h1", batch(5, at(6), at(7)), 200, 7},
		{"a gap that the host can fill", "h1", batch(5, at(9)), 200, 7},
		{"a gap that it cannot fill", "h1", batch(9, at(9)), 200, 9},
		{"another host's", "h2", batch(1, at(10)), 403, 0},
		{"not in order", "h1", batch(1, at(11), at(10)), 400, 0},
		{"no JSON", "h1", "{", 400, 0},
		{"from the future, with odd metadata", "h1", batch(9, func() hostapi.Event {
			e := event(10, noon.AddDate(3, 0, 0), strings.Repeat("x", 500), hostapi.EventRunning, `{"boot_ms":"soon"}`)
			e.Message = strings.Repeat("\x00\xff", 9000)
			return e
		}()), 200, 10},
	}
	for _, step := range steps {
		if code, c := post(step.host, step.body); code != step.status || c.Seq != step.cursor {
			t.Errorf("%s: status %d, cursor %d; want %d, %d", step.name, code, c.Seq, step.status, step.cursor)
		}
	}
	w := httptest.NewRecorder()
	in.ServeEvents(w, httptest.NewRequest(http.MethodGet, hostapi.PathEvents, http.NoBody), "h1")
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: status %d", w.Code)
	}
}

func TestWhatBelongsToNoSandbox(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		var events []hostapi.Event
		for i := range 5 {
			e := event(uint64(i+1), noon.Add(time.Duration(i)*time.Second), fmt.Sprint("s", i), hostapi.EventUnmanaged, `{"vm_was_running":true}`)
			if i != 1 {
				e.WorkspaceID = ""
			}
			events = append(events, e)
		}
		appendAll(t, s, "h1", events...)
		appendAll(t, s, "h2", hostapi.Event{Seq: 1, Time: noon, SandboxID: "other", Type: hostapi.EventUnmanaged})
		for name, c := range map[string]struct {
			since time.Time
			limit int
			want  string
		}{
			"all":   {limit: 10, want: "s0 s2 s3 s4"},
			"last":  {limit: 2, want: "s3 s4"},
			"since": {limit: 10, since: noon.Add(2 * time.Second), want: "s3 s4"},
		} {
			found, err := s.Unowned(t.Context(), "h1", c.since, c.limit)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range found {
				got = append(got, e.SandboxID)
				if e.Type != hostapi.EventUnmanaged || e.HostID != "h1" || string(e.Metadata) != `{"vm_was_running":true}` || e.Code != hostapi.EventWarn {
					t.Errorf("%+v", e)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
		}
	})
}

func TestTheHistoryOfOneSandbox(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		appendAll(t, s, "h1",
			event(1, noon, "s1", hostapi.EventRunning, `{}`), event(2, noon, "s2", hostapi.EventRunning, `{}`),
			event(3, noon.Add(time.Second), "s1", hostapi.EventPaused, `{"a":1}`))
		moved := event(1, noon.Add(2*time.Second), "s1", hostapi.EventDeleted, `{}`)
		other := event(2, noon.Add(3*time.Second), "s1", hostapi.EventRunning, `{}`)
		other.WorkspaceID = "w2"
		appendAll(t, s, "h2", moved, other)
		for name, c := range map[string]struct {
			workspace string
			since     time.Time
			limit     int
			want      string
		}{
			"all":       {"w1", time.Time{}, 10, "h1 sandbox.running, h1 sandbox.paused, h2 sandbox.deleted"},
			"the last":  {"w1", time.Time{}, 1, "h2 sandbox.deleted"},
			"since":     {"w1", noon, 10, "h1 sandbox.paused, h2 sandbox.deleted"},
			"another's": {"w2", time.Time{}, 10, "h2 sandbox.running"},
			"nobody's":  {"", time.Time{}, 10, ""},
		} {
			found, err := s.OfSandbox(t.Context(), c.workspace, "s1", c.since, c.limit)
			var got []string
			for _, e := range found {
				got = append(got, e.HostID+" "+string(e.Type))
			}
			if err != nil || strings.Join(got, ", ") != c.want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		large := func(seq uint64) hostapi.Event {
			e := event(seq, noon.Add(time.Duration(seq)*time.Second), "big", hostapi.EventPaused, `{}`)
			e.Message = strings.Repeat("x", MaxHistory/4)
			return e
		}
		appendAll(t, s, "h3", large(1), large(2), large(3), large(4), large(5))
		if found, err := s.OfSandbox(t.Context(), "w1", "big", time.Time{}, 10); err != nil || len(found) != 3 || found[2].Seq != 5 {
			t.Errorf("%d events of a long history, %v", len(found), err)
		}
	})
}

// Hosts tell what happens also while tenants' questions take every connection that they get.
func TestQuestionsDoNotKeepHostsWaiting(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		for range maxQuestions {
			c, err := s.asked.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := s.OfSandbox(short, "w1", "box", time.Time{}, 1); err == nil {
			t.Error("a question had a connection of its own")
		}
		appendAll(t, s, "h1", event(1, noon, "box", hostapi.EventRunning, "{}"))
		if cursor, err := s.Cursor(t.Context(), "h1"); err != nil || cursor != 1 {
			t.Errorf("%d, %v", cursor, err)
		}
	})
}
