package forward

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// The leader may answer before a body has ended, as the program of an app does, and the
// body flows on: the follower's server takes nothing of it, and may wait for its next
// piece for as long as the leader does.
func TestABodyGoesOnWhileItsAnswerHasBegun(t *testing.T) {
	before := lingerTime
	t.Cleanup(func() { lingerTime = before })
	lingerTime = time.Nanosecond
	c := newCluster(t)
	c.add(t, "a", func(w http.ResponseWriter, r *http.Request) {
		answer := http.NewResponseController(w)
		_ = answer.EnableFullDuplex()
		_ = answer.Flush()
		for p := make([]byte, 4<<10); ; {
			n, err := r.Body.Read(p)
			_, _ = w.Write(p[:n])
			_ = answer.Flush()
			if err != nil {
				return
			}
		}
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	conn := b.raw(t, "PUT /v1/apps/x/proxy/ HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n")
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPut})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		piece := fmt.Sprint("piece ", i)
		fmt.Fprintf(conn, "%x\r\n%s\r\n", len(piece), piece)
		got := make([]byte, len(piece))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != piece {
			t.Fatalf("%q, %v", got, err)
		}
	}
	fmt.Fprint(conn, "0\r\n\r\n")
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	if _, err := in.ReadByte(); !resp.Close || !errors.Is(err, io.EOF) {
		t.Errorf("the connection is kept: %v, %v", resp.Close, err)
	}
}

// An answer that ends before its body does, ends the request, also while the client sends
// no more of it.
func TestAnAnswerThatEndsBeforeTheBody(t *testing.T) {
	c := newCluster(t)
	c.add(t, "a", func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
	})
	b := c.add(t, "b", echo)
	c.lead("a")
	const other = "GET /v1/other HTTP/1.1\r\nHost: b\r\n\r\n"
	conn := b.raw(t, fmt.Sprintf("PUT /v1/apps/x/proxy/ HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\nx", 1+len(other)))
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodPut})
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !resp.Close {
		t.Fatalf("%+v, %v", resp, err)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
	_, _ = io.WriteString(conn, other)             // the rest of the body, however it looks
	if more, _ := io.ReadAll(in); len(more) != 0 { // it may be reset
		t.Errorf("then came %q", more)
	}
}
