package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// overWire sends raw bytes to a real server and returns the first answer, as
// its status line, headers and body.
func overWire(t *testing.T, server *httptest.Server, raw string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (r *rig) server() *httptest.Server {
	s := httptest.NewUnstartedServer(nil)
	s.Config = NewServer(r.api, slog.New(slog.DiscardHandler))
	s.Start()
	r.t.Cleanup(s.Close)
	return s
}

func TestPostWithoutABody(t *testing.T) {
	auth := "Host: x\r\nAuthorization: Bearer tenant\r\n"
	cases := []struct {
		name, raw string
		status    int
	}{
		{"no Content-Length", "POST /v1/sandboxes HTTP/1.1\r\n" + auth + "\r\n", 411},
		{"Content-Length 0", "POST /v1/sandboxes HTTP/1.1\r\n" + auth + "Content-Length: 0\r\n\r\n", 411},
		{"with a media type", "POST /v1/sandboxes HTTP/1.1\r\n" + auth + "Content-Type: application/json\r\n\r\n", 411},
		{"without a credential", "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n", 411},
		{"to a JWT route", "POST /v1/me/tokens HTTP/1.1\r\n" + auth + "\r\n", 411},
		{"to an operator's route", "POST /v1/admin/agents/a/drain HTTP/1.1\r\n" + auth + "\r\n", 411},
		{"to a restore", "POST /v1/admin/raft/restore HTTP/1.1\r\n" + auth + "\r\n", 411},
		{"to nowhere", "POST /nowhere HTTP/1.1\r\n" + auth + "\r\n", 411},
		{"HTTP/1.0", "POST /v1/sandboxes HTTP/1.0\r\n" + auth + "\r\n", 411},
		{"chunked and empty", "POST /v1/sandboxes HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		{"chunked", "POST /v1/sandboxes HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
		{"{}", "POST /v1/sandboxes HTTP/1.1\r\n" + auth + "Content-Length: 2\r\n\r\n{}", 400},
	}
	r := newRig(t, withoutAStore)
	server := r.server()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			resp := overWire(t, server, c.raw)
			body, err := io.ReadAll(io.LimitReader(resp.Body, max(resp.ContentLength, 0)))
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.status {
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
			if c.status == 411 && (len(body) != 0 || resp.ContentLength != 0 || resp.Header.Get("Content-Type") != "") {
				t.Errorf("a body of type %q: %q", resp.Header.Get("Content-Type"), body)
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
		})
	}
}

// TestLargeBodies sends more than a route takes, from a client that reads the
// answer only after it has sent everything.
func TestLargeBodies(t *testing.T) {
	tenMiB := 10 << 20
	cases := []struct {
		name, target string
		size         int
		chunked      bool
		status       int
	}{
		{"create with 10 MiB", "/v1/sandboxes", tenMiB, false, 413},
		{"create with 10 MiB, chunked", "/v1/sandboxes", tenMiB, true, 413},
		{"create at the limit", "/v1/sandboxes", maxCreateBody, false, 201},
		{"create one byte over", "/v1/sandboxes", maxCreateBody + 1, false, 413},
		{"create one byte over, chunked", "/v1/sandboxes", maxCreateBody + 1, true, 413},
		{"exec with 10 MiB", "/v1/sandboxes/" + testID + "/exec", tenMiB, false, 413},
		{"exec with 10 MiB, chunked", "/v1/sandboxes/" + testID + "/exec", tenMiB, true, 413},
		{"exec at the limit", "/v1/sandboxes/" + testID + "/exec", maxExecBody, false, 200},
	}
	r := newRig(t)
	r.sandboxes.create = func(context.Context, core.Caller, api.CreateSandbox, core.Idempotency) (api.Sandbox, error) {
		return testSandbox(), nil
	}
	r.streams.exec = func(context.Context, string, api.Exec) (api.ExecResult, error) {
		return api.ExecResult{}, nil
	}
	server := r.server()
	client := server.Client()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			const head, tail = `{"template":"base","cmd":"cat","metadata":{},"stdin":"`, `"}`
			body := head + strings.Repeat("a", c.size-len(head)-len(tail)) + tail
			var reader io.Reader = strings.NewReader(body)
			if c.chunked {
				reader = io.MultiReader(reader) // hides the length
			}
			req, err := http.NewRequest(http.MethodPost, server.URL+c.target, reader)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer tenant")
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.status {
				t.Errorf("got %d %s", resp.StatusCode, answer)
			}
			if c.status == 413 && !bytes.Contains(answer, []byte(`"error":"request body too large"`)) {
				t.Errorf("got %s", answer)
			}
		})
	}
}

