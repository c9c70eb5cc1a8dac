package edge

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// raw serves connections by hand on a port of the sandbox. serve receives each
// request with its number on its connection, and reports whether to keep the
// connection.
func (r *rig) raw(t *testing.T, port string, serve func(req *http.Request, n int, conn net.Conn) bool) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	r.host.mu.Lock()
	r.ports[port] = lis.Addr().String()
	r.host.mu.Unlock()
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for n := 0; ; n++ {
					req, err := http.ReadRequest(in)
					if err != nil || !serve(req, n, conn) {
						return
					}
				}
			}()
		}
	}()
}

func (r *rig) ask(t *testing.T, method, path string, body io.Reader) (status int, text string) {
	t.Helper()
	resp, err := r.front.Client().Do(r.request(t, method, "8000-"+box+"."+suffix, path, body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

func TestRequestsShareAConnection(t *testing.T) {
	r := newRig(t)
	r.raw(t, "8000", func(req *http.Request, n int, conn net.Conn) bool {
		switch req.URL.Path {
		case "/head":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nN: %d\r\n\r\n", n)
		case "/none":
			fmt.Fprintf(conn, "HTTP/1.1 204 No Content\r\nN: %d\r\n\r\n", n)
		case "/chunked":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n5\r\nchunk\r\n0\r\nSum: 7\r\n\r\n")
		case "/empty":
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		default:
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain")
		}
		return true
	})
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/", "plain"},
		{"HEAD", "/head", ""},
		{"GET", "/none", ""},
		{"GET", "/chunked", "chunk"},
		{"OPTIONS", "/empty", ""},
		{"GET", "/", "plain"},
	} {
		if status, text := r.ask(t, c.method, c.path, nil); status/100 != 2 || text != c.want {
			t.Errorf("%s %s: %d %q", c.method, c.path, status, text)
		}
	}
	if n := r.dialled(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// A server may close a connection at any time between two requests. The edge repeats
// a request that was under way then, if that is safe.
func TestAConnectionThatWasClosedMeanwhile(t *testing.T) {
	r := newRig(t)
	r.raw(t, "8000", func(req *http.Request, n int, conn net.Conn) bool {
		if n > 0 {
			return false // says nothing
		}
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		return req.URL.Path != "/close"
	})
	for i := range 10 {
		path := []string{"/", "/close"}[i%2]
		if status, text := r.ask(t, "GET", path, nil); status != 200 || text != "ok" {
			t.Fatalf("request %d: %d %q", i, status, text)
		}
	}
	if n := r.dialled(); n != 10 {
		t.Errorf("%d connections, want one for each request", n)
	}
}

// A request that the program may have acted on is not repeated, on a new connection
// or a kept one.
func TestOnlyReadsAreRepeated(t *testing.T) {
	for _, c := range []struct {
		method, body string
		header       []string
		want, asked  int
		dials        int
	}{
		{method: "GET", want: 200, asked: 2, dials: 2},
		{method: "HEAD", want: 200, asked: 2, dials: 2},
		{method: "OPTIONS", want: 200, asked: 2, dials: 2},
		{method: "GET", body: "a query", want: 502, asked: 1, dials: 1},
		{method: "POST", want: 502, asked: 1, dials: 1},
		{method: "POST", body: "once", want: 502, asked: 1, dials: 1},
		{method: "DELETE", want: 502, asked: 1, dials: 1},
		// net/http would repeat these itself, so each gets a connection of its own.
		{method: "POST", header: []string{"Idempotency-Key"}, want: 200, asked: 1, dials: 2},
		{method: "POST", header: []string{"X-Idempotency-Key"}, want: 200, asked: 1, dials: 2},
		{method: "TRACE", want: 200, asked: 1, dials: 2},
		{method: "GET", header: []string{"Connection", "Upgrade"}, want: 200, asked: 1, dials: 2},
	} {
		t.Run(fmt.Sprint(c.method, c.body, c.header), func(t *testing.T) {
			r := newRig(t)
			var asked atomic.Int64
			r.raw(t, "8000", func(req *http.Request, n int, conn net.Conn) bool {
				if req.URL.Path != "/first" {
					asked.Add(1)
				}
				if n > 0 {
					return false // says nothing
				}
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				return true
			})
			r.ask(t, "GET", "/first", nil)
			req := r.request(t, c.method, "8000-"+box+"."+suffix, "/", nil)
			if c.body != "" {
				req = r.request(t, c.method, "8000-"+box+"."+suffix, "/", strings.NewReader(c.body))
			}
			for _, h := range c.header {
				req.Header.Set(h, map[bool]string{true: "websocket", false: "upgrade"}[h == "Upgrade"])
			}
			resp, err := r.front.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.want || asked.Load() != int64(c.asked) || r.dialled() != c.dials {
				t.Errorf("%d, asked %d times by %d connections", resp.StatusCode, asked.Load(), r.dialled())
			}
		})
	}
}

// A new connection that closes without a response is a failure of the program, not a
// reason to repeat the request.
func TestANewConnectionIsNotRepeated(t *testing.T) {
	r := newRig(t)
	var asked atomic.Int64
	r.raw(t, "8000", func(*http.Request, int, net.Conn) bool { asked.Add(1); return false })
	if status, text := r.ask(t, "GET", "/", nil); status != http.StatusBadGateway || !strings.Contains(text, "broke off") {
		t.Errorf("%d %s", status, text)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// What a program sends after its response, with it or later, ends the connection: it
// is no answer to a later visitor. (http.Transport sees it when it reads on, which a
// request that takes the connection in the same microseconds may precede.)
func TestNothingIsLeftForTheNext(t *testing.T) {
	r := newRig(t)
	later, ended := make(chan struct{}), make(chan struct{})
	r.raw(t, "8000", func(req *http.Request, n int, conn net.Conn) bool {
		const second = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
		first := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%02d", n)
		if req.URL.Path == "/later" {
			io.WriteString(conn, first)
			<-later
			io.WriteString(conn, second)
		} else {
			io.WriteString(conn, first+second)
		}
		_, _ = conn.Read(make([]byte, 1))
		ended <- struct{}{}
		return false
	})
	for range 5 {
		if status, text := r.ask(t, "GET", "/", nil); status != 200 || text != "00" {
			t.Errorf("%d %q", status, text)
		}
		<-ended
		if status, text := r.ask(t, "GET", "/later", nil); status != 200 || text != "00" {
			t.Errorf("later: %d %q", status, text)
		}
		later <- struct{}{}
		<-ended
	}
}

func TestHeadsOutOfBounds(t *testing.T) {
	r := newRig(t)
	r.raw(t, "8000", func(req *http.Request, _ int, conn net.Conn) bool {
		switch req.URL.Path {
		case "/large":
			line := "X: " + strings.Repeat("x", 1<<10) + "\r\n" // 128 of them are too many
			if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n"); err != nil {
				return false
			}
			for range 128 {
				if _, err := io.WriteString(conn, line); err != nil {
					return false
				}
			}
			_, err := io.WriteString(conn, "Content-Length: 0\r\n\r\n")
			return err == nil
		case "/many":
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+strings.Repeat("a:b\r\n", maxFields+1)+"Content-Length: 0\r\n\r\n")
		case "/many-hints":
			io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\n"+strings.Repeat("a:b\r\n", maxFields+1)+"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		case "/100s":
			io.WriteString(conn, strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10)+"HTTP/1.1 200 OK\r\n\r\n")
		case "/101":
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		case "/none":
			io.WriteString(conn, "\x00\x01\x02\r\n\r\n")
		}
		return false
	})
	for path, methods := range map[string][]string{
		"/100s": {"GET"}, "/101": {"GET"}, "/none": {"GET"},
		"/large": {"GET", "POST"}, "/many": {"GET", "POST"}, "/many-hints": {"GET", "POST"},
	} {
		for _, method := range methods {
			if status, text := r.ask(t, method, path, nil); status != http.StatusBadGateway {
				t.Errorf("%s %s: %d %.100s", method, path, status, text)
			}
		}
	}
}

func TestEarlyHintsGoThrough(t *testing.T) {
	r := newRig(t)
	r.raw(t, "8000", func(_ *http.Request, _ int, conn net.Conn) bool {
		io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		return true
	})
	req := r.request(t, "GET", "8000-"+box+"."+suffix, "/", nil)
	req.Header.Set("X-Request-Id", "mine")
	hints := make(chan string, 1)
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints <- fmt.Sprint(code, " ", h.Get("Link"))
			return nil
		},
	}))
	resp, err := r.front.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-hints; got != "103 </style.css>; rel=preload" {
		t.Error(got)
	}
	if ids := resp.Header.Values("X-Request-Id"); len(ids) != 1 || ids[0] != "mine" {
		t.Errorf("the request's id is %q", ids)
	}
}

