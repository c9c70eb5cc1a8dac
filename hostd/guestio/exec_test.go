package guestio_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/tier"
)

// withExec starts a box whose guest answers execs with serve.
func withExec(t *testing.T, serve func(net.Conn, guestapi.ExecRequest), change ...func(*box.Config, *box.Deps)) (*boxtest.World, *daemon) {
	t.Helper()
	w := boxtest.NewWorld(t)
	d := start(t, w, change...)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path != guestapi.PathExec {
			rw.WriteHeader(http.StatusNoContent)
			return
		}
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
	}, func(c *box.Config, _ *box.Deps) { c.OutputBudget = 1 << 20 })
	for range 6 { // the budget comes back once a result was read
		await(t, func() bool {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res, err := run(d, ctx)
			must(t, err)
			return len(res.Stdout) == 256<<10 && res.Truncated
		})
	}
	res, err := run(d, t.Context())
	must(t, err)
	if another, err := run(d, t.Context()); err != nil || len(res.Stdout)+len(another.Stdout) > 256<<10 || !another.Truncated {
		t.Errorf("one box holds %d and %d bytes, %v", len(res.Stdout), len(another.Stdout), err)
	}
}

// A command that has written much and sleeps holds its output for as long as it
// runs, and a workspace may have any number of boxes for such.
func TestAWorkspaceLeavesSomeOfTheBudgetToOthers(t *testing.T) {
	const share = 256 << 10 // of a box
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	w, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		for range 8 {
			_ = guestapi.WriteFrame(conn, guestapi.FrameStdout, chunk)
		}
		exit(conn, guestapi.ExecExit{})
	}, func(c *box.Config, _ *box.Deps) { c.OutputBudget, c.MemoryMB = 4*share, 6*600 })
	exec := func(ctx context.Context, id string) hostapi.ExecResult {
		res, err := d.Exec(ctx, id, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Minute, OutputLimitBytes: 1 << 20})
		must(t, err)
		return res
	}
	put := func(letter, workspace string) string {
		id := strings.Repeat(letter, len(idA))
		s := spec(1)
		s.WorkspaceID = workspace
		_, err := d.Put(t.Context(), id, s)
		must(t, err)
		return id
	}
	commands := w.Guest
	w.Guest = nil // a guest that takes an identity
	one := []string{put("c", "one"), put("d", "one"), put("e", "one"), put("f", "one")}
	w.Guest = commands
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	held := 0
	for _, id := range one {
		held += len(exec(ctx, id).Stdout)
	}
	if held != 2*share {
		t.Errorf("one workspace holds %d bytes of %d", held, 4*share)
	}
	// That of idA is another.
	if res := exec(ctx, idA); len(res.Stdout) != share {
		t.Errorf("%d bytes are left for another", len(res.Stdout))
	}
	leave()
	await(t, func() bool {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		return len(exec(ctx, one[3]).Stdout) == share
	})
}

// Input that a command does not read is held for as long as it runs.
func TestInputsShareTheMemoryBudget(t *testing.T) {
	const share = 256 << 10 // of the box
	serving, over := make(chan struct{}, 8), make(chan struct{})
	_, d := withExec(t, func(conn net.Conn, r guestapi.ExecRequest) {
		for kind := guestapi.FrameStdin; r.Argv[0] == "reads" && kind != guestapi.FrameEOF; {
			var err error
			if kind, _, err = guestapi.ReadFrame(conn, nil); err != nil {
				t.Error(err)
				return
			}
		}
		serving <- struct{}{}
		<-over
		exit(conn, guestapi.ExecExit{})
	}, func(c *box.Config, _ *box.Deps) { c.OutputBudget = 4 * share })
	exec := func(ctx context.Context, program string, n int) error {
		_, err := d.Exec(ctx, idA, hostapi.ExecRequest{
			Argv: []string{program}, Timeout: time.Minute, OutputLimitBytes: 1 << 20, Stdin: make([]byte, n),
		})
		return err
	}
	stream := func(program string, n int) (*guestio.Conn, io.Reader, error) {
		return d.ExecStream(t.Context(), idA, hostapi.ExecStream{Argv: []string{program}, Stdin: make([]byte, n)})
	}
	refused := func(n int, what string) {
		t.Helper()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		result := make(chan error, 1)
		go func() { result <- exec(ctx, "reads", n) }()
		select {
		case err := <-result:
			if !errors.Is(err, hosterr.ErrBusy) {
				t.Errorf("%s: %v, want ErrBusy", what, err)
			}
		case <-serving:
			t.Errorf("%s: it is taken", what)
		}
		if conn, _, err := stream("idles", n); !errors.Is(err, hosterr.ErrBusy) {
			t.Errorf("%s, streamed: %v, want ErrBusy", what, err)
			must(t, conn.Close())
		}
	}
	refused(share+1, "more than a share")

	result := make(chan error, 2)
	ctx, leave := context.WithCancel(t.Context())
	go func() { result <- exec(ctx, "idles", share) }()
	<-serving
	refused(share, "beside a command that does not read")
	leave()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for range 2 { // the first has read its own when the second comes
		go func() { result <- exec(t.Context(), "reads", share) }()
		<-serving
	}
	conn, first, err := stream("reads", share)
	must(t, err)
	_, err = io.Copy(conn, first)
	must(t, err)
	<-serving
	idle, _, err := stream("idles", share)
	must(t, err)
	<-serving
	close(over)
	for range 2 {
		must(t, <-result)
	}
	refused(share, "beside a stream that was passed on to nobody")
	must(t, idle.Close())
	must(t, conn.Close())
	last, _, err := stream("idles", share)
	must(t, err)
	must(t, last.Close())
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
	if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrCutOff) || errors.Is(err, hosterr.ErrNotRunning) {
		t.Errorf("exec = %v, want ErrCutOff", err)
	}
}

