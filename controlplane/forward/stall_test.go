package forward

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/berth-cloud/berth/tier"
)

// raw opens a connection to a replica; the test writes and reads its bytes.
func (r *replica) raw(t *testing.T, request string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.public.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10) // so that little is taken before it is full
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A client that does not read an endless response ends it at the leader too.
func TestStalledReaderEndsTheAnswer(t *testing.T) {
	c := newCluster(t)
	c.stall = 200 * time.Millisecond
	ended := make(chan struct{})
	c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		chunk := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	b.raw(t, "GET /v1/sandboxes/x/logs?follow=1 HTTP/1.1\r\nHost: b\r\n\r\n")
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the leader writes on")
	}
}

// A slow client gets the same answer from a follower as from the leader, and the
// same time for a file.
func TestSlowBodies(t *testing.T) {
	before := keepTimeout
	t.Cleanup(func() { keepTimeout = before })
	keepTimeout = 50 * time.Millisecond
	c := newCluster(t)
	begun := make(chan struct{})
	c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		echo(w, r)
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	read := func(conn net.Conn) string {
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		got, _ := io.ReadAll(conn)
		return string(got)
	}
	const post = "POST /v1/sandboxes HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\n{"
	late := func(conn net.Conn) {
		t.Helper()
		if got := read(conn); !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, `{"detail":"the body did not arrive in time","error":"request timeout"}`) {
			t.Errorf("a body that does not come: %s", got)
		}
	}
	late(b.raw(t, post))
	keepTimeout = time.Minute
	short := b.raw(t, post)
	if err := short.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := read(short); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, `{"detail":"the body ended early","error":"invalid json"}`) {
		t.Errorf("a body that ends early: %s", got)
	}
	keepTimeout = time.Nanosecond
	put := b.raw(t, "PUT /v1/sandboxes/x/fs?path=/a HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab")
	select {
	case <-begun: // it goes on before the whole of it is here
	case <-time.After(20 * time.Second):
		t.Error("a file waits for its end at the follower")
	}
	if _, err := io.WriteString(put, "cd"); err != nil {
		t.Fatal(err)
	}
	if got := read(put); !strings.HasPrefix(got, "HTTP/1.1 418 ") || !strings.Contains(got, "/a abcd 4") {
		t.Errorf("a file: %s", got)
	}
}

// An upload that stalls delays neither the leader's answer nor the one that there is
// no leader.
func TestAFileThatStandsStill(t *testing.T) {
	before := lingerTime
	t.Cleanup(func() { lingerTime = before })
	lingerTime = 50 * time.Millisecond
	for leader, want := range map[string]string{"a": "HTTP/1.1 403 ", "": "HTTP/1.1 503 "} {
		t.Run("leader "+leader, func(t *testing.T) {
			c := newCluster(t)
			c.add(t, "a", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Connection", "close") // it does not wait for the body
				w.WriteHeader(http.StatusForbidden)
			})
			b := c.add(t, "b", echo)
			c.lead(leader)
			conn := b.raw(t, "PUT /v1/sandboxes/x/fs?path=/a HTTP/1.1\r\nHost: b\r\nContent-Length: 4\r\n\r\nab")
			_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), want) {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

const upgrade = "GET /v1/sandboxes/x/exec/pty HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// A WebSocket is closed at both ends when either end closes it, in any way.
func TestUpgradedConnectionsEndTogether(t *testing.T) {
	c := newCluster(t)
	c.stall = 200 * time.Millisecond
	ended := make(chan struct{}, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		if r.URL.Query().Get("flood") != "" {
			for ws.Write(r.Context(), websocket.MessageBinary, make([]byte, 64<<10)) == nil {
			}
			return
		}
		if r.URL.Query().Get("leave") != "" {
			return
		}
		_, _, _ = ws.Read(r.Context())
	}
	c.add(t, "a", handler)
	b := c.add(t, "b", echo)
	c.lead("a")
	over := func(t *testing.T) {
		t.Helper()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the leader's side lives on")
		}
	}
	head := func(t *testing.T, conn net.Conn) {
		t.Helper()
		buf := make([]byte, 12)
		if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "HTTP/1.1 101" {
			t.Fatalf("%q, %v", buf, err)
		}
	}
	t.Run("the client closes its half", func(t *testing.T) {
		conn := b.raw(t, upgrade)
		head(t, conn)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		over(t)
	})
	t.Run("the client is gone", func(t *testing.T) {
		conn := b.raw(t, upgrade)
		head(t, conn)
		_ = conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
		over(t)
	})
	t.Run("the client takes nothing", func(t *testing.T) {
		conn := b.raw(t, strings.Replace(upgrade, "/exec/pty", "/exec/pty?flood=1", 1))
		head(t, conn)
		over(t)
	})
	t.Run("the leader closes", func(t *testing.T) {
		conn := b.raw(t, strings.Replace(upgrade, "/exec/pty", "/exec/pty?leave=1", 1))
		head(t, conn)
		over(t)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		var timeout net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
			t.Fatal("the client's side lives on")
		}
	})
}

// zeros reads as n zero bytes and uses no memory.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), z.left))
	for i := range p[:n] {
		p[i] = byte(z.left % 251)
	}
	z.left -= int64(n)
	return n, nil
}

// Large bodies pass in both directions without being buffered.
func TestLargeBodiesPassInConstantMemory(t *testing.T) {
	tier.Slow(t)
	const size = 256 << 20
	c := newCluster(t)
	c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			sum := sha256.New()
			n, err := io.Copy(sum, r.Body)
			if err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprintf(w, "%d %x", n, sum.Sum(nil))
			return
		}
		_, _ = io.Copy(w, &zeros{size})
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	sum := sha256.New()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.public.URL+"/v1/sandboxes/x/fs?path=/a", io.TeeReader(&zeros{size}, sum))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if want := fmt.Sprintf("%d %x", int64(size), sum.Sum(nil)); err != nil || string(got) != want {
		t.Fatalf("%s, %v; want %s", got, err, want)
	}
	resp, err = client.Get(b.public.URL + "/v1/sandboxes/x/fs?path=/a")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.Sys) - int64(before.Sys); grown > 64<<20 {
		t.Errorf("memory has grown by %d MiB", grown>>20)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size {
		t.Errorf("%d MiB were allocated for bodies of %d", allocated>>20, size>>20)
	}
}
