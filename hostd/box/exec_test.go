package box_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// withExec starts a box whose guest answers execs with serve.
func withExec(t *testing.T, serve func(net.Conn, guestapi.ExecRequest), change ...func(*box.Config, *box.Deps)) (*boxtest.World, *daemon) {
	t.Helper()
	w := boxtest.NewWorld(t)
	d := start(t, w, change...)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		var r guestapi.ExecRequest
		_ = json.NewDecoder(req.Body).Decode(&r)
		conn := rw.(boxtest.Upgrader).Upgrade()
		defer conn.Close()
		serve(conn, r)
	})
	return w, d
}

func exit(conn net.Conn, e guestapi.ExecExit) {
	raw, _ := json.Marshal(e)
	_ = guestapi.WriteFrame(conn, guestapi.FrameExit, raw)
}

func run(d *daemon, ctx context.Context) (hostapi.ExecResult, error) {
	return d.Exec(ctx, idA, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Minute, OutputLimitBytes: 1 << 20})
}

func TestExecKeepsStreamsApartAndPassesTheRequestOn(t *testing.T) {
	_, d := withExec(t, func(conn net.Conn, r guestapi.ExecRequest) {
		_ = guestapi.WriteFrame(conn, guestapi.FrameStdout, []byte(strings.Join(r.Argv, "|")))
		_ = guestapi.WriteFrame(conn, guestapi.FrameStderr, []byte(r.Cwd+r.User+r.Env["K"]+string(r.Stdin)))
		exit(conn, guestapi.ExecExit{ExitCode: 143, DurationMS: 7, TimedOut: true})
	})
	res, err := d.Exec(t.Context(), idA, hostapi.ExecRequest{
		Argv: []string{"sh", "-c", "a\nb"}, Cwd: "/tmp", User: "me", Env: map[string]string{"K": "v"}, Stdin: []byte("in"), Timeout: time.Second,
	})
	must(t, err)
	if string(res.Stdout) != "sh|-c|a\nb" || string(res.Stderr) != "/tmpmevin" || res.ExitCode != 143 || !res.TimedOut || res.DurationMS != 7 {
		t.Errorf("result = %+v", res)
	}
}

func TestExecKeepsTheLimitAgainstAGuestThatDoesNot(t *testing.T) {
	chunk := bytes.Repeat([]byte("x"), 200<<10)
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		for range 100 {
			if guestapi.WriteFrame(conn, guestapi.FrameStdout, chunk) != nil {
				return
			}
		}
		exit(conn, guestapi.ExecExit{})
	})
	res, err := run(d, t.Context())
	must(t, err)
	if len(res.Stdout) != 1<<20 || !res.Truncated {
		t.Errorf("kept %d bytes, truncated=%v", len(res.Stdout), res.Truncated)
	}
}

func TestExecsShareAMemoryBudget(t *testing.T) {
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		for range 8 {
			_ = guestapi.WriteFrame(conn, guestapi.FrameStdout, chunk)
		}
		exit(conn, guestapi.ExecExit{})
	}, func(c *box.Config, _ *box.Deps) { c.OutputBudget = 256 << 10 })
	for range 3 { // the budget comes back
		res, err := run(d, t.Context())
		must(t, err)
		if len(res.Stdout) != 256<<10 || !res.Truncated {
			t.Errorf("kept %d bytes, truncated=%v", len(res.Stdout), res.Truncated)
		}
	}
}

func TestACallerWhoGoesAwayClosesTheConnection(t *testing.T) {
	closed, serving := make(chan struct{}), make(chan struct{})
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		close(serving)
		_, _ = io.Copy(io.Discard, conn)
		close(closed)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-serving; cancel() }()
	if _, err := run(d, ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("exec = %v, want context.Canceled", err)
	}
	<-closed
}

