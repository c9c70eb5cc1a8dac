package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/tier"
)

func sh(line string) []string { return []string{"/bin/sh", "-c", line} }

// alive is false for a zombie, too: it waits for a parent that is not ours.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// reporting is a command line that first writes its pid to a file.
func reporting(t *testing.T, line string) (argv []string, pid func() int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pid")
	return sh("echo $$ > " + file + "; " + line), func() int {
		var pid int
		await(t, "the command's pid", func() bool {
			raw, err := os.ReadFile(file)
			if err != nil {
				return false
			}
			pid, err = strconv.Atoi(strings.TrimSpace(string(raw)))
			return err == nil
		})
		return pid
	}
}

func TestExec(t *testing.T) {
	w := start(t)
	for name, c := range map[string]struct {
		req  guestapi.ExecRequest
		want guestclient.Result
	}{
		"with streams and code": {
			guestapi.ExecRequest{Argv: sh("echo out; echo err >&2; exit 4")},
			guestclient.Result{ExecExit: guestapi.ExecExit{ExitCode: 4}, Stdout: []byte("out\n"), Stderr: []byte("err\n")},
		},
		"with input": {
			guestapi.ExecRequest{Argv: []string{"cat"}, Stdin: []byte("a\x00\xff\n")},
			guestclient.Result{Stdout: []byte("a\x00\xff\n")},
		},
		"of a program that is not there": {
			guestapi.ExecRequest{Argv: []string{"no-such-program"}},
			guestclient.Result{ExecExit: guestapi.ExecExit{ExitCode: 127}, Stderr: []byte("no-such-program: command not found\n")},
		},
		"of a file that is no program": {
			guestapi.ExecRequest{Argv: []string{"/etc/passwd"}},
			guestclient.Result{ExecExit: guestapi.ExecExit{ExitCode: 126}, Stderr: []byte("/etc/passwd: permission denied\n")},
		},
		"past its output limit": {
			guestapi.ExecRequest{Argv: sh("echo 123456789"), OutputLimitBytes: 4},
			guestclient.Result{ExecExit: guestapi.ExecExit{Truncated: true}, Stdout: []byte("1234")},
		},
		"past its time": {
			guestapi.ExecRequest{Argv: sh("echo begun; sleep 1000"), Timeout: 300 * time.Millisecond},
			guestclient.Result{ExecExit: guestapi.ExecExit{ExitCode: 137, Signal: "KILL", TimedOut: true}, Stdout: []byte("begun\n")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := w.client.Run(t.Context(), c.req)
			if err != nil {
				t.Fatal(err)
			}
			got.DurationMS = 0
			if got.ExecExit != c.want.ExecExit || !bytes.Equal(got.Stdout, c.want.Stdout) || !bytes.Equal(got.Stderr, c.want.Stderr) {
				t.Errorf("got %+v %q %q, want %+v", got.ExecExit, got.Stdout, got.Stderr, c.want)
			}
		})
	}
}

// The request has up to six bytes for one of a command.
func TestCommandOfAnyCharactersIsTaken(t *testing.T) {
	w := start(t)
	for _, char := range []string{"<", "\x01"} {
		argv := []string{"/bin/sh", "-c", `printf %s "$@" | wc -c`, "sh"}
		const size, each = 1_000_000, 100_000
		for range size / each {
			argv = append(argv, strings.Repeat(char, each))
		}
		got, err := w.client.Run(t.Context(), guestapi.ExecRequest{Argv: argv})
		if err != nil || strings.TrimSpace(string(got.Stdout)) != strconv.Itoa(size) {
			t.Errorf("of %q: %q, %q, %v", char, got.Stdout, got.Stderr, err)
		}
	}
}