// Who is refused may ask again; who was cut off must not.
func TestAHibernateCutsOffWhatWasBegun(t *testing.T) {
	serving := make(chan struct{})
	_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
		close(serving)
		_, _ = io.Copy(io.Discard, conn)
	})
	ended := make(chan error, 1)
	go func() {
		<-serving
		_, err := d.Hibernate(t.Context(), idA)
		ended <- err
	}()
	if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrCutOff) || errors.Is(err, hosterr.ErrNotRunning) || !strings.Contains(err.Error(), "hibernated") {
		t.Errorf("exec = %v, want ErrCutOff for it is hibernated", err)
	}
	must(t, <-ended)
	if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrNotRunning) || errors.Is(err, hosterr.ErrCutOff) {
		t.Errorf("exec = %v, want ErrNotRunning", err)
	}
}

// unanswered are slots in which no guest accepts a connection.
type unanswered struct {
	box.Slots
	on      atomic.Bool
	dialled chan struct{}
}

func (s *unanswered) Dial(ctx context.Context, n, port int) (net.Conn, error) {
	if !s.on.Load() {
		return s.Slots.Dial(ctx, n, port)
	}
	select {
	case s.dialled <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestWhatNeverReachedTheGuestWasNotBegun(t *testing.T) {
	tier.Slow(t)
	slots := &unanswered{dialled: make(chan struct{}, 1)}
	_, d := withExec(t, func(net.Conn, guestapi.ExecRequest) {}, func(_ *box.Config, deps *box.Deps) {
		slots.Slots, deps.Slots = deps.Slots, slots
	})
	slots.on.Store(true)
	for name, ask := range map[string]func() error{
		"exec": func() error { _, err := run(d, t.Context()); return err },
		"stream": func() error {
			_, _, err := d.ExecStream(t.Context(), idA, hostapi.ExecStream{Argv: []string{"x"}})
			return err
		},
		"dial": func() error { _, err := d.DialPort(t.Context(), idA, 80); return err },
	} {
		ended := make(chan error, 1)
		go func() { ended <- ask() }()
		<-slots.dialled
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
		if err := <-ended; !errors.Is(err, hosterr.ErrNotRunning) || errors.Is(err, hosterr.ErrCutOff) {
			t.Errorf("%s = %v, want ErrNotRunning", name, err)
		}
		slots.on.Store(false)
		_, err = d.Wake(t.Context(), idA)
		must(t, err)
		slots.on.Store(true)
	}
}

// A guest on a busy host may be late with everything, also with the kill.
func TestACommandWhoseTimeIsOverHasTimedOut(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"a guest that says nothing": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"a guest in the middle of a frame": func(c net.Conn) {
			_, _ = c.Write([]byte{1, 0})
			_, _ = io.Copy(io.Discard, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// In the bubble's clock no time passes while something is on its way.
			synctest.Test(t, func(t *testing.T) {
				gone := make(chan struct{})
				_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
					defer close(gone)
					_ = guestapi.WriteFrame(conn, guestapi.FrameStdout, []byte("so far"))
					serve(conn)
				})
				res, err := d.Exec(t.Context(), idA, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Millisecond, OutputLimitBytes: 1 << 20})
				must(t, err)
				if !res.TimedOut || string(res.Stdout) != "so far" || res.ExitCode != 137 {
					t.Errorf("result = %+v", res)
				}
				<-gone // the connection is closed, upon which a guest kills the command
				d.Close()
			})
		})
	}
}

