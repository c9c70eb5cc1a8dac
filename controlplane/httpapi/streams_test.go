package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/raftstore/record"
)

// fakeProcess is a command whose output a test gives out piece by piece.
type fakeProcess struct {
	pieces chan sandbox.Piece
	closed chan struct{}
	once   sync.Once
	input  chan string // what came in, in words
}

func newProcess() *fakeProcess {
	return &fakeProcess{pieces: make(chan sandbox.Piece), closed: make(chan struct{}), input: make(chan string, 16)}
}

func (p *fakeProcess) Next() (sandbox.Piece, error) {
	select {
	case piece := <-p.pieces:
		return piece, nil
	case <-p.closed:
		return sandbox.Piece{}, errors.New("closed")
	}
}

// write offers output to a reader and reports whether it was read.
func (p *fakeProcess) write(stream string, data []byte) bool {
	select {
	case p.pieces <- sandbox.Piece{Stream: stream, Data: data}:
		return true
	case <-p.closed:
		return false
	}
}

func (p *fakeProcess) exit(code int) { p.pieces <- sandbox.Piece{Exit: &api.Exit{ExitCode: code}} }

func (p *fakeProcess) came(words string) error {
	select {
	case p.input <- words:
		return nil
	case <-p.closed:
		return errors.New("closed")
	}
}

func (p *fakeProcess) Stdin(b []byte) error     { return p.came("stdin " + string(b)) }
func (p *fakeProcess) CloseStdin() error        { return p.came("eof") }
func (p *fakeProcess) Signal(name string) error { return p.came("signal " + name) }
func (p *fakeProcess) Resize(cols, rows uint16) error {
	return p.came(fmt.Sprintf("%dx%d", cols, rows))
}
func (p *fakeProcess) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// streamOn begins an exec/stream on an in-memory connection.
func streamOn(t *testing.T, r *rig, p *fakeProcess) net.Conn {
	t.Helper()
	r.streams.stream = func(ctx context.Context, _ api.Exec, _ bool) (sandbox.Process, error) {
		context.AfterFunc(ctx, func() { p.Close() })
		return p, nil
	}
	conn := r.onPipe(t)
	body := `{"cmd":"x"}`
	fmt.Fprintf(conn, "POST /v1/sandboxes/%s/exec/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\nContent-Length: %d\r\n\r\n%s", testID, len(body), body)
	return conn
}

// TestQuietStreamIsKeptAlive: the header comes before any output, a comment
// every 15 seconds, and each event as soon as it happens.
func TestQuietStreamIsKeptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := newRig(t), newProcess()
		conn := streamOn(t, r, p)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
			t.Fatalf("%+v, %v", resp, err)
		}
		start := time.Now()
		lines := bufio.NewReader(resp.Body)
		line := func(want string) {
			t.Helper()
			if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
				t.Fatalf("%q, %v; want %q", got, err, want)
			}
		}
		for i := 1; i <= 3; i++ {
			line(": ping")
			line("")
			if got := time.Since(start); got != time.Duration(i)*15*time.Second {
				t.Fatalf("ping %d came after %s", i, got)
			}
		}
		go func() {
			p.write("stdout", []byte("a\xe2\x82"))
			p.write("stderr", []byte("<\n>"))
			p.write("stdout", []byte("\xac\x00"))
			p.write("stdout", []byte{0xc3})
			p.exit(3)
		}()
		for _, want := range []string{
			"event: stdout", `data: {"data":"a"}`, "",
			"event: stderr", `data: {"data":"<\n>"}`, "",
			"event: stdout", `data: {"data":"€\u0000"}`, "",
			"event: stdout", `data: {"data":"ww==","encoding":"base64"}`, "",
			"event: exit", `data: {"exit_code":3,"duration_ms":0,"timed_out":false}`, "",
		} {
			line(want)
		}
		if _, err := lines.ReadString('\n'); !errors.Is(err, io.EOF) {
			t.Fatalf("more came: %v", err)
		}
		conn.Close()
	})
}

