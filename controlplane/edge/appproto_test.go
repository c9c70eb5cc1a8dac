package edge

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/controlplane/httpapi"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A connection counts as open for as long as it lives, and its end as use.
func TestAWebSocketKeepsItsAppAwake(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c, err := websocket.Accept(w, req, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(req.Context())
			if err != nil {
				return
			}
			if err := c.Write(req.Context(), kind, append([]byte("echo "), data...)); err != nil {
				return
			}
		}
	}))
	r.sleeps(boxA) // it is woken by the upgrade
	c, _, err := websocket.Dial(t.Context(), "wss"+strings.TrimPrefix(r.front.URL, "https"), &websocket.DialOptions{
		Host: appHost, HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: insecure(r)}},
		HTTPHeader: http.Header{"User-Agent": {browser}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for i := range 3 {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || string(got) != fmt.Sprint("echo ", i) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	r.flip(record.AppRunning, boxB) // it stays with the instance that drains
	if _, open := r.openOf(boxA); open != 1 {
		t.Errorf("%d are open", open)
	}
	before := time.Now()
	if err := c.Write(t.Context(), websocket.MessageText, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(t.Context()); err != nil || string(got) != "echo x" {
		t.Fatalf("%q, %v", got, err)
	}
	c.CloseNow()
	eventually(t, "it is open no more", func() bool { _, open := r.openOf(boxA); return open == 0 })
	if last, _ := r.openOf(boxA); last.Before(before) {
		t.Error("its end is no use of the app")
	}
}

func TestEventsOfAnApp(t *testing.T) {
	r := newAppRig(t)
	next := make(chan string)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		for {
			select {
			case s := <-next:
				fmt.Fprintf(w, "data: %s\n\n", s)
				w.(http.Flusher).Flush()
			case <-req.Context().Done():
				close(next)
				return
			}
		}
	}))
	r.flip(record.AppRunning, boxA)
	resp, err := r.front.Client().Do(r.request(t, http.MethodGet, "/events", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for _, s := range []string{"one", "two"} {
		next <- s // and nothing is sent after it: it must arrive by itself
		if line, err := lines.ReadString('\n'); err != nil || line != "data: "+s+"\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if _, open := r.openOf(boxA); open != 1 {
			t.Errorf("%d are open", open)
		}
	}
	resp.Body.Close()
	<-next // the program sees that its client has gone
	eventually(t, "it is open no more", func() bool { _, open := r.openOf(boxA); return open == 0 })
}

// gRPC is HTTP/2 on both sides, with trailers, and bodies that flow both ways at once.
func TestGRPC(t *testing.T) {
	r := newAppRig(t)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor != 2 || req.Header.Get("Te") != "trailers" {
			t.Errorf("%s, TE %q", req.Proto, req.Header.Get("Te"))
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.(http.Flusher).Flush()
		in := bufio.NewReader(req.Body)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			io.WriteString(w, "echo "+line)
			w.(http.Flusher).Flush()
		}
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "fine")
	}))
	app.Config.Protocols = new(http.Protocols)
	app.Config.Protocols.SetUnencryptedHTTP2(true)
	app.Start()
	t.Cleanup(app.Close)
	r.startAt(boxA, app.Listener.Addr().String())
	r.flip(record.AppRunning, boxA)
	for range 2 { // the second on a kept connection
		body, up := io.Pipe()
		req := r.request(t, http.MethodPost, "/pkg.Service/Method", body)
		req.Header.Set("Content-Type", "application/grpc+proto")
		req.Header.Set("TE", "trailers")
		resp, err := r.front.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		down := bufio.NewReader(resp.Body)
		for _, s := range []string{"one\n", "two\n"} {
			if _, err := io.WriteString(up, s); err != nil {
				t.Fatal(err)
			}
			if line, err := down.ReadString('\n'); err != nil || line != "echo "+s {
				t.Fatalf("%q, %v", line, err)
			}
		}
		up.Close()
		if _, err := io.ReadAll(down); err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.Trailer.Get("Grpc-Status") != "0" || resp.Trailer.Get("Grpc-Message") != "fine" {
			t.Errorf("%s, trailers %v", resp.Proto, resp.Trailer)
		}
	}
	if n := r.dialled(); n != 1 {
		t.Errorf("%d connections", n)
	}
	for kind, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;x": true,
		"application/grpc-web": false, "application/grpc-web+proto": false, "application/json": false, "": false,
	} {
		if got := isGRPC(&http.Request{Header: http.Header{"Content-Type": {kind}}}); got != want {
			t.Errorf("%q: %v", kind, got)
		}
	}
}