func TestCommandThatIsNoneIsRefused(t *testing.T) {
	w := start(t)
	for name, c := range map[string]struct {
		req    guestapi.ExecRequest
		status int // 0: refused when it is started
		code   string
	}{
		"empty argv":   {guestapi.ExecRequest{}, http.StatusBadRequest, ""},
		"NUL in argv":  {guestapi.ExecRequest{Argv: []string{"a\x00"}}, http.StatusBadRequest, ""},
		"bad variable": {guestapi.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"A=": ""}}, http.StatusBadRequest, ""},
		"unknown user": {guestapi.ExecRequest{Argv: []string{"true"}, User: "nobody-here"}, 0, guestapi.CodeNoUser},
		"missing cwd":  {guestapi.ExecRequest{Argv: []string{"true"}, Cwd: "/no/such/dir"}, 0, guestapi.CodeInvalidCwd},
		"file as cwd":  {guestapi.ExecRequest{Argv: []string{"true"}, Cwd: "/etc/passwd"}, 0, guestapi.CodeInvalidCwd},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.client.Run(t.Context(), c.req)
			var refused *guestclient.Error
			if !errors.As(err, &refused) || refused.Status != c.status || refused.Body.Code != c.code {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestProgramThatMustStart(t *testing.T) {
	w := start(t)
	for name, program := range map[string]string{"missing": guestapi.LSPDir + "/no-such-language", "no program": "/etc/passwd", "a directory": "/etc"} {
		t.Run(name, func(t *testing.T) {
			_, err := w.client.Run(t.Context(), guestapi.ExecRequest{Argv: []string{program}, MustStart: true, OpenStdin: true})
			var refused *guestclient.Error
			if !errors.As(err, &refused) || refused.Body.Code != guestapi.CodeNoProgram || !strings.Contains(refused.Body.Detail, program) {
				t.Errorf("got %v", err)
			}
		})
	}
	res, err := w.client.Run(t.Context(), guestapi.ExecRequest{Argv: sh("exit 127"), MustStart: true})
	if err != nil || res.ExitCode != 127 {
		t.Errorf("one that ends as if it were missing: %+v, %v", res, err)
	}
	var refused *guestclient.Error
	if _, err := w.client.Run(t.Context(), guestapi.ExecRequest{Argv: sh("true"), User: "nobody-here", MustStart: true}); !errors.As(err, &refused) || refused.Body.Code != guestapi.CodeNoUser {
		t.Errorf("another error: %v", err)
	}
}

func TestCallerThatGoesAwayEndsTheCommand(t *testing.T) {
	w := start(t)
	for name, line := range map[string]string{
		"while it is silent":           "sleep 1000",
		"while it ignores signals":     "trap '' HUP INT TERM PIPE; sleep 1000; sleep 1000",
		"while it writes":              "yes",
		"while it reads no input":      "exec sleep 1000",
		"while its output is not read": "yes long-output-that-fills-buffers",
	} {
		t.Run(name, func(t *testing.T) {
			argv, pid := reporting(t, line)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			streams := guestclient.Streams{}
			if strings.Contains(name, "input") {
				streams.Stdin = endless{}
			}
			unread := make(chan struct{})
			if strings.Contains(name, "not read") {
				streams.Stdout = blocked{unread}
			}
			done := make(chan error, 1)
			go func() {
				_, err := w.client.Exec(ctx, guestapi.ExecRequest{Argv: argv}, streams)
				done <- err
			}()
			p := pid()
			cancel()
			close(unread)
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			await(t, "the command's end", func() bool { return !alive(p) })
		})
	}
}

// TestReaderThatStopsHoldsTheCommand counts what a command could write while
// nobody reads it: what the buffers on the way hold, and no more.
func TestReaderThatStopsHoldsTheCommand(t *testing.T) {
	const piece, most = 64 << 10, 32 << 20
	w := start(t)
	dir := t.TempDir()
	count := func() int {
		st, err := os.Stat(filepath.Join(dir, "count"))
		if err != nil {
			return 0
		}
		return int(st.Size()) * piece
	}
	read := make(chan struct{})
	done := make(chan error, 1)
	var n counter
	go func() {
		_, err := w.client.Exec(t.Context(), guestapi.ExecRequest{
			Argv: sh("i=0; while [ $i -lt 1000 ]; do head -c " + strconv.Itoa(piece) + " /dev/zero; printf x >> count; i=$((i+1)); done"), Cwd: dir,
		}, guestclient.Streams{Stdout: io.MultiWriter(blocked{read}, &n)})
		done <- err
	}()
	before, same := -1, 0
	await(t, "the command to stand still", func() bool {
		now := count()
		if same++; now != before || now == 0 {
			before, same = now, 0
		}
		return same > 100
	})
	if before > most {
		t.Errorf("it wrote %d MB that nobody read", before>>20)
	}
	close(read)
	if err := <-done; err != nil || n != 1000*piece {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

type blocked struct{ until chan struct{} }

func (b blocked) Write(p []byte) (int, error) { <-b.until; return len(p), nil }

// TestNewIdentityPartsCommandsFromTheirCallers also has a fork, whose generation
// is that of its parent or a lower one.
func TestNewIdentityPartsCommandsFromTheirCallers(t *testing.T) {
	tier.Slow(t)
	first := testIdentity(2)
	woken, fork := first, testIdentity(1)
	woken.Entropy = bytes.Repeat([]byte{1}, 64)
	fork.Entropy, fork.MachineID = woken.Entropy, strings.Repeat("cd", 16)
	for name, c := range map[string]struct {
		next  guestapi.Identity
		parts bool
	}{
		"a later generation": {testIdentity(3), true}, "a wake": {woken, true}, "a fork": {fork, true}, "the same again": {first, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			_, err := w.client.Identity(t.Context(), first)
			must(t, err)
			out := filepath.Join(t.TempDir(), "out")
			argv, pid := reporting(t, "while :; do echo line; [ -e "+out+" ] && exit; sleep 0.01; done")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := w.client.Exec(ctx, guestapi.ExecRequest{Argv: argv}, guestclient.Streams{})
				done <- err
			}()
			p := pid()
			_, err = w.client.Identity(t.Context(), c.next)
			must(t, err)
			cancel()
			<-done
			if c.parts {
				outlives(t, p)
				must(t, os.WriteFile(out, nil, 0o644))
			}
			await(t, "the command's end", func() bool { return !alive(p) })
		})
	}
}

// outlives fails if the process ends as one does whose caller went.
func outlives(t *testing.T, pid int) {
	t.Helper()
	gone := time.After(3 * goneGrace)
	for {
		select {
		case <-gone:
			return
		case <-time.After(10 * time.Millisecond):
			if !alive(pid) {
				t.Fatal("the command ended with its caller")
			}
		}
	}
}

func TestSignalsAndResizes(t *testing.T) {
	w := start(t)
	signals, resizes := make(chan string, 2), make(chan guestapi.TTY, 1)
	shown := &screen{}
	done := make(chan guestapi.ExecExit, 1)
	go func() {
		exit, err := w.client.Exec(t.Context(), guestapi.ExecRequest{
			Argv: sh("trap 'stty size' WINCH; trap 'exit 3' USR1; echo ready; while :; do read x; done"),
			TTY:  &guestapi.TTY{Cols: 80, Rows: 24, Term: "vt100"}, OpenStdin: true,
		}, guestclient.Streams{Stdout: shown, Signals: signals, Resizes: resizes})
		if err != nil {
			t.Error(err)
		}
		done <- exit
	}()
	await(t, "the shell", func() bool { return shown.shows("ready") })
	resizes <- guestapi.TTY{Cols: 111, Rows: 44}
	await(t, "the new size", func() bool { return shown.shows("44 111") })
	signals <- "NOSUCH" // ignored
	signals <- "USR1"
	if exit := <-done; exit.ExitCode != 3 {
		t.Errorf("got %+v", exit)
	}
}

type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *screen) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.buf.String(), text)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func TestInputPastTheCommandsEnd(t *testing.T) {
	w := start(t)
	exit, err := w.client.Exec(t.Context(), guestapi.ExecRequest{Argv: sh("head -c 10 >/dev/null; exit 8")}, guestclient.Streams{Stdin: endless{}})
	if err != nil || exit.ExitCode != 8 {
		t.Errorf("got %+v, %v", exit, err)
	}
}

