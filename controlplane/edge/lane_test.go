package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// raw serves connections by hand, on a port of the sandbox. serve gets each
// request, with its number on its connection, and says whether it goes on.
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

// A server may close a connection at any time between two requests, and the one
// that is on its way then is the edge's to repeat, if it may be.
func TestAConnectionThatWasClosedMeanwhile(t *testing.T) {
	r := newRig(t)
	var posted atomic.Int64
	r.raw(t, "8000", func(req *http.Request, n int, conn net.Conn) bool {
		if n > 0 {
			return false // says nothing
		}
		if req.Method == http.MethodPost {
			posted.Add(1)
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
	if status, _ := r.ask(t, "POST", "/", strings.NewReader("once")); status != 200 || posted.Load() != 1 {
		t.Errorf("POST: %d, carried out %d times", status, posted.Load())
	}
}

// A new connection that ends without a word is an answer, and no reason to ask again.
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

// What a program sends behind its response is nobody's: least of all the next
// visitor's. It comes with the response, or later.
func TestNothingIsLeftForTheNext(t *testing.T) {
	r := newRig(t)
	later := make(chan struct{})
	r.raw(t, "8000", func(req *http.Request, n int, conn net.Conn) bool {
		const second = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen"
		first := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%02d", n)
		if req.URL.Path != "/later" {
			io.WriteString(conn, first+second)
			return true
		}
		io.WriteString(conn, first)
		<-later
		io.WriteString(conn, second)
		later <- struct{}{}
		return true
	})
	for range 5 {
		if status, text := r.ask(t, "GET", "/", nil); status != 200 || text != "00" {
			t.Errorf("%d %q", status, text)
		}
		if status, text := r.ask(t, "GET", "/later", nil); status != 200 || text != "00" {
			t.Errorf("later: %d %q", status, text)
		}
		later <- struct{}{}
		<-later
		r.unquiet(t)
	}
}

// unquiet waits until something has arrived on the connection that is idle.
func (r *rig) unquiet(t *testing.T) {
	t.Helper()
	l := r.edge.proxy.Transport.(*lanes)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		l.mu.Lock()
		arrived := l.count == 1
		for _, list := range l.idle {
			arrived = arrived && !list[0].conn.Quiet()
		}
		l.mu.Unlock()
		if arrived {
			return
		}
	}
	t.Fatal("nothing arrives")
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
		"/large": {"GET", "POST"}, "/many": {"GET", "POST"}, "/many-hints": {"GET", "POST"}, // by a lane, and by the transport
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
}

// A client that leaves ends what is sent to it, also where nothing is sent.
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

// pipe is a tunnel that is one of two ends in memory.
type pipe struct{ net.Conn }

func (pipe) Quiet() bool { return true }

func TestIdleConnectionsAreClosed(t *testing.T) {
	l := &lanes{}
	here, there := net.Pipe()
	defer there.Close()
	c := &lane{conn: pipe{here}}
	l.give("a", c)
	if l.count != 1 || l.closer == nil {
		t.Fatal("not kept")
	}
	c.since = time.Now().Add(-idleTimeout)
	l.closeIdle()
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("not closed: %v", err)
	}
	if l.count != 0 || len(l.idle) != 0 || l.closer != nil || l.takeIdle("a") != nil {
		t.Errorf("it is kept after it was closed: %+v", l)
	}
	for range idlePerPort + 5 {
		a, b := net.Pipe()
		defer b.Close()
		l.give("a", &lane{conn: pipe{a}})
	}
	if l.count != idlePerPort {
		t.Errorf("%d are kept, want %d", l.count, idlePerPort)
	}
}
