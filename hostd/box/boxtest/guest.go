package boxtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
)

// serveGuest answers one request as guestd does: not at all while its guest stands still.
func (w *World) serveGuest(slot int, conn net.Conn) {
	if w.standsStill(slot) {
		_, _ = io.Copy(io.Discard, conn) // until the host hangs up
		conn.Close()
		return
	}
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		conn.Close()
		return
	}
	if w.Guest != nil {
		rw := &connWriter{conn: conn, header: http.Header{}}
		w.Guest.ServeHTTP(rw, req)
		rw.finish()
		if !rw.hijacked {
			conn.Close()
		}
		return
	}
	// What blocks ends when the host hangs up, as in a real server.
	body, err := io.ReadAll(req.Body)
	if err != nil {
		conn.Close()
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, conn)
		cancel()
	}()
	w.goodGuest(ctx).ServeHTTP(&connWriter{conn: conn, header: http.Header{}}, req)
	conn.Close()
	<-ended
}

// ReadIdentity reads the identity that a request to a guest brings.
func ReadIdentity(req *http.Request) (id guestapi.Identity, err error) {
	raw, err := io.ReadAll(req.Body)
	if err == nil {
		err = id.UnmarshalBinary(raw)
	}
	return id, err
}

func confirmation(id guestapi.Identity) guestapi.IdentityConfirmation {
	return guestapi.IdentityConfirmation{Generation: id.Generation, EntropyBits: 8 * len(id.Entropy)}
}

// goodGuest confirms identities, and runs every command as "echo" would.
func (w *World) goodGuest(ctx context.Context) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		cw := rw.(*connWriter)
		defer cw.finish()
		switch req.URL.Path {
		case guestapi.PathIdentity:
			if err := w.step(ctx, "identity"); err != nil {
				rw.WriteHeader(http.StatusInternalServerError)
				_ = json.NewEncoder(rw).Encode(guestapi.Error{Error: err.Error()})
				return
			}
			id, err := ReadIdentity(req)
			if err != nil {
				rw.WriteHeader(http.StatusBadRequest)
				return
			}
			w.note(id)
			_ = json.NewEncoder(rw).Encode(confirmation(id))
		case guestapi.PathSync, guestapi.PathMounts:
			if err := w.step(ctx, strings.TrimPrefix(req.URL.Path, "/v1/")); err != nil {
				says := &guestclient.Error{Status: http.StatusInternalServerError, Body: guestapi.Error{Error: err.Error()}}
				_ = errors.As(err, &says) // a refusal of its own
				rw.WriteHeader(says.Status)
				_ = json.NewEncoder(rw).Encode(says.Body)
				return
			}
			rw.WriteHeader(http.StatusNoContent)
		case guestapi.PathFreeze:
			if err := w.step(ctx, "freeze"); err != nil {
				rw.WriteHeader(http.StatusInternalServerError)
				return
			}
			_ = json.NewEncoder(rw).Encode(guestapi.Frozen{})
		case guestapi.PathHealth:
			_ = json.NewEncoder(rw).Encode(guestapi.Health{Version: "fake"})
		case guestapi.PathExec:
			var r guestapi.ExecRequest
			_ = json.NewDecoder(req.Body).Decode(&r)
			conn := cw.Upgrade()
			for _, a := range r.Argv {
				_ = guestapi.WriteFrame(conn, guestapi.FrameStdout, []byte(a))
			}
			exit, _ := json.Marshal(guestapi.ExecExit{DurationMS: 1})
			_ = guestapi.WriteFrame(conn, guestapi.FrameExit, exit)
		default:
			rw.WriteHeader(http.StatusNotFound)
		}
	})
}

// connWriter is a ResponseWriter on a bare connection.
type connWriter struct {
	conn     net.Conn
	header   http.Header
	status   int
	body     []byte
	hijacked bool
}

func (c *connWriter) Header() http.Header { return c.header }
func (c *connWriter) WriteHeader(s int)   { c.status = s }
func (c *connWriter) Write(p []byte) (int, error) {
	c.body = append(c.body, p...)
	return len(p), nil
}

// Upgrade switches the connection to frames.
func (c *connWriter) Upgrade() net.Conn {
	c.hijacked = true
	_, _ = io.WriteString(c.conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+guestapi.Upgrade+"\r\n\r\n")
	return c.conn
}

func (c *connWriter) finish() {
	if c.hijacked {
		return
	}
	if c.status == 0 {
		c.status = http.StatusOK
	}
	var head bytes.Buffer
	_ = c.header.Write(&head)
	_, _ = fmt.Fprintf(c.conn, "HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n%s", c.status, len(c.body), &head, c.body)
}

// Raw gives the connection out on which nothing was answered.
func (c *connWriter) Raw() net.Conn {
	c.hijacked = true
	return c.conn
}

// Upgrader is what a Guest handler's ResponseWriter is, for execs.
type Upgrader interface{ Upgrade() net.Conn }

// Raw is what a Guest handler's ResponseWriter is, for what is no HTTP.
type Raw interface{ Raw() net.Conn }
