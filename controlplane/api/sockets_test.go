package api

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // of the protocol
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

func TestASocketIsSilentOnceNoPingComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		var last time.Time
		go func() {
			in := bufio.NewReader(far)
			r, err := http.ReadRequest(in)
			if err != nil {
				t.Error(err)
				return
			}
			go io.Copy(io.Discard, in)
			key := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
			fmt.Fprintf(far, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
				base64.StdEncoding.EncodeToString(key[:]))
			for range 50 {
				time.Sleep(20 * time.Second)
				last = time.Now()
				if _, err := far.Write([]byte{0x89, 0}); err != nil {
					t.Errorf("a socket that is pinged was ended: %v", err)
					return
				}
			}
		}()
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }}
		c := &Client{urls: []*url.URL{{Scheme: "http", Host: "replica"}}, http: &http.Client{Transport: transport}}
		terminal, err := c.OpenTerminal(t.Context(), "x", OpenTerminal{})
		if err != nil {
			t.Fatal(err)
		}
		defer terminal.Close()
		if _, err := terminal.Read(make([]byte, 1)); !errors.Is(err, errSilent) {
			t.Errorf("%v", err)
		}
		if took := time.Since(last); took != socketSilence {
			t.Errorf("it ended %s after the last ping", took)
		}
	})
}

func TestPingsAreAnsweredWhileOutputWaitsForASlowCaller(t *testing.T) {
	answered := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		if _, _, err := ws.Read(r.Context()); err != nil {
			t.Error(err)
		}
		for range 100 {
			if err := ws.Write(r.Context(), websocket.MessageText, []byte(`{"type":"stdout","data":"x"}`)); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(ws.CloseRead(r.Context()), 5*time.Second)
		defer cancel()
		answered <- ws.Ping(ctx)
		_ = ws.Write(r.Context(), websocket.MessageText, []byte(`{"type":"exit","exit_code":0}`))
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}))
	defer server.Close()
	c, err := NewClient(nil, "k", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.OpenExec(t.Context(), "x", Exec{Cmd: Argv("make")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := <-answered; err != nil {
		t.Errorf("a ping: %v", err)
	}
	got := 0
	for {
		_, data, exit, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got += len(data); exit != nil {
			break
		}
	}
	if got != 100 {
		t.Errorf("%d of 100 bytes came", got)
	}
	if _, _, _, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}
