package sdnotify

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is a socket such as systemd's.
type manager struct{ *net.UnixConn }

func newManager(t *testing.T, name string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{conn}
}

// next returns the next datagram, or "" if none comes for as long as wait.
func (m *manager) next(t *testing.T, wait time.Duration) string {
	t.Helper()
	if err := m.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := m.Read(buf)
	var ne net.Error
	switch {
	case errors.As(err, &ne) && ne.Timeout():
		return ""
	case err != nil:
		t.Fatal(err)
	}
	return string(buf[:n])
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if k, v, _ := strings.Cut(p, "="); k == name {
				return v
			}
		}
		return ""
	}
}

func TestWhatADaemonTells(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@berth-sdnotify-test-" + strconv.FormatInt(time.Now().UnixNano(), 36)} {
		m := newManager(t, name)
		n, err := parse(env("NOTIFY_SOCKET="+name), 1)
		if err != nil {
			t.Fatal(err)
		}
		for want, tell := range map[string]func() error{
			"READY=1\nSTATUS=Serving on :8443 now": func() error { return n.Ready("Serving on :8443\nnow") },
			"STOPPING=1\nSTATUS=Stopping":          n.Stopping,
			"STATUS=A follower":                    func() error { return n.Status("A follower") },
		} {
			if err := tell(); err != nil {
				t.Fatal(err)
			}
			if got := m.next(t, 10*time.Second); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		if err := n.Reloading(); err != nil {
			t.Fatal(err)
		}
		if got := m.next(t, 10*time.Second); !regexp.MustCompile(`^RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+$`).MatchString(got) {
			t.Errorf("told %q of a reload", got)
		}
	}
}

func TestWithoutSystemdNothingIsTold(t *testing.T) {
	n, err := parse(env("WATCHDOG_USEC=30000000"), 1)
	if n != nil || err != nil {
		t.Fatalf("%v, %v", n, err)
	}
	if err := errors.Join(n.Ready(""), n.Reloading(), n.Stopping(), n.Status("")); err != nil {
		t.Error(err)
	}
	n.Watch(t.Context(), slog.New(slog.DiscardHandler), func(context.Context) error { t.Error("asked"); return nil })
}

func TestTheEnvironment(t *testing.T) {
	for _, bad := range [][]string{
		{"NOTIFY_SOCKET=relative"},
		{"NOTIFY_SOCKET=/run/s", "WATCHDOG_USEC=soon"},
		{"NOTIFY_SOCKET=/run/s", "WATCHDOG_USEC=-1"},
		{"NOTIFY_SOCKET=/run/s", "WATCHDOG_USEC=0"},
	} {
		if n, err := parse(env(bad...), 7); err == nil {
			t.Errorf("%q: %+v", bad, n)
		}
	}
	n, err := parse(env("NOTIFY_SOCKET=/run/s", "WATCHDOG_USEC=30000000", "WATCHDOG_PID=7"), 7)
	if err != nil || n.watchdog != 30*time.Second {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err = parse(env("NOTIFY_SOCKET=/run/s", "WATCHDOG_USEC=30000000", "WATCHDOG_PID=6"), 7); err != nil || n.watchdog != 0 {
		t.Errorf("another process's watchdog: %+v, %v", n, err)
	}
	t.Setenv("NOTIFY_SOCKET", "/run/s")
	t.Setenv("WATCHDOG_USEC", "1000000")
	if n, err = FromEnv(); err != nil || n.socket != "/run/s" || n.watchdog != time.Second {
		t.Errorf("%+v, %v", n, err)
	}
	if again, err := FromEnv(); again != nil || err != nil {
		t.Errorf("a program that is started inherits the socket: %+v, %v", again, err)
	}
}

// A timer alone never feeds the watchdog: only progress does.
func TestTheWatchdogIsFedOnlyByProgress(t *testing.T) {
	m := newManager(t, filepath.Join(t.TempDir(), "notify"))
	n := New(m.LocalAddr().String(), 200*time.Millisecond)
	var rounds atomic.Uint64
	var hang atomic.Bool
	last := rounds.Add(1) - 1
	moved := func(context.Context) error {
		now := rounds.Load()
		defer func() { last = now }()
		if now == last {
			return errors.New("the loop stands")
		}
		return nil
	}
	watched, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Watch(watched, slog.New(slog.DiscardHandler), func(ctx context.Context) error {
			if hang.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return moved(ctx)
		})
	}()
	defer func() { end(); <-done }()

	got := m.next(t, 10*time.Second)
	if strings.HasPrefix(got, "WATCHDOG_USEC=") { // where limits are stretched
		got = m.next(t, 10*time.Second)
	}
	if got != "WATCHDOG=1" {
		t.Fatalf("told %q", got)
	}
	if got := m.next(t, 2*n.watchdog); got != "" {
		t.Fatalf("told %q although the loop stands", got)
	}
	rounds.Add(1)
	if got := m.next(t, 10*time.Second); got != "WATCHDOG=1" {
		t.Fatalf("told %q after a round", got)
	}
	hang.Store(true)
	for m.next(t, 2*n.watchdog) != "" { // what was told before it hung
		rounds.Add(1)
	}
	hang.Store(false)
	rounds.Add(1)
	if got := m.next(t, 10*time.Second); got != "WATCHDOG=1" {
		t.Fatalf("told %q when it goes on", got)
	}
}

func TestNoAnswerIsNoProgress(t *testing.T) {
	err := within(t.Context(), time.Millisecond, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	if err == nil || err.Error() != "no answer within 1ms" {
		t.Error(err)
	}
}
