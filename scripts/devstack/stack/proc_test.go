package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script string) *Process {
	t.Helper()
	dir := t.TempDir()
	p := &Process{
		ID: "x", Path: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ(),
		logFile: filepath.Join(dir, "x.log"), record: filepath.Join(dir, "x.json"),
	}
	t.Cleanup(func() {
		if err := p.Kill9(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// logged waits until the process has written the text.
func logged(t *testing.T, p *Process, text string) {
	t.Helper()
	err := Await(t.Context(), 10*time.Second, 5*time.Millisecond, "the log has "+text, func(context.Context) error {
		b, err := os.ReadFile(p.logFile)
		if err == nil && !strings.Contains(string(b), text) {
			err = errors.New("it does not")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestProcessIsKnownByItsStartTime(t *testing.T) {
	p := shell(t, "exec sleep 60")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	pid, alive, err := readRecord(p.record)
	if err != nil || !alive || pid != p.PID() {
		t.Fatalf("got pid %d, alive %t, %v; want the running pid %d", pid, alive, err, p.PID())
	}
	if err := p.Kill9(); err != nil {
		t.Fatal(err)
	}
	if _, alive, err := readRecord(p.record); alive || err != nil {
		t.Errorf("after the kill: alive %t, %v", alive, err)
	}
	// Another process with a recorded pid is not the recorded one.
	forged := fmt.Sprintf(`{"pid":%d,"start_time":1}`, os.Getpid())
	if err := os.WriteFile(p.record, []byte(forged), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, alive, err := readRecord(p.record); alive || err != nil {
		t.Errorf("a reused pid: alive %t, %v", alive, err)
	}
}

func TestStopAsksAndThenKills(t *testing.T) {
	polite := shell(t, `trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	if err := polite.Start(); err != nil {
		t.Fatal(err)
	}
	logged(t, polite, "ready")
	if err := polite.Stop(t.Context()); err != nil {
		t.Errorf("stop of one that listens: %v", err)
	}
	logged(t, polite, "asked")

	deaf := shell(t, `trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	if err := deaf.Start(); err != nil {
		t.Fatal(err)
	}
	logged(t, deaf, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := deaf.Stop(ctx); err == nil {
		t.Error("stop of one that does not listen: no error says that it was killed")
	}
	if deaf.Running() {
		t.Error("it still runs")
	}
}

func TestPausedProcessCanBeStopped(t *testing.T) {
	p := shell(t, "exec sleep 60")
	if err := errors.Join(p.Start(), p.Pause()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func TestSupervisorRestartsWhatDiesAndOnlyThat(t *testing.T) {
	p := shell(t, "echo run; exec sleep 60")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var told []string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.supervise(t.Context(), func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		})
	}()
	first := p.PID()
	if err := p.signal(9); err != nil { // from outside
		t.Fatal(err)
	}
	err := Await(t.Context(), 10*time.Second, 5*time.Millisecond, "it runs again", func(context.Context) error {
		if !p.Running() || p.PID() == first {
			return errors.New("it does not")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill9(); err != nil { // intended
		t.Fatal(err)
	}
	<-ended
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 1 || !strings.Contains(told[0], "x ended (signal: killed)") {
		t.Errorf("told %q, want one sentence about the first end", told)
	}
}
