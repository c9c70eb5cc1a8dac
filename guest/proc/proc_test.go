package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/guestapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ran is a finished command.
type ran struct {
	exit           guestapi.ExecExit
	stdout, stderr string
}

func run(t *testing.T, spec Spec) ran {
	t.Helper()
	p, err := Start(Groups{}, spec)
	if err != nil {
		t.Fatalf("start %q: %v", spec.Argv, err)
	}
	return finish(p)
}

func finish(p *Process) ran {
	var stdout, stderr bytes.Buffer
	exit := p.Run(Collect(&stdout, &stderr))
	return ran{exit, stdout.String(), stderr.String()}
}

func sh(line string) []string { return []string{"/bin/sh", "-c", line} }

// await polls until ok, which is asked at once and then every few milliseconds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// alive is false for a zombie, too: it waits for a parent that is not ours.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestCommandEnds(t *testing.T) {
	for name, c := range map[string]struct {
		argv   []string
		code   int
		signal string
		out    string
	}{
		"with its exit code":         {argv: sh("echo out; exit 7"), code: 7, out: "out\n"},
		"by a signal":                {argv: sh("kill -TERM $$"), code: 143, signal: "TERM"},
		"by a signal of its own":     {argv: sh("kill -KILL $$"), code: 137, signal: "KILL"},
		"not found by the shell":     {argv: sh("no-such-program"), code: 127},
		"with a newline in argv":     {argv: []string{"printf", "%s", "a\nb\n"}, out: "a\nb\n"},
		"with bytes that are no UTF": {argv: []string{"printf", "%s", "\xff\xfe\x80"}, out: "\xff\xfe\x80"},
		"with an empty argument":     {argv: []string{"printf", "[%s]", ""}, out: "[]"},
		"having read nothing":        {argv: []string{"cat"}},
		"of the name that it is by":  {argv: []string{"sh", "-c", "echo $0"}, out: "sh\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, Spec{Argv: c.argv})
			if got.exit.ExitCode != c.code || got.exit.Signal != c.signal || got.stdout != c.out {
				t.Errorf("got %+v, want code %d, signal %q, output %q", got, c.code, c.signal, c.out)
			}
			if got.exit.TimedOut || got.exit.Truncated {
				t.Errorf("timed out or truncated: %+v", got.exit)
			}
		})
	}
}

func TestStreamsAreKeptApart(t *testing.T) {
	got := run(t, Spec{Argv: sh("echo to stdout; echo to stderr >&2")})
	if got.stdout != "to stdout\n" || got.stderr != "to stderr\n" {
		t.Errorf("got %+v", got)
	}
}

func TestEnvironmentIsMergedInOrder(t *testing.T) {
	got := run(t, Spec{
		Argv: []string{"env"},
		Env:  []map[string]string{{"A": "template", "B": "template"}, {"B": "identity", "C": "identity"}, {"C": "request", "PATH": os.Getenv("PATH")}},
	})
	for _, want := range []string{"A=template", "B=identity", "C=request", "LANG=C.UTF-8", "HOME="} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("environment lacks %s:\n%s", want, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "TERM=") {
		t.Errorf("TERM without a terminal:\n%s", got.stdout)
	}
}

func TestProgramIsLookedUpOnTheCommandsPath(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "tool")
	if err := os.WriteFile(script, []byte("echo found\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Run("by name, a script without an interpreter line", func(t *testing.T) {
		got := run(t, Spec{Argv: []string{"tool"}, Env: []map[string]string{{"PATH": dir + ":/bin"}}})
		if got.stdout != "found\n" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("by a path relative to cwd", func(t *testing.T) {
		if got := run(t, Spec{Argv: []string{"./tool"}, Cwd: dir}); got.stdout != "found\n" {
			t.Errorf("got %+v", got)
		}
	})
}

func TestProgramThatCannotRunIsTheCommandsFault(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("\x7fELF garbage"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		argv0 string
		code  int
	}{
		"unknown name":        {"no-such-program", 127},
		"unknown path":        {"/no/such/program", 127},
		"below a file":        {plain + "/x", 127},
		"empty name":          {"", 127},
		"without execute bit": {plain, 126},
		"a directory":         {dir, 126},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(Groups{}, Spec{Argv: []string{c.argv0}})
			var command *CommandError
			if !errors.As(err, &command) || command.Code != c.code {
				t.Errorf("got %v, want a CommandError of code %d", err, c.code)
			}
		})
	}
	t.Run("a script whose interpreter is missing", func(t *testing.T) {
		script := filepath.Join(dir, "script")
		if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Start(Groups{}, Spec{Argv: []string{script}})
		var command *CommandError
		if !errors.As(err, &command) || command.Code != 127 {
			t.Errorf("got %v", err)
		}
	})
}

func TestBadRequestsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		want error
	}{
		"no argv":               {Spec{}, ErrInvalid},
		"NUL in argv":           {Spec{Argv: []string{"a\x00b"}}, ErrInvalid},
		"NUL in cwd":            {Spec{Argv: []string{"true"}, Cwd: "/\x00"}, ErrCwd},
		"cwd that is missing":   {Spec{Argv: []string{"true"}, Cwd: "/no/such/dir"}, ErrCwd},
		"cwd that is a file":    {Spec{Argv: []string{"true"}, Cwd: "/etc/passwd"}, ErrCwd},
		"NUL in the env":        {Spec{Argv: []string{"true"}, Env: []map[string]string{{"A": "\x00"}}}, ErrInvalid},
		"= in a variable":       {Spec{Argv: []string{"true"}, Env: []map[string]string{{"A=B": ""}}}, ErrInvalid},
		"a variable of no name": {Spec{Argv: []string{"true"}, Env: []map[string]string{{"": "x"}}}, ErrInvalid},
		"negative time-out":     {Spec{Argv: []string{"true"}, Timeout: -1}, ErrInvalid},
		"unknown user":          {Spec{Argv: []string{"true"}, User: "no-such-user"}, ErrNoUser},
		"argument too long":     {Spec{Argv: []string{"true", strings.Repeat("x", 3<<20)}}, ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Start(Groups{}, c.spec); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestTimeOutKillsTheWholeGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	p, err := Start(Groups{}, Spec{Argv: sh("sleep 1000 & echo $! > " + file + "; trap '' TERM INT; wait; wait"), Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	got := finish(p)
	if !got.exit.TimedOut || got.exit.ExitCode != 137 || got.exit.Signal != "KILL" {
		t.Errorf("got %+v", got.exit)
	}
	await(t, "the end of the command's child", func() bool { return !alive(readPID(t, file)) })
}

func readPID(t *testing.T, file string) int {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestDaemonOfAnEndedCommandLivesOn(t *testing.T) {
	dir := t.TempDir()
	go1, done := filepath.Join(dir, "go"), filepath.Join(dir, "done")
	// The daemon holds the output pipe, and writes to it after the command ended.
	line := fmt.Sprintf("(until [ -e %s ]; do sleep 0.01; done; echo late; echo late; echo survived > %s) & echo $!", go1, done)
	got := run(t, Spec{Argv: sh(line)}) // the daemon has not been told to go on: it holds nothing up
	if got.exit.ExitCode != 0 || strings.Contains(got.stdout, "late") {
		t.Errorf("got %+v", got)
	}
	if err := os.WriteFile(go1, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	await(t, "the daemon's end, after it wrote to its output", func() bool { _, err := os.Stat(done); return err == nil })
	pid, err := strconv.Atoi(strings.TrimSpace(got.stdout))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the daemon's end", func() bool { return !alive(pid) })
}

func TestDaemonThatNeverStopsWritingDoesNotHoldItsCommand(t *testing.T) {
	var seen atomic.Int64
	p, err := Start(Groups{}, Spec{Argv: sh("yes & echo $! >&2")})
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	exit := p.Run(Collect(counter{&seen}, &stderr))
	pid, err := strconv.Atoi(strings.TrimSpace(stderr.String()))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("the daemon did not live on: %v", err)
	}
	if exit.ExitCode != 0 || seen.Load() == 0 {
		t.Errorf("got %+v, %d bytes", exit, seen.Load())
	}
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) { c.n.Add(int64(len(b))); return len(b), nil }

func TestOutputPastTheLimitIsDrained(t *testing.T) {
	const size, limit = 1 << 30, 100_000
	var n atomic.Int64
	p, err := Start(Groups{}, Spec{Argv: sh(fmt.Sprintf("head -c %d /dev/zero; echo end >&2", size)), OutputLimit: limit})
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	exit := p.Run(Collect(counter{&n}, &stderr))
	if n.Load() != limit || !exit.Truncated || exit.ExitCode != 0 || stderr.String() != "end\n" {
		t.Errorf("got %d bytes, %+v, stderr %q", n.Load(), exit, stderr.String())
	}
}

func TestOutputAtTheLimitIsNotTruncated(t *testing.T) {
	got := run(t, Spec{Argv: []string{"printf", "12345"}, OutputLimit: 5})
	if got.stdout != "12345" || got.exit.Truncated {
		t.Errorf("got %+v", got)
	}
}

func TestSlowReaderSlowsTheCommand(t *testing.T) {
	p, err := Start(Groups{}, Spec{Argv: sh("head -c 10000000 /dev/zero")})
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	var passed atomic.Int64
	done := make(chan guestapi.ExecExit)
	go func() {
		done <- p.Run(func(_ guestapi.FrameType, frame []byte) error {
			passed.Add(int64(len(frame) - guestapi.FrameHeader))
			<-release
			return nil
		})
	}()
	await(t, "the first output", func() bool { return passed.Load() > 0 })
	select {
	case exit := <-done:
		t.Fatalf("the command ended while nobody read: %+v", exit)
	case <-time.After(200 * time.Millisecond):
	}
	if passed.Load() > chunk {
		t.Errorf("%d bytes passed on while the first were being read", passed.Load())
	}
	close(release)
	if exit := <-done; exit.ExitCode != 0 || passed.Load() != 10000000 {
		t.Errorf("got %+v, %d bytes", exit, passed.Load())
	}
}

func TestInputArrivesWhole(t *testing.T) {
	want := make([]byte, 5<<20)
	for i := range want {
		want[i] = byte(i * 7)
	}
	p, err := Start(Groups{}, Spec{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(p, bytes.NewReader(want))
		_ = p.CloseStdin()
	}()
	if got := finish(p); got.stdout != string(want) {
		t.Errorf("%d bytes came back, not the %d that went in", len(got.stdout), len(want))
	}
}

func TestInputOfACommandThatReadsNoneIsRefusedAtItsEnd(t *testing.T) {
	p, err := Start(Groups{}, Spec{Argv: sh("exit 3"), Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := io.Copy(p, neverEnding{})
		wrote <- err
	}()
	if got := finish(p); got.exit.ExitCode != 3 {
		t.Errorf("got %+v", got)
	}
	if err := <-wrote; err == nil {
		t.Error("writing to a command that ended went on")
	}
}

type neverEnding struct{}

func (neverEnding) Read(b []byte) (int, error) { return len(b), nil }

func TestSignalsReachTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ready")
	p, err := Start(Groups{}, Spec{Argv: sh("trap 'kill $!; echo got INT; exit 5' INT; sleep 1000 & : > " + file + "; wait")})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range time.Tick(time.Millisecond) {
			if _, err := os.Stat(file); err == nil {
				break
			}
		}
		_ = p.Signal(syscall.SIGINT)
	}()
	got := finish(p)
	if got.exit.ExitCode != 5 || got.stdout != "got INT\n" {
		t.Errorf("got %+v", got)
	}
	if err := p.Signal(syscall.SIGINT); !errors.Is(err, ErrEnded) {
		t.Errorf("a signal to an ended command: %v", err)
	}
}

func TestOutputAfterTheReaderIsGoneIsDropped(t *testing.T) {
	p, err := Start(Groups{}, Spec{Argv: sh("head -c 1000000 /dev/zero; exit 4")})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	exit := p.Run(func(guestapi.FrameType, []byte) error { calls++; return io.ErrClosedPipe })
	if exit.ExitCode != 4 || calls != 1 {
		t.Errorf("got %+v after %d calls", exit, calls)
	}
}

func TestManyCommandsAtOnce(t *testing.T) {
	const n = 50
	results := make(chan string, n)
	for i := range n {
		go func() {
			p, err := Start(Groups{}, Spec{Argv: []string{"echo", strconv.Itoa(i)}})
			if err != nil {
				results <- err.Error()
				return
			}
			results <- strings.TrimSpace(finish(p).stdout)
		}()
	}
	seen := map[string]bool{}
	for range n {
		seen[<-results] = true
	}
	for i := range n {
		if !seen[strconv.Itoa(i)] {
			t.Errorf("no result of command %d: %v", i, seen)
		}
	}
}