func TestADeadVMEndsItsExecs(t *testing.T) {
	serving := make(chan struct{})
	w, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		close(serving)
		_, _ = io.Copy(io.Discard, conn)
	})
	go func() { <-serving; w.VMM(idA).Die(syscall.SIGKILL) }()
	if _, err := run(d, t.Context()); !errors.Is(err, box.ErrNotRunning) {
		t.Errorf("exec = %v, want ErrNotRunning", err)
	}
}

func TestADeleteEndsExecsBeforeTheSlotGoesBack(t *testing.T) {
	serving := make(chan struct{})
	w, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		close(serving)
		_, _ = io.Copy(io.Discard, conn)
	})
	result := make(chan error, 1)
	go func() { _, err := run(d, t.Context()); result <- err }()
	<-serving
	must(t, d.Delete(t.Context(), idA, 1))
	if err := <-result; !errors.Is(err, box.ErrNotRunning) {
		t.Errorf("exec = %v, want ErrNotRunning", err)
	}
	nothingLeft(t, w, d)
}

func TestTooManyExecsAreRefused(t *testing.T) {
	serving := make(chan struct{}, 8)
	release := make(chan struct{})
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		serving <- struct{}{}
		<-release
		exit(conn, guestapi.ExecExit{})
	})
	results := make(chan error, 4)
	for range 4 {
		go func() { _, err := run(d, t.Context()); results <- err }()
		<-serving
	}
	if _, err := run(d, t.Context()); !errors.Is(err, box.ErrBusy) {
		t.Errorf("fifth exec = %v, want ErrBusy", err)
	}
	close(release)
	for range 4 {
		must(t, <-results)
	}
}

func TestHostileFrames(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"closed before the exit": func(c net.Conn) { _ = guestapi.WriteFrame(c, guestapi.FrameStdout, []byte("x")) },
		"a frame too large":      func(c net.Conn) { _, _ = c.Write([]byte{1, 0xff, 0xff, 0xff, 0xff}) },
		"an unknown frame":       func(c net.Conn) { _ = guestapi.WriteFrame(c, 9, nil) },
		"an exit that is no JSON": func(c net.Conn) {
			_ = guestapi.WriteFrame(c, guestapi.FrameExit, []byte("bye"))
		},
		"half a head": func(c net.Conn) { _, _ = c.Write([]byte{1, 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) { serve(conn) })
			if _, err := run(d, t.Context()); !errors.Is(err, box.ErrGuest) {
				t.Errorf("exec = %v, want ErrGuest", err)
			}
		})
	}
}

func TestACommandThatCannotStartIsTheCallersError(t *testing.T) {
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		_ = guestapi.WriteFrame(conn, guestapi.FrameError, []byte(`{"error":"no such user","detail":"nobody2"}`))
	})
	if _, err := run(d, t.Context()); !errors.Is(err, box.ErrInvalid) || !strings.Contains(err.Error(), "no such user: nobody2") {
		t.Errorf("exec = %v, want ErrInvalid with the guest's words", err)
	}
}

func TestBadExecs(t *testing.T) {
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) { exit(conn, guestapi.ExecExit{}) })
	for name, r := range map[string]hostapi.ExecRequest{
		"no argv":            {Timeout: time.Second},
		"empty program":      {Argv: []string{""}, Timeout: time.Second},
		"NUL in argv":        {Argv: []string{"a\x00b"}, Timeout: time.Second},
		"argv of 2 MiB":      {Argv: []string{strings.Repeat("x", 2<<20)}, Timeout: time.Second},
		"no time-out":        {Argv: []string{"x"}},
		"negative time-out":  {Argv: []string{"x"}, Timeout: -1},
		"time-out of a day":  {Argv: []string{"x"}, Timeout: 24 * time.Hour},
		"NUL in cwd":         {Argv: []string{"x"}, Timeout: time.Second, Cwd: "\x00"},
		"= in an env's name": {Argv: []string{"x"}, Timeout: time.Second, Env: map[string]string{"=": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := d.Exec(t.Context(), idA, r); !errors.Is(err, box.ErrInvalid) {
				t.Errorf("exec = %v, want ErrInvalid", err)
			}
		})
	}
}
