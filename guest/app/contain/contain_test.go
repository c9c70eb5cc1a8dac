package contain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == InsideMode:
		os.Exit(Inside())
	case len(os.Args) == 6 && os.Args[1] == OutsideMode:
		code, err := Outside(os.Args[3], os.Args[5])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// run runs a Spec as nobody, and returns what it says.
func run(t *testing.T, ctx context.Context, s Spec) (string, command.Ended) {
	t.Helper()
	tier.Root(t)
	c, err := Command(executable(t), filepath.Join(t.TempDir(), "spec"), "nobody", s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ended, err := (&command.Runner{}).Run(ctx, c, &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), ended
}

// executable is this program where anybody may run it: what go test builds is root's.
func executable(t *testing.T) string {
	t.Helper()
	mine, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(mine)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "contain")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "contain")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, raw, 0o755)); err != nil {
		t.Fatal(err)
	}
	return program
}

func TestRootInsideIsNobodyOutside(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hunter-222"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, ended := run(t, t.Context(), Spec{
		Argv: []string{"/bin/sh", "-c", "id -u; cat " + secret + "; kill -0 " + fmt.Sprint(os.Getpid()) + "; echo $A; mount -t tmpfs x /mnt && echo mounted; echo to it > /dev/stdout; exit 7"},
		Env:  []string{"A=a b"}, Dir: "/",
	})
	for _, want := range []string{"0\n", "Permission denied", "a b\n", "mounted\n", "to it\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in %q", want, out)
		}
	}
	if ended.Code != 7 || strings.Contains(out, "hunter-222") {
		t.Errorf("%s: %q", ended, out)
	}
	out, ended = run(t, t.Context(), Spec{Argv: []string{"/bin/sh", "-c", "id -u; id -g; pwd"}, User: "12:34", Dir: "/tmp"})
	if out != "12\n34\n/tmp\n" || !ended.OK() {
		t.Errorf("%s: %q", ended, out)
	}
}

func TestWhatCannotBeContained(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		code int
		says string
	}{
		"no program": {Spec{Argv: []string{"no-such-program"}}, 127, "no-such-program: "},
		"no path":    {Spec{Argv: []string{"/no/such"}}, 127, "/no/such: "},
		"no file":    {Spec{Argv: []string{"/etc"}}, 126, "/etc: "},
		"nothing":    {Spec{}, 125, "there is no command"},
		"no user":    {Spec{Argv: []string{"id"}, User: "no-such-user"}, 125, "USER no-such-user: the image has no such user"},
		"no group":   {Spec{Argv: []string{"id"}, User: "0:no-such-group"}, 125, "the image has no such group"},
		"large user": {Spec{Argv: []string{"id"}, User: "70000"}, 125, "numbers go up to 65535"},
		"killed":     {Spec{Argv: []string{"/bin/sh", "-c", "kill -KILL $$"}}, 137, ""},
		"bad dir":    {Spec{Argv: []string{"id"}, Dir: "/etc/passwd/x"}, 125, "its working directory"},
		"no root":    {Spec{Argv: []string{"id"}, Root: "/no/such"}, 125, "mount /no/such: "},
	} {
		out, ended := run(t, t.Context(), c.spec)
		if ended.Code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: %s, %q", name, ended, out)
		}
	}
}

// What left its parent, its session and its user ends, too.
func TestAllEndsTogether(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, ended := run(t, ctx, Spec{Argv: []string{"/bin/sh", "-c", "setsid sleep 1000 & echo begun; exit 0"}})
	if !ended.OK() || out != "begun\n" {
		t.Errorf("%s: %q", ended, out) // its output would not have ended either
	}
	cancel()
	if _, ended := run(t, ctx, Spec{Argv: []string{"/bin/sh", "-c", "setsid sleep 1000 & sleep 1000"}}); ended.OK() {
		t.Errorf("%s", ended)
	}
}

// A command that is asked to end has its time for it, whoever it runs as.
func TestACommandIsAskedToEnd(t *testing.T) {
	tier.Root(t)
	for _, user := range []string{"", "12:34"} {
		script := `trap 'sleep 0.3; exit 42' TERM; echo ready; while :; do sleep 0.01; done`
		c, err := Command(executable(t), filepath.Join(t.TempDir(), "spec"), "nobody", Spec{Argv: []string{"/bin/sh", "-c", script}, User: user})
		if err != nil {
			t.Fatal(err)
		}
		p, err := (&command.Runner{}).Start(c)
		if err != nil {
			t.Fatal(err)
		}
		ready := make(chan struct{})
		ended := make(chan command.Ended, 1)
		go func() {
			ended <- p.Wait(t.Context(), writer(func([]byte) { close(ready) }), io.Discard)
		}()
		select {
		case <-ready:
			p.Terminate()
		case e := <-ended:
			t.Fatalf("user %q: ended before it was asked to: %s", user, e)
		}
		if e := <-ended; e.Code != 42 {
			t.Errorf("user %q: %s", user, e)
		}
	}
}

type writer func(p []byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }

func TestUsersThatOnlyContainedCommandsHave(t *testing.T) {
	for uid, want := range map[uint32]bool{0: false, 1000: false, firstID: false, firstID + 1: true, firstID + maxID: true, firstID + maxID + 1: false} {
		if Owns(uid) != want {
			t.Errorf("%d: %t", uid, !want)
		}
	}
}