// TestStalledListenerHoldsUpTheProcess: output that the client does not read is not
// read from the process either, and after a while the process is ended.
func TestStalledListenerHoldsUpTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p := newRig(t), newProcess()
		conn := streamOn(t, r, p)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(err)
		}
		start := time.Now()
		taken := 0
		for p.write("stdout", make([]byte, 64<<10)) {
			taken++
		}
		if took := time.Since(start); took < stallTimeout || took > stallTimeout+pingEvery {
			t.Errorf("the process lived for %s", took)
		}
		if taken > 2 {
			t.Errorf("%d pieces were taken for a client that reads nothing", taken)
		}
		conn.Close()
	})
}

func TestStreamThatBreaksOff(t *testing.T) {
	r, p := newRig(t), newProcess()
	r.streams.stream = func(context.Context, api.Exec, bool) (sandbox.Process, error) { return p, nil }
	go func() {
		p.write("stdout", []byte("x"))
		p.Close()
	}()
	w := r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/exec/stream", "tenant", `{"cmd":"x"}`)
	if want := "event: stdout\ndata: {\"data\":\"x\"}\n\nevent: error\ndata: {\"error\":\"agent unreachable\",\"detail\":\"the stream broke off\"}\n\n"; w.Body.String() != want {
		t.Errorf("got %q", w.Body.String())
	}
	r.streams.stream = func(context.Context, api.Exec, bool) (sandbox.Process, error) {
		return nil, &apierror.Error{Code: apierror.EConflict, Message: "sandbox not running (paused or hibernated) — resume/wake it first"}
	}
	w = r.call(http.MethodPost, "/v1/sandboxes/"+testID+"/exec/stream", "tenant", `{"cmd":"x"}`)
	if w.Code != 409 || errorOf(t, w).Error != "sandbox not running (paused or hibernated) — resume/wake it first" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// Who loses the right to it loses a terminal, and what is followed, half a minute later.
func TestStreamsEndWithTheRightToThem(t *testing.T) {
	for name, lost := range map[string]func(core.Caller) (core.Caller, error){
		"the key is gone": func(core.Caller) (core.Caller, error) {
			return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
		},
		"only a viewer now": func(c core.Caller) (core.Caller, error) {
			c.Role = record.RoleViewer
			return c, nil
		},
	} {
		begin := func(t *testing.T) (r *rig, p *fakeProcess, start time.Time) {
			start = time.Now()
			r = newRig(t, func(cfg *Config) {
				cfg.Again = func(c core.Caller) (core.Caller, error) {
					if time.Since(start) < time.Minute {
						return c, nil
					}
					return lost(c)
				}
			})
			return r, newProcess(), start
		}
		ended := func(t *testing.T, start time.Time) {
			t.Helper()
			if took := time.Since(start); took < time.Minute || took > time.Minute+againEvery {
				t.Errorf("%s: ended after %s", name, took)
			}
		}
		t.Run("terminal, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, p, start := begin(t)
				r.streams.terminal = func(sandbox.Terminal) (sandbox.Process, error) { return p, nil }
				ws, _, err := websocket.Dial(t.Context(), "ws://x/v1/sandboxes/"+testID+"/exec/pty", &websocket.DialOptions{
					HTTPClient: &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return r.onPipe(t), nil }}},
					HTTPHeader: http.Header{"Authorization": {"Bearer tenant"}},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer ws.CloseNow()
				if _, _, err := ws.Read(t.Context()); err == nil {
					t.Error("something came")
				}
				<-p.closed
				ended(t, start)
			})
		})
		t.Run("command, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, p, start := begin(t)
				conn := streamOn(t, r, p)
				read := make(chan struct{})
				go func() {
					defer close(read)
					_, _ = io.Copy(io.Discard, conn) // until it is closed
				}()
				<-p.closed
				ended(t, start)
				conn.Close()
				<-read
			})
		})
	}
}

