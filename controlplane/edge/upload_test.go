package edge

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/stall"
	"github.com/berth-cloud/berth/raftstore/record"
)

// echo answers while it reads, beginning before it has read anything.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	_ = c.EnableFullDuplex()
	_ = c.Flush()
	for p := make([]byte, 4<<10); ; {
		n, err := r.Body.Read(p)
		_, _ = w.Write(p[:n])
		_ = c.Flush()
		if err != nil {
			return
		}
	}
})

// open sends the beginning of a request over HTTP/1.1 to a server, which has TLS or not.
func open(t *testing.T, s *httptest.Server, request string) (net.Conn, *bufio.Reader) {
	t.Helper()
	var conn net.Conn
	var err error
	if address := s.Listener.Addr().String(); s.TLS != nil {
		conn, err = tls.Dial("tcp", address, http1(s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()))
	} else {
		conn, err = net.Dial("tcp", address)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	say(t, conn, request)
	return conn, bufio.NewReader(conn)
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func headOf(t *testing.T, in *bufio.Reader) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func post(host, path, fields string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: x\r\n" + fields + "\r\n\r\n"
}

const chunked = "Transfer-Encoding: chunked"

func chunk(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// A program may answer before its request has ended, and the body flows on: net/http would
// take the rest of it away before it sends the head.
func TestAnAnswerThatBeginsBeforeTheBodyHasEnded(t *testing.T) {
	app := newAppRig(t)
	app.start(t, boxA, echo)
	app.flip(record.AppRunning, boxA)
	preview := newRig(t)
	preview.serve(8000, echo)
	const words = "one two three "
	for name, c := range map[string]struct {
		front         *httptest.Server
		host, path    string
		fields, piece string
		finish        string
	}{
		"an app":              {app.front, appHost, "/", chunked, chunk(words), "0\r\n\r\n"},
		"an app, with length": {app.front, appHost, "/", fmt.Sprint("Content-Length: ", 2*len(words)), words, ""},
		"an app, by the API":  {app.through(t), "api", "/v1/apps/" + appID + "/proxy/", chunked, chunk(words), "0\r\n\r\n"},
		"a preview":           {preview.front, hostOf(8000), "/", chunked, chunk(words), "0\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, in := open(t, c.front, post(c.host, c.path, c.fields))
			resp := headOf(t, in)
			for range 2 {
				say(t, conn, c.piece)
				got := make([]byte, len(words))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != words {
					t.Fatalf("%q, %v", got, err)
				}
			}
			say(t, conn, c.finish)
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
				t.Errorf("%q, %v", rest, err)
			}
			// The server does not know whether all that comes on it belongs to the body.
			if _, err := in.ReadByte(); !resp.Close || !errors.Is(err, io.EOF) {
				t.Errorf("it is kept: %v, %v", resp.Close, err)
			}
		})
	}
}

// A client that sends its whole body before it reads loses nothing of it.
func TestNothingIsMissingFromABodyThatIsAnsweredEarly(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, echo)
	r.flip(record.AppRunning, boxA)
	var want, chunks strings.Builder
	for i := range 3000 {
		line := fmt.Sprintf("line %d of a body that is large enough\n", i)
		want.WriteString(line)
		chunks.WriteString(chunk(line))
	}
	conn, in := open(t, r.front, post(appHost, "/", chunked))
	go func() { _, _ = io.WriteString(conn, chunks.String()+"0\r\n\r\n") }() // what is missing, the test notices
	got, err := io.ReadAll(headOf(t, in).Body)
	if err != nil || string(got) != want.String() {
		t.Errorf("%d bytes of %d came back, %v", len(got), want.Len(), err)
	}
}