// Bodies pass through: no part of a large one is kept.
func TestLargeBodiesOfApps(t *testing.T) {
	const size = 64 << 20
	r := newAppRig(t)
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, req.Body)
		w.Header().Set("Sum", fmt.Sprintf("%d %v %x", n, err, sum.Sum(nil)))
		_, _ = io.Copy(w, io.LimitReader(zeros{}, size))
	}))
	r.sleeps(boxA) // the body waits with its request
	sum := sha256.New()
	resp, err := r.front.Client().Do(r.request(t, http.MethodPut, "/", io.TeeReader(io.LimitReader(zeros{}, size), sum)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if want := fmt.Sprintf("%d <nil> %x", size, sum.Sum(nil)); resp.Header.Get("Sum") != want {
		t.Errorf("up: %s", resp.Header.Get("Sum"))
	}
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != size {
		t.Errorf("down: %d, %v", n, err)
	}
}

// What the public port refuses never reaches an app; what it accepts has one meaning.
func TestAmbiguousAndEndlessRequests(t *testing.T) {
	r := newAppRig(t)
	var seen sync.Map // by path
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		raw, _ := io.ReadAll(req.Body)
		seen.Store(req.URL.Path, fmt.Sprintf("%s %q", req.Method, raw))
		io.WriteString(w, "ok")
	}))
	r.flip(record.AppRunning, boxA)
	front := httpapi.NewServer(r.edge, discard)
	front.ReadHeaderTimeout = 100 * time.Millisecond // 10 s in fact
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = front.Serve(lis) }()
	t.Cleanup(func() { front.Close() })
	const head = "Host: " + appHost + "\r\nUser-Agent: x\r\nConnection: close\r\n"
	n := 0
	for name, c := range map[string]struct{ request, status, seen string }{
		"two lengths":               {"POST / HTTP/1.1\r\n" + head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "400", ""},
		"a length and chunks":       {"POST / HTTP/1.1\r\n" + head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "200", `POST "hello"`},
		"an unknown coding":         {"POST / HTTP/1.1\r\n" + head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501", ""},
		"a coding in disguise":      {"POST / HTTP/1.1\r\n" + head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", "400", ""},
		"a folded line":             {"GET / HTTP/1.1\r\n" + head + "X: a\r\n b\r\n\r\n", "", ""},
		"a chunk of no number":      {"POST / HTTP/1.1\r\n" + head + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", "", ""},
		"a line of a hundred KB":    {"GET /" + strings.Repeat("a", 100<<10) + " HTTP/1.1\r\n" + head + "\r\n", "431", ""},
		"a header of a hundred KB":  {"GET / HTTP/1.1\r\n" + head + "X: " + strings.Repeat("a", 100<<10) + "\r\n\r\n", "431", ""},
		"two hosts":                 {"GET / HTTP/1.1\r\n" + head + "Host: other\r\n\r\n", "400", ""},
		"no version":                {"GET /\r\n\r\n", "400", ""},
		"a header that never ends":  {"GET / HTTP/1.1\r\n" + head, "", ""},
		"a second request in there": {"POST / HTTP/1.1\r\n" + head + "Content-Length: 30\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n", "200", `POST "GET /admin HTTP/1.1\r\nHost: x\r\n"`},
	} {
		conn, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		n++
		path := fmt.Sprint("/", n)
		_, _ = io.WriteString(conn, strings.Replace(c.request, " / HTTP", " "+path+" HTTP", 1)) // it may be cut off
		raw, _ := io.ReadAll(conn)
		conn.Close()
		status := ""
		if fields := strings.Fields(string(raw)); len(fields) > 1 {
			status = fields[1]
		}
		if c.status != "" && status != c.status {
			t.Errorf("%s: %.100q, want %s", name, raw, c.status)
		}
		got, _ := seen.Load(path)
		if c.seen != "" && got != c.seen || c.status != "" && c.seen == "" && got != nil {
			t.Errorf("%s: the app saw %v, want %s", name, got, c.seen)
		}
	}
	if got, ok := seen.Load("/admin"); ok {
		t.Errorf("what was in a body was served: %v", got)
	}
}

// A held request whose client breaks off in its body leaves nothing behind. net/http
// does not notice while nobody reads the body, so the wait ends with the hold.
func TestAHeldUploadThatIsAborted(t *testing.T) {
	r := newAppRig(t, func(c *Config) { c.Apps.Hold = 300 * time.Millisecond })
	r.flip(record.AppHibernated)
	asked := make(chan struct{})
	r.wakesBy(func(ctx context.Context) error { close(asked); <-ctx.Done(); return ctx.Err() })
	conn, err := tls.Dial("tcp", r.front.Listener.Addr().String(), http1(insecure(r)))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nUser-Agent: x\r\nContent-Length: 1000\r\n\r\nsome", appHost)
	<-asked
	conn.Close()
	eventually(t, "it counts no more", func() bool {
		r.edge.mu.Lock()
		defer r.edge.mu.Unlock()
		return r.edge.count[appID] == 0
	})
}

func http1(c *tls.Config) *tls.Config {
	c.NextProtos = []string{"http/1.1"}
	c.InsecureSkipVerify = true
	return c
}