// What a tenant's program sends, and a socket to it, last no longer than the right to them
// either.
func TestWhatIsPassedOnEndsWithTheRightToIt(t *testing.T) {
	gone := func(core.Caller) (core.Caller, error) {
		return core.Caller{}, apierror.Unauthorized(apierror.DetailInvalidToken)
	}
	viewer := func(c core.Caller) (core.Caller, error) {
		c.Role = record.RoleViewer
		return c, nil
	}
	for name, c := range map[string]struct {
		method, target, upgrade string
		lost                    func(core.Caller) (core.Caller, error)
		ends                    bool
	}{
		"an app's answer, the key is gone":            {"GET", "/v1/apps/app-1/proxy/x", "", gone, true},
		"an app's answer, only a viewer now":          {"GET", "/v1/apps/app-1/proxy/x", "", viewer, false},
		"a socket to an app, only a viewer now":       {"GET", "/v1/apps/app-1/proxy/x", "websocket", viewer, true},
		"another method of an app's, the key is gone": {"PROPFIND", "/v1/apps/app-1/proxy/x", "", gone, true},
		"an invocation, the key is gone":              {"GET", "/v1/functions/app-1/invoke/x", "", gone, true},
		"an invocation, only a viewer now":            {"GET", "/v1/functions/app-1/invoke", "", viewer, true},
		"an app's answer, with the right to it":       {"GET", "/v1/apps/app-1/proxy/x", "", func(c core.Caller) (core.Caller, error) { return c, nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var took time.Duration
				program := func(string, string) http.Handler {
					return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
						select {
						case <-req.Context().Done():
						case <-time.After(time.Hour):
						}
						took = time.Since(start)
					})
				}
				r := newRig(t, func(cfg *Config) {
					cfg.AppProxy, cfg.Invoke = program, program
					cfg.Again = func(caller core.Caller) (core.Caller, error) {
						if time.Since(start) < time.Minute {
							return caller, nil
						}
						return c.lost(caller)
					}
				})
				req := httptest.NewRequestWithContext(t.Context(), c.method, c.target, http.NoBody)
				req.Header.Set("Authorization", "Bearer tenant")
				if c.upgrade != "" {
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", c.upgrade)
				}
				r.api.ServeHTTP(httptest.NewRecorder(), req)
				if ended := took >= time.Minute && took <= time.Minute+againEvery; ended != c.ends || !ended && took != time.Hour {
					t.Errorf("it ended after %s", took)
				}
			})
		})
	}
}

// A process that reads nothing stalls its client's input; the client must not be
// taken for gone.
func TestProcessThatReadsNothing(t *testing.T) {
	r, p := newRig(t), newProcess()
	p.input = make(chan string) // takes one at a time
	r.streams.terminal = func(sandbox.Terminal) (sandbox.Process, error) { return p, nil }
	ws := r.dial(t, "/exec/pty")
	go func() {
		for range 3 {
			_ = ws.Write(t.Context(), websocket.MessageBinary, []byte("x"))
		}
	}()
	for range 3 {
		if got := <-p.input; got != "stdin x" {
			t.Fatalf("%q", got)
		}
	}
	go p.exit(0)
	if _, data, err := ws.Read(t.Context()); err != nil || !json.Valid(data) {
		t.Fatalf("%q, %v", data, err)
	}
}