// What comes after an early answer is the rest of a body and no request, however it looks.
func TestTheRestOfABodyIsNoRequest(t *testing.T) {
	r := newAppRig(t)
	var others atomic.Int64
	r.start(t, boxA, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/early" {
			others.Add(1)
		}
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, "no")
	}))
	r.flip(record.AppRunning, boxA)
	hidden := "GET /other HTTP/1.1\r\nHost: " + appHost + "\r\nUser-Agent: x\r\n\r\n"
	for name, c := range map[string]struct{ fields, rest string }{
		"a length":     {fmt.Sprint("Content-Length: ", 1+len(hidden)), hidden},
		"chunks":       {chunked, hidden},
		"a large body": {fmt.Sprint("Content-Length: ", 1+(1<<20)+len(hidden)), hidden},
		"expecting":    {fmt.Sprint("Expect: 100-continue\r\nContent-Length: ", 1+len(hidden)), hidden},
	} {
		begin := "x"
		switch {
		case c.fields == chunked:
			begin = chunk("x")
		case strings.HasPrefix(c.fields, "Expect"):
			begin = ""
		}
		conn, in := open(t, r.front, post(appHost, "/early", c.fields)+begin)
		resp := headOf(t, in)
		if raw, err := io.ReadAll(resp.Body); err != nil || string(raw) != "no" || resp.StatusCode != http.StatusUnauthorized || !resp.Close {
			t.Errorf("%s: %s %q, closes %v, %v", name, resp.Status, raw, resp.Close, err)
		}
		_, _ = io.WriteString(conn, c.rest)            // it may be closed by now
		if more, _ := io.ReadAll(in); len(more) != 0 { // or reset
			t.Errorf("%s: then came %q", name, more)
		}
	}
	if n := others.Load(); n != 0 {
		t.Errorf("%d of them were served as requests", n)
	}
}

// A connection is kept after an answer to a whole body.
func TestConnectionsAreKeptAfterBodies(t *testing.T) {
	r := newAppRig(t)
	r.start(t, boxA, says("ok"))
	r.flip(record.AppRunning, boxA)
	conn, in := open(t, r.front, "")
	for _, request := range []string{
		post(appHost, "/", "Content-Length: 5") + "hello",
		post(appHost, "/", chunked) + chunk("hello") + "0\r\n\r\n",
		post("app-none."+appSuffix, "/", "Content-Length: 5") + "hello", // the edge refuses it
		post(appHost, "/", "Content-Length: 0"),
	} {
		say(t, conn, request)
		resp := headOf(t, in)
		if _, err := io.ReadAll(resp.Body); err != nil || resp.Close {
			t.Errorf("%q: closes %v, %v", request, resp.Close, err)
		}
	}
}

// A refusal waits neither for a body that its client holds back, nor for ever for one that
// never comes.
func TestRefusalsDoNotWaitForBodies(t *testing.T) {
	before := stall.RestTime
	t.Cleanup(func() { stall.RestTime = before })
	app, preview := newAppRig(t), newRig(t)
	app.become(func(a *App) { a.Suspended = true })
	preview.become(record.SandboxFailed)
	for _, c := range []struct {
		front      *httptest.Server
		host, path string
		status     int
	}{
		{app.front, appHost, "/", http.StatusServiceUnavailable},
		{app.front, "x." + appHost, "/", http.StatusNotFound},
		{app.through(t), "api", "/v1/apps/" + appID + "/proxy/", http.StatusServiceUnavailable},
		{preview.front, hostOf(8000), "/", http.StatusNotFound},
	} {
		stall.RestTime = time.Hour
		_, in := open(t, c.front, post(c.host, c.path, "Content-Length: 10\r\nExpect: 100-continue"))
		if resp := headOf(t, in); resp.StatusCode != c.status || !resp.Close {
			t.Errorf("%s%s, which expects: %s, closes %v", c.host, c.path, resp.Status, resp.Close)
		}
		stall.RestTime = 50 * time.Millisecond
		_, in = open(t, c.front, post(c.host, c.path, "Content-Length: 10"))
		if resp := headOf(t, in); resp.StatusCode != c.status || !resp.Close {
			t.Errorf("%s%s, of which no body comes: %s, closes %v", c.host, c.path, resp.Status, resp.Close)
		}
	}
}