func TestLargeInputAndOutput(t *testing.T) {
	w := start(t)
	const size = 64 << 20
	var n counter
	exit, err := w.client.Exec(t.Context(), guestapi.ExecRequest{Argv: []string{"cat"}},
		guestclient.Streams{Stdin: io.LimitReader(endless{}, size), Stdout: &n})
	if err != nil || exit.ExitCode != 0 || n != size {
		t.Errorf("got %+v, %v, %d bytes", exit, err, n)
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) { *c += counter(len(b)); return len(b), nil }

func TestGarbageFromTheCallerEndsTheCommand(t *testing.T) {
	w := start(t)
	for name, garbage := range map[string]string{
		"a frame of unknown type": "\x63\x00\x00\x00\x00",
		"a frame too large":       "\x10\xff\xff\xff\xff",
		"half a frame":            "\x10\x00\x00\x00\x05ab",
	} {
		t.Run(name, func(t *testing.T) {
			argv, pid := reporting(t, "sleep 1000")
			conn, err := net.Dial("tcp", w.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			body := `{"argv":["/bin/sh","-c",` + strconv.Quote(argv[2]) + `],"open_stdin":true}`
			if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: %d\r\n\r\n%s",
				guestapi.PathExec, guestapi.Upgrade, len(body), body); err != nil {
				t.Fatal(err)
			}
			p := pid()
			if _, err := io.WriteString(conn, garbage); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "half") {
				conn.Close()
			}
			await(t, "the command's end", func() bool { return !alive(p) })
		})
	}
}

func TestTooManyCommandsAreRefused(t *testing.T) {
	w := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	refused := make(chan error, maxExecs+1)
	for range maxExecs + 1 {
		running.Go(func() {
			_, err := w.client.Run(ctx, guestapi.ExecRequest{Argv: []string{"sleep", "1000"}})
			refused <- err
		})
	}
	err := <-refused // the others run
	var full *guestclient.Error
	if !errors.As(err, &full) || full.Status != http.StatusServiceUnavailable || full.Body.Code != guestapi.CodeLimit {
		t.Errorf("got %v", err)
	}
	cancel()
	running.Wait()
}