// When a client leaves, its connection to the sandbox ends, even while nothing is
// sent.
func TestAClientThatLeavesEndsItsConnection(t *testing.T) {
	r := newRig(t)
	arrived, ended := make(chan struct{}), make(chan error)
	r.raw(t, "8000", func(req *http.Request, _ int, conn net.Conn) bool {
		if req.URL.Path == "/begun" {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome")
		}
		arrived <- struct{}{}
		_, err := conn.Read(make([]byte, 1))
		ended <- err
		return false
	})
	for _, path := range []string{"/begun", "/silent"} {
		ctx, leave := context.WithCancel(t.Context())
		req := r.request(t, "GET", "8000-"+box+"."+suffix, path, nil).WithContext(ctx)
		go func() {
			if resp, err := r.front.Client().Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		<-arrived
		leave()
		if err := <-ended; err == nil {
			t.Errorf("%s: it got more input", path)
		}
	}
}

// A connection kept for one placement of a sandbox is not used for the next.
func TestConnectionsBelongToOnePlacement(t *testing.T) {
	r := newRig(t)
	r.raw(t, "8000", func(_ *http.Request, n int, conn net.Conn) bool {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
		return true
	})
	for _, want := range []string{"0", "1"} {
		if _, text := r.ask(t, "GET", "/", nil); text != want {
			t.Errorf("request %s of its connection, want %s", text, want)
		}
	}
	r.mu.Lock()
	r.sandbox.Generation++
	r.mu.Unlock()
	if _, text := r.ask(t, "GET", "/", nil); text != "0" {
		t.Errorf("request %s of its connection, in another placement", text)
	}
}

// A client that leaves during the dial leaves no connection behind.
func TestAClientThatLeavesEndsItsDial(t *testing.T) {
	r := newRig(t)
	arrived, ended := make(chan struct{}), make(chan struct{})
	hang := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		close(arrived)
		<-req.Context().Done()
		close(ended)
	}))
	defer hang.Close()
	client := (&host{t: t, server: hang}).client()
	defer client.Close()
	r.edge.cfg.Host = func(string, string) *hostapi.Client { return client }
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		if resp, err := r.front.Client().Do(r.request(t, "GET", hostOf(8000), "/", nil).WithContext(ctx)); err == nil {
			resp.Body.Close()
		}
	}()
	<-arrived
	leave()
	<-ended
}
