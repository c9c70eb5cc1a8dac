package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

// endless writes until nobody has taken anything for a while, and tells so.
func endless(stuck chan<- struct{}) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		chunk := make([]byte, 1<<20)
		for {
			_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			if _, err := c.Write(chunk); err != nil {
				break
			}
		}
		close(stuck)
		_, _ = io.Copy(io.Discard, c)
	}
}

// Whoever takes nothing of what a sandbox sends must hold up neither its end nor
// anything else that is done to it.
func TestReadersWhoStopHoldNothingUp(t *testing.T) {
	tier.Slow(t)
	ends := map[string]func(context.Context, *live) error{
		"a delete":    func(ctx context.Context, l *live) error { return l.DeleteBox(ctx, id, 1) },
		"a hibernate": func(ctx context.Context, l *live) error { _, err := l.Hibernate(ctx, id); return err },
		"a pause":     func(ctx context.Context, l *live) error { _, err := l.Pause(ctx, id); return err },
		"a delete after the VMM's death": func(ctx context.Context, l *live) error {
			l.world.VMM(id).Die(syscall.SIGKILL)
			return l.DeleteBox(ctx, id, 1)
		},
	}
	readers := map[string]func(*testing.T, *live){
		"of a port": func(t *testing.T, l *live) {
			stuck := make(chan struct{})
			s, err := l.Dial(t.Context(), id, guestPort(t, endless(stuck)))
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			<-stuck
		},
		"of a port, with an end of the guest": func(t *testing.T, l *live) {
			wrote := make(chan struct{})
			s, err := l.Dial(t.Context(), id, guestPort(t, func(c *net.TCPConn) {
				defer close(wrote)
				_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
				_, _ = c.Write(make([]byte, 64<<20))
			}))
			must(t, err)
			t.Cleanup(func() { _ = s.Close() })
			<-wrote
		},
		"of a command": func(t *testing.T, l *live) {
			ready := filepath.Join(t.TempDir(), "stuck")
			l.stream(t, hostapi.ExecStream{Argv: sh("yes & sleep 0.5; echo x >" + ready + "; wait")})
			await(t, "the command", func() bool { _, err := os.Stat(ready); return err == nil })
		},
		"of a file": func(t *testing.T, l *live) {
			path := filepath.Join(t.TempDir(), "large")
			must(t, os.WriteFile(path, nil, 0o600))
			must(t, os.Truncate(path, 1<<30))
			resp, err := l.FS(t.Context(), http.MethodGet, id, hostapi.FSFile, at(path), nil, nil)
			must(t, err)
			t.Cleanup(func() { _ = resp.Body.Close() })
		},
	}
	for reader, stop := range readers {
		for name, end := range ends {
			t.Run(name+" and a reader "+reader, func(t *testing.T) {
				t.Parallel()
				l := goLive(t)
				stop(t, l)
				ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
				defer cancel()
				if err := end(ctx, l); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// The same command with the same input is taken by both ways to run one.
func TestInputOfACommandHasOneLimit(t *testing.T) {
	l := goLive(t)
	for size, code := range map[int]hostapi.Code{0: "", 1 << 20: "", hostapi.MaxBody: hostapi.CodeTooLarge} {
		stdin := make([]byte, size)
		want := strconv.Itoa(size) + "\n"
		res, err := l.Exec(t.Context(), id, hostapi.ExecRequest{Argv: []string{"wc", "-c"}, Stdin: stdin, Timeout: time.Minute})
		if code == "" && (err != nil || string(res.Stdout) != want) || code != "" && !hostapi.HasCode(err, code) {
			t.Errorf("exec with %d bytes: %q, %v", size, res.Stdout, err)
		}
		s, err := l.ExecStream(t.Context(), id, hostapi.ExecStream{Argv: []string{"wc", "-c"}, Stdin: stdin, Timeout: time.Minute})
		if code != "" {
			if !hostapi.HasCode(err, code) {
				t.Errorf("stream with %d bytes: %v", size, err)
			}
			continue
		}
		must(t, err)
		if out, _ := output(t, s, ""); out != want {
			t.Errorf("stream with %d bytes: %q", size, out)
		}
		_ = s.Close()
	}
}

// What holds a use of a box's slot may never give it back by itself: the use
// ends with the VMM all the same.
func TestAUseOfTheSlotEndsWithTheVMM(t *testing.T) {
	for name, hold := range map[string]func(*testing.T, *live){
		"an answer that nobody reads": func(t *testing.T, l *live) {
			resp, err := l.host.Guests().Relay(t.Context(), id, guestio.GuestRequest{Method: http.MethodGet, Path: guestapi.PathFSDir, Query: at("/")})
			must(t, err)
			t.Cleanup(func() { _ = resp.Body.Close() })
		},
		"a command that nobody closes": func(t *testing.T, l *live) {
			conn, _, err := l.host.Guests().ExecStream(t.Context(), id, hostapi.ExecStream{Argv: sh("sleep 1000")})
			must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
		},
		"a connection that nobody closes": func(t *testing.T, l *live) {
			conn, err := l.host.Guests().DialPort(t.Context(), id, guestPort(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }))
			must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := goLive(t)
			hold(t, l)
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			defer cancel()
			must(t, l.DeleteBox(ctx, id, 1))
		})
	}
}

// A command's characters count as they are, whatever JSON could make of them.
func TestALongCommandWithItsInputIsTaken(t *testing.T) {
	l := goLive(t)
	argv := []string{"sh", "-c", `printf %s "$@" | wc -c; wc -c`, "sh"}
	for range 10 {
		argv = append(argv, strings.Repeat("<", 100_000))
	}
	stdin := make([]byte, 6<<20)
	const want = "1000000\n6291456\n"
	res, err := l.Exec(t.Context(), id, hostapi.ExecRequest{Argv: argv, Stdin: stdin, Timeout: time.Minute})
	if err != nil || string(res.Stdout) != want {
		t.Errorf("exec: %q, %q, %v", res.Stdout, res.Stderr, err)
	}
	s := l.stream(t, hostapi.ExecStream{Argv: argv, Stdin: stdin, Timeout: time.Minute})
	if out, _ := output(t, s, ""); out != want {
		t.Errorf("stream: %q", out)
	}
}
