package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHowCommandsEnd(t *testing.T) {
	r := &Runner{}
	for line, want := range map[string]string{
		"exit 3":               "failed with exit code 3",
		"no-such-program-here": "failed: command not found (exit code 127)",
		"kill -TERM $$":        "was killed by SIGTERM",
		"/dev/null":            "failed: not executable (exit code 126)",
	} {
		e, err := r.Run(t.Context(), Command{Argv: Shell(line), Dir: t.TempDir()}, &bytes.Buffer{}, &bytes.Buffer{})
		if err != nil || e.OK() || e.String() != want {
			t.Errorf("%s: %v, %v", line, e, err)
		}
	}
	var out bytes.Buffer
	e, err := r.Run(t.Context(), Command{Argv: Shell("echo $A $B; pwd >&2"), Dir: "/", Env: []map[string]string{{"A": "1", "B": "1"}, {"B": "2"}}}, &out, &out)
	if err != nil || !e.OK() || !strings.Contains(out.String(), "1 2\n") || !strings.Contains(out.String(), "/\n") {
		t.Errorf("%v, %v, %q", e, err, &out)
	}
	if _, err := r.Run(t.Context(), Command{Argv: Shell("true"), Dir: "/no/such"}, &out, &out); err == nil {
		t.Error("a command ran in no directory")
	}
}

func TestACommandEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	e, err := (&Runner{}).Run(ctx, Command{Argv: Shell("sleep 1000 & sleep 1000"), Dir: "/"}, &bytes.Buffer{}, &bytes.Buffer{})
	if err != nil || e.Signal != "KILL" || e.OOM {
		t.Errorf("%v, %v", e, err)
	}
}

func TestAKillForMemoryIsTold(t *testing.T) {
	events := filepath.Join(t.TempDir(), "memory.events")
	if err := os.WriteFile(events, []byte("low 0\noom 1\noom_kill 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Runner{MemoryEvents: events}
	e, err := r.Run(t.Context(), Command{Argv: Shell("printf 'oom_kill 2\\n' >" + events + "; exit 137"), Dir: "/"}, &bytes.Buffer{}, &bytes.Buffer{})
	if err != nil || e.String() != "was killed: out of memory" {
		t.Errorf("%v, %v", e, err)
	}
	e, err = r.Run(t.Context(), Command{Argv: Shell("exit 1"), Dir: "/"}, &bytes.Buffer{}, &bytes.Buffer{})
	if err != nil || e.OOM {
		t.Errorf("%v, %v", e, err)
	}
}

func TestOutputIsMaskedAndNotHeldForLong(t *testing.T) {
	got := make(chan string, 10)
	o := NewOutput(writer(func(p []byte) { got <- string(p) }), []string{"secret"})
	defer o.Close()
	_, _ = o.Write([]byte("a secret, se"))
	if first := <-got; first != "a ********, " {
		t.Errorf("%q", first)
	}
	if rest := <-got; rest != "se" {
		t.Errorf("%q", rest)
	}
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

// Daemons that a command leaves end with it, in whatever session they are, and so do processes
// that fork for ever: each of these is another one a moment later.
func TestEverythingOfAUserIsEnded(t *testing.T) {
	tier.Root(t)
	const uid = 54_327 // nobody's
	r := &Runner{User: strconv.Itoa(uid)}
	dir := t.TempDir()
	script := filepath.Join(dir, "again")
	for _, open := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\n\"$0\" >/dev/null 2>&1 &\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	e, err := r.Run(t.Context(), Command{
		Argv: Shell("for i in 1 2 3 4 5; do " + script + "; setsid sh -c 'trap \"\" TERM HUP; sleep 1000; sleep 1000' >/dev/null 2>&1 & done; echo left"), Dir: dir,
	}, &bytes.Buffer{}, &bytes.Buffer{})
	if err != nil || !e.OK() {
		t.Fatalf("%v, %v", e, err)
	}
	if left, err := processes(uid); err != nil || len(left) == 0 {
		t.Fatalf("%v, %v: it has left nothing", left, err)
	}
	if err := r.EndAll(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := processes(uid); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// Of what root tests there is no user whose processes may all be killed; the guest's
// own test has one.
func TestNothingOfRootsOrOnesOwnIsEnded(t *testing.T) {
	for _, user := range []string{"", "root", "0"} {
		if err := (&Runner{User: user}).EndAll(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := (&Runner{User: "no-such-user"}).EndAll(t.Context()); err == nil {
		t.Error("no such user is no error")
	}
	if left, err := processes(os.Getuid()); err != nil || len(left) == 0 {
		t.Errorf("%v, %v", left, err)
	}
}