// TestLargeBodyIsNotAskedFor: a client that waits for "100 Continue" is refused
// before it sends a byte.
func TestLargeBodyIsNotAskedFor(t *testing.T) {
	r := newRig(t)
	resp := overWire(t, r.server(), "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\n"+
		"Content-Length: 10485760\r\nExpect: 100-continue\r\n\r\n")
	if resp.StatusCode != 413 {
		t.Errorf("got %d", resp.StatusCode)
	}
}

func TestConnectionIsKept(t *testing.T) {
	r := newRig(t)
	server := r.server()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(conn)
	for i, raw := range []string{
		"GET /version HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\nContent-Length: 1\r\n\r\n{",
		"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		if want := []int{200, 411, 400, 404, 200}[i]; resp.StatusCode != want || resp.Close {
			t.Errorf("answer %d: status %d, closed %v", i, resp.StatusCode, resp.Close)
		}
	}
}

// pipeListener hands out in-memory connections, whose deadlines follow the
// clock of a synctest bubble.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// onPipe serves the rig on one in-memory connection and closes it at the end.
func (r *rig) onPipe(t *testing.T) net.Conn {
	l := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	server := NewServer(r.api, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends when it is closed
	}()
	near, far := net.Pipe()
	l.conns <- far
	t.Cleanup(func() {
		near.Close()
		server.Close()
		<-done
	})
	return near
}

func TestSlowClients(t *testing.T) {
	cases := []struct {
		name, raw string
		after     time.Duration
		status    int // 0: the connection is closed without an answer
	}{
		{"a header that does not end", "GET /version HTTP/1.1\r\nHost: x\r\n", headerTimeout, 0},
		{"a body that does not come", "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\nContent-Length: 9\r\n\r\n{", bodyTimeout, 408},
		{"a body that does not come and that nobody awaits", "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", bodyTimeout, 401},
		{"a GET with a body that does not come", "GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", bodyTimeout, 200},
		{"a restore that stalls", "POST /v1/admin/raft/restore HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer operator\r\nContent-Length: 9\r\n\r\n{", stallTimeout, 408},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.cluster.restore = func(in io.Reader) error {
					_, err := io.Copy(io.Discard, in)
					return err
				}
				conn := r.onPipe(t)
				start := time.Now()
				if _, err := io.WriteString(conn, c.raw); err != nil {
					t.Fatal(err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if took := time.Since(start); took != c.after {
					t.Errorf("after %s, want %s", took, c.after)
				}
				if c.status == 0 {
					if err == nil {
						t.Errorf("got %d", resp.StatusCode)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != c.status {
					t.Errorf("got %d", resp.StatusCode)
				}
				conn.Close()
				synctest.Wait()
			})
		})
	}
}

// TestLongExec: no timeout of the connection ends an exec of an hour.
func TestLongExec(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.streams.exec = func(ctx context.Context, _ string, _ api.Exec) (api.ExecResult, error) {
			select {
			case <-time.After(sandbox.MaxExecSeconds * time.Second):
				return api.ExecResult{Stdout: "done"}, nil
			case <-ctx.Done():
				return api.ExecResult{}, ctx.Err()
			}
		}
		conn := r.onPipe(t)
		body := `{"cmd":"sleep 3600"}`
		fmt.Fprintf(conn, "POST /v1/sandboxes/%s/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tenant\r\nContent-Length: %d\r\n\r\n%s", testID, len(body), body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(answer), "done") {
			t.Errorf("got %d %s, %v", resp.StatusCode, answer, err)
		}
	})
}

// TestGoneClientEndsItsExec: the use case is told at once.
func TestGoneClientEndsItsExec(t *testing.T) {
	r := newRig(t)
	began, ended := make(chan struct{}), make(chan struct{})
	r.streams.exec = func(ctx context.Context, _ string, _ api.Exec) (api.ExecResult, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return api.ExecResult{}, ctx.Err()
	}
	server := r.server()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/sandboxes/"+testID+"/exec", strings.NewReader(`{"cmd":"sleep 100"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer tenant")
	go func() {
		<-began
		cancel()
	}()
	if resp, err := server.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Error("the call was answered")
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the exec goes on after its client left")
	}
}

// deadlined is a response writer that records its deadline.
type deadlined struct {
	*httptest.ResponseRecorder
	at time.Time
}

func (d *deadlined) SetWriteDeadline(at time.Time) error {
	d.at = at
	return nil
}

// What the server sends after the handler has returned has a deadline of its own; a
// new response does not start with the previous one's.
func TestTheRestOfAnAnswerHasALimit(t *testing.T) {
	w := &deadlined{httptest.NewRecorder(), time.Now()}
	NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if !w.at.IsZero() {
			t.Error("it begins with a limit")
		}
	}), slog.New(slog.DiscardHandler)).Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.at.IsZero() {
		t.Error("it ends without one")
	}
}