func TestAnAnswerWithoutEndIsGivenUp(t *testing.T) {
	for name, head := range map[string]string{
		"a status line": "HTTP/1.1 101 ", "a header": "HTTP/1.1 101 Switching Protocols\r\nX: ",
		"many headers": "HTTP/1.1 101 Switching Protocols\r\n" + strings.Repeat("X: y\r\n", 100),
	} {
		t.Run(name, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, spec(1))
			must(t, err)
			w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				conn := rw.(boxtest.Raw).Raw()
				defer conn.Close()
				_, err := io.WriteString(conn, head)
				for n := 0; err == nil; n++ {
					if n > 1<<10 {
						t.Error("the host went on reading")
						return
					}
					_, err = conn.Write(bytes.Repeat([]byte("X: y\r\n"), 1<<10)[:1<<10])
				}
			})
			if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrGuest) {
				t.Errorf("exec = %v, want ErrGuest", err)
			}
			if _, _, err := d.ExecStream(t.Context(), idA, hostapi.ExecStream{Argv: []string{"x"}}); !errors.Is(err, hosterr.ErrGuest) {
				t.Errorf("stream = %v, want ErrGuest", err)
			}
		})
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
	if err := <-result; !errors.Is(err, hosterr.ErrCutOff) || !strings.Contains(err.Error(), "deleted") {
		t.Errorf("exec = %v, want ErrCutOff for it was deleted", err)
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
	if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrBusy) {
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
			if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrGuest) {
				t.Errorf("exec = %v, want ErrGuest", err)
			}
		})
	}
}

func TestACommandThatCannotStartIsTheCallersError(t *testing.T) {
	for name, c := range map[string]struct {
		refusal string
		want    error
	}{
		"a user that is not there":      {`{"error":"command not started","detail":"no such user","code":"no_such_user"}`, hosterr.ErrUser},
		"a directory that is not there": {`{"error":"command not started","detail":"cwd","code":"invalid_cwd"}`, hosterr.ErrCwd},
		"another code":                  {`{"error":"command not started","detail":"cwd","code":"other"}`, hosterr.ErrInvalid},
		"an agent without codes":        {`{"error":"command not started","detail":"cwd"}`, hosterr.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
				_ = guestapi.WriteFrame(conn, guestapi.FrameError, []byte(c.refusal))
			})
			_, err := run(d, t.Context())
			if !errors.Is(err, c.want) || !errors.Is(err, hosterr.ErrInvalid) || !strings.HasPrefix(err.Error(), "invalid request: command not started: ") {
				t.Errorf("exec = %v, want %v with the guest's words", err, c.want)
			}
			special := errors.Is(err, hosterr.ErrUser) || errors.Is(err, hosterr.ErrCwd)
			if special != (c.want != hosterr.ErrInvalid) { //nolint:errorlint // which of the sentinels the case names
				t.Errorf("exec = %#v, want no more than %v", err, c.want)
			}
		})
	}
}

// Agents of templates that were built long ago take smaller requests.
func TestACommandThatTheAgentFindsTooLargeIsTheCallersError(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
	w.Guest = http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if req.URL.Path == guestapi.PathExec {
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(rw, `{"error":"body over 4194304 bytes"}`)
			return
		}
		rw.WriteHeader(http.StatusNoContent)
	})
	if _, err := run(d, t.Context()); !errors.Is(err, hosterr.ErrInvalid) || !strings.Contains(err.Error(), "body over 4194304 bytes") {
		t.Errorf("exec = %v, want ErrInvalid with the guest's words", err)
	}
}

func TestAGuestThatCannotStartACommandIsToBlame(t *testing.T) {
	for name, c := range map[string]struct {
		refusal string
		want    error
	}{
		"a limit": {`{"error":"command not started","detail":"limit reached: processes","code":"limit_reached"}`, hosterr.ErrBusy},
		"a fault": {`{"error":"command not started","detail":"read /etc/passwd: input/output error","code":"fault"}`, hosterr.ErrGuest},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := withExec(t, func(conn net.Conn, _ guestapi.ExecRequest) {
				_ = guestapi.WriteFrame(conn, guestapi.FrameError, []byte(c.refusal))
			})
			if _, err := run(d, t.Context()); !errors.Is(err, c.want) || errors.Is(err, hosterr.ErrInvalid) || !strings.Contains(err.Error(), "command not started") {
				t.Errorf("exec = %v, want %v with the guest's words", err, c.want)
			}
		})
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
			if _, err := d.Exec(t.Context(), idA, r); !errors.Is(err, hosterr.ErrInvalid) {
				t.Errorf("exec = %v, want ErrInvalid", err)
			}
		})
	}
}
