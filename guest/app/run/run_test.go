package run

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/app/applog"
	"github.com/berth-cloud/berth/guest/app/command"
	"github.com/berth-cloud/berth/guest/appapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func app(t *testing.T, line string, secrets ...string) *App {
	t.Helper()
	log, err := applog.Open(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	a := Start(Config{
		Runner: &command.Runner{}, Log: log, ID: "d1", Secrets: secrets,
		Command: command.Command{Argv: command.Shell(line), Dir: t.TempDir()}, Pause: time.Millisecond, MaxPause: 2 * time.Millisecond,
	})
	t.Cleanup(func() {
		a.Stop()
		_ = log.Close()
	})
	return a
}

func await(t *testing.T, a *App, what string, ok func(appapi.RunStatus) bool) appapi.RunStatus {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for {
		st := a.Status()
		if ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not %s: %+v", what, st)
		}
	}
}

func TestAnAppThatEndsIsStartedAgain(t *testing.T) {
	a := app(t, "echo here is hunter22; exit 3", "hunter22")
	st := await(t, a, "started three times", func(st appapi.RunStatus) bool { return st.Starts >= 3 && st.ExitCode != nil })
	if *st.ExitCode != 3 || st.Signal != "" || st.ID != "d1" {
		t.Errorf("%+v", st)
	}
	text := strings.Join(st.LastLines, "\n")
	if !strings.Contains(text, "here is ********") || !strings.Contains(text, "==> It failed with exit code 3.") || strings.Contains(text, "hunter22") {
		t.Error(text)
	}
	a.Stop()
	if st := a.Status(); st.State != appapi.StateStopped {
		t.Errorf("%+v", st)
	}
}

func TestAnAppIsKilledWhenItIsStopped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	a := app(t, "trap '' TERM; echo $$ >"+file+"; while :; do sleep 1000; done")
	await(t, a, "running", func(appapi.RunStatus) bool { raw, err := os.ReadFile(file); return err == nil && len(raw) > 0 })
	a.Stop()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
		t.Error("it runs on")
	}
}

// An app that is asked to end does so in its own time, also one that a shell has started:
// the shell is gone at once.
func TestAnAppEndsByItself(t *testing.T) {
	saved := filepath.Join(t.TempDir(), "saved")
	a := app(t, `sh -c 'trap "sleep 0.3; echo yes > `+saved+`; exit 0" TERM; echo ready; while :; do sleep 0.01; done'; echo never`)
	await(t, a, "ready", func(st appapi.RunStatus) bool { return strings.Contains(strings.Join(st.LastLines, "\n"), "ready") })
	a.End(t.Context())
	if _, err := os.Stat(saved); err != nil {
		t.Errorf("it was killed before it had ended: %v", err)
	}
	if st := a.Status(); st.State != appapi.StateStopped || st.Starts != 1 || strings.Contains(strings.Join(st.LastLines, "\n"), "never") {
		t.Errorf("%+v", st)
	}
}

// One that does not want to end is killed after its time.
func TestAnAppThatDoesNotEndIsKilled(t *testing.T) {
	a := app(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	await(t, a, "ready", func(st appapi.RunStatus) bool { return strings.Contains(strings.Join(st.LastLines, "\n"), "ready") })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	a.End(ctx)
	if st := a.Status(); st.State != appapi.StateStopped {
		t.Errorf("%+v", st)
	}
}

func TestACommandThatIsNotThereIsTold(t *testing.T) {
	a := app(t, "x")
	a.Stop()
	a.cfg.Command.Dir = "/no/such"
	b := Start(a.cfg)
	defer b.Stop()
	st := await(t, b, "started", func(st appapi.RunStatus) bool { return st.ExitCode != nil })
	if !strings.Contains(strings.Join(st.LastLines, "\n"), "It could not be started: ") {
		t.Errorf("%+v", st)
	}
}

func TestWhatListensIsTold(t *testing.T) {
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	all, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	found := map[int]bool{}
	for _, l := range listening(os.Getuid()) {
		found[l.Port] = l.Loopback
	}
	lo, ok := found[own.Addr().(*net.TCPAddr).Port]
	if !ok || !lo {
		t.Errorf("%v lacks the one on loopback", found)
	}
	lo, ok = found[all.Addr().(*net.TCPAddr).Port]
	if !ok || lo {
		t.Errorf("%v lacks the one on all addresses", found)
	}
	for _, l := range listening(54321) {
		t.Errorf("%+v is nobody's", l)
	}
}
