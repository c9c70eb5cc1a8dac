package e2e

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A command that a hibernation cut off is told apart from one that was never
// begun: it is not begun a second time, and the sandbox is left asleep. In the
// guest it goes on after the wake.
func TestAHibernatedCommandIsNotRunTwice(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), s.ID, api.Exec{Cmd: api.Shell(`echo x >>/n; sleep 8; echo end >>/ended`)})
		ended <- err
	}()
	eventually(t, time.Minute, "the command to begin", func(ctx context.Context) error {
		_, err := c.StatFile(ctx, s.ID, "/n")
		return err
	})
	if _, err := c.HibernateSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	var refused *api.Error
	if err := <-ended; !errors.As(err, &refused) || refused.Status != http.StatusConflict || refused.Message != "sandbox stopped while this was under way" {
		t.Errorf("the command that was cut off: %v", err)
	}
	if now, err := c.GetSandbox(t.Context(), s.ID); err != nil || now.Status != "hibernated" {
		t.Errorf("the sandbox is %v, %v; want it asleep", now, err)
	}
	if _, err := c.WakeSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the command's end, without a caller", func(ctx context.Context) error {
		_, err := c.StatFile(ctx, s.ID, "/ended")
		return err
	})
	if got := c.exec(t, s.ID, "wc -l </n"); strings.TrimSpace(got) != "1" {
		t.Errorf("the command began %s times", strings.TrimSpace(got))
	}
}

// A viewer who takes nothing of a preview holds up neither a hibernation nor a
// delete.
func TestAViewerWhoNeverReadsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	s := c.create(t)
	const program = `
import socket
l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("0.0.0.0", 3000)); l.listen(8)
open("/ready", "w").close()
kept = []
while True:
    c, _ = l.accept()
    kept.append(c)
    c.settimeout(3)
    try:
        c.recv(4096)
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True: c.sendall(b"x" * 65536)
    except TimeoutError:
        open("/stuck", "a").write("x\n")
`
	if _, err := c.WriteFile(t.Context(), s.ID, "/serve.py", "0644", strings.NewReader(program), int64(len(program))); err != nil {
		t.Fatal(err)
	}
	c.exec(t, s.ID, "setsid python3 /serve.py >/dev/null 2>&1 </dev/null &")
	eventually(t, 2*time.Minute, "the server", func(ctx context.Context) error {
		_, err := c.StatFile(ctx, s.ID, "/ready")
		return err
	})
	to, err := url.Parse(theStack.URLs[0])
	if err != nil {
		t.Fatal(err)
	}
	stuck := func(n int) {
		t.Helper()
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", to.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: " + previewHost(3000, s.ID) + "\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		eventually(t, 2*time.Minute, "the viewer to hold the server up", func(ctx context.Context) error {
			f, err := c.ReadFile(ctx, s.ID, "/stuck")
			if err != nil {
				return err
			}
			defer f.Close()
			var seen bytes.Buffer
			if _, err := seen.ReadFrom(f); err != nil || bytes.Count(seen.Bytes(), []byte("x")) < n {
				return errors.Join(err, os.ErrNotExist)
			}
			return nil
		})
	}
	stuck(1)
	if _, err := c.HibernateSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WakeSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	stuck(2)
	// A delete that waits for its host says 204 after a while, all the same: what
	// counts is that the sandbox is gone then.
	if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if now, err := c.GetSandbox(t.Context(), s.ID); api.StatusOf(err) != http.StatusNotFound {
		t.Errorf("after the delete: %+v, %v", now, err)
	}
}