func TestQueriesOfLogsAndEvents(t *testing.T) {
	r := newRig(t)
	r.streams.logs = func(q api.LogQuery) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(fmt.Sprintf("%s %d\n", q.Stream, q.Tail))), nil
	}
	r.streams.events = func(q api.EventQuery) ([]api.Event, error) {
		e := api.Event{TS: api.Time{Time: q.Since}, Type: "sandbox.paused", Code: "ok"}
		if q.Tail != nil {
			e.Message = fmt.Sprint(*q.Tail)
		}
		return []api.Event{e}, nil
	}
	base := "/v1/sandboxes/" + testID
	for target, want := range map[string]string{
		"/logs": "both 0\n", "/logs?stream=console&tail=7": "console 7\n", "/logs?follow=0": "both 0\n", "/logs?tail=2147483647": "both 100000\n", "/logs?follow=false&tail=100000": "both 100000\n",
		"/events?tail=0":                            `"message":"0"`,
		"/events?tail=512":                          `"message":"512"`,
		"/events?tail=2147483647":                   `"message":"10000"`,
		"/events?since=2026-11-20T13:05:09.412Z":    `"ts":"2026-11-20T13:05:09.412Z"`,
		"/events?since=2026-11-20T14:05:09%2B01:00": `"ts":"2026-11-20T13:05:09.000Z"`,
		"/events?since=2026-11-20T14:05:09+01:00":   `"ts":"2026-11-20T13:05:09.000Z"`,
		"/events": `"metadata":{}`,
	} {
		if w := r.call(http.MethodGet, base+target, "tenant", ""); w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	for target, message := range map[string]string{
		"/logs?stream=all": "invalid stream", "/logs?stream=": "invalid stream", "/logs?tail=0": "invalid tail", "/logs?tail=-1": "invalid tail",
		"/logs?tail=2147483648": "invalid tail", "/logs?follow=yes": "invalid follow", "/logs?follow=": "invalid follow", "/events?follow": "invalid follow", "/logs?tail=1&tail=2": "invalid tail", "/logs?%zz": "invalid query",
		"/events?tail=2147483648": "invalid tail", "/events?tail=-1": "invalid tail", "/events?since=": "invalid since", "/events?tail=x": "invalid tail", "/events?since=yesterday": "invalid since",
		"/events?since=1700000000": "invalid since", "/events?follow=2": "invalid follow", "/events?since=a&since=b": "invalid since",
		"/events?since=2026-11-20+14:05:09Z": "invalid since",
	} {
		if w := r.call(http.MethodGet, base+target, "tenant", ""); w.Code != 400 || errorOf(t, w).Error != message {
			t.Errorf("%s: %d %s, want %q", target, w.Code, w.Body, message)
		}
	}
	// A browser that reconnects sends the id of the last event that it received, to the
	// same URL. A tail would leave a gap after that event.
	for _, query := range []string{"since=2020-01-01T00:00:00Z", "tail=1", "tail=0&since=2020-01-01T00:00:00Z"} {
		w := r.call(http.MethodGet, base+"/events?"+query, "tenant", "", "Last-Event-ID", "2026-11-20T13:05:09.412Z")
		if body := w.Body.String(); !strings.Contains(body, `"ts":"2026-11-20T13:05:09.412Z"`) || !strings.Contains(body, `"message":""`) {
			t.Errorf("%s: %s", query, body)
		}
	}
	if w := r.call(http.MethodGet, base+"/events", "tenant", "", "Last-Event-ID", "3"); w.Code != 400 || errorOf(t, w).Error != "invalid since" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// listOf is a feed that ends after a list of events.
type listOf[T any] struct{ left []T }

func (l *listOf[T]) Next() (T, error) {
	if len(l.left) == 0 {
		var zero T
		return zero, io.EOF
	}
	v := l.left[0]
	l.left = l.left[1:]
	return v, nil
}

func (*listOf[T]) Close() error { return nil }

func TestFollowing(t *testing.T) {
	r := newRig(t)
	at := time.Date(2026, 11, 20, 13, 5, 9, 412e6, time.UTC)
	r.streams.follow = func(api.LogQuery) (core.Follower[sandbox.LogLine], error) {
		return &listOf[sandbox.LogLine]{[]sandbox.LogLine{{Stream: "stdout", LogLine: api.LogLine{Line: "a", TS: api.NewTime(at)}}, {Stream: "console", LogLine: api.LogLine{Line: "\r<b>", Partial: true}}}}, nil
	}
	r.streams.watch = func(api.EventQuery) (core.Follower[api.Event], error) {
		return &listOf[api.Event]{[]api.Event{{TS: api.Time{Time: at}, SandboxID: testID, Type: "sandbox.paused", Code: "ok"}}}, nil
	}
	w := r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/logs?follow=true", "tenant", "")
	if want := "event: stdout\ndata: {\"line\":\"a\",\"ts\":\"2026-11-20T13:05:09.412Z\"}\n\nevent: console\ndata: {\"line\":\"\\r<b>\",\"partial\":true}\n\n"; w.Body.String() != want {
		t.Errorf("%q", w.Body)
	}
	w = r.call(http.MethodGet, "/v1/sandboxes/"+testID+"/events?follow=1", "tenant", "")
	if !strings.HasPrefix(w.Body.String(), "event: ev\nid: 2026-11-20T13:05:09.412Z\ndata: {\"ts\":\"2026-11-20T13:05:09.412Z\",") {
		t.Errorf("%q", w.Body)
	}
}
