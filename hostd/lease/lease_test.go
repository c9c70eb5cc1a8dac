package lease

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is the machine's, moved by the test.
type clock struct{ now atomic.Int64 }

func (c *clock) Now() time.Duration   { return time.Duration(c.now.Load()) }
func (c *clock) pass(d time.Duration) { c.now.Add(int64(d)) }
func (c *clock) lease(file string) Config {
	return Config{File: file, BootID: "boot-1", Now: c.Now, Log: slog.New(slog.DiscardHandler), Fence: func(context.Context) {}}
}

const length = 30 * time.Second

func TestALeaseIsOverBeforeTheLeaderCountsItOut(t *testing.T) {
	c := &clock{}
	c.pass(time.Hour)
	file := filepath.Join(t.TempDir(), "lease.json")
	l := New(c.lease(file))
	if !l.Over() {
		t.Error("a host that never heard a leader counts on one")
	}
	l.Renew(c.Now(), length)
	c.pass(22 * time.Second)
	if l.Over() {
		t.Error("over after 22 of 30 s")
	}
	l.Renew(c.Now()-10*time.Second, length) // an answer that took long: what counts is when it was asked for
	c.pass(12 * time.Second)
	if l.Over() {
		t.Error("over 22 s after the question that was answered")
	}
	l.Renew(c.Now()-30*time.Second, length) // an older one changes nothing
	c.pass(time.Second)
	if !l.Over() {
		t.Error("not over after 23 of 30 s")
	}
}

// A restart of the daemon changes nothing; a reboot of the machine ends the
// lease, as does a file that cannot be read.
func TestTheLastWordOutlivesTheDaemonAlone(t *testing.T) {
	c := &clock{}
	c.pass(time.Hour)
	file := filepath.Join(t.TempDir(), "lease.json")
	New(c.lease(file)).Renew(c.Now(), length)
	c.pass(20 * time.Second)
	if l := New(c.lease(file)); l.Over() {
		t.Error("over after a restart within the lease")
	}
	rebooted := c.lease(file)
	rebooted.BootID = "boot-2"
	if l := New(rebooted); !l.Over() {
		t.Error("the word of another boot counts")
	}
	c.pass(5 * time.Second)
	if l := New(c.lease(file)); !l.Over() {
		t.Error("a restart begins the lease anew")
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l := New(c.lease(file)); !l.Over() {
		t.Error("half a file counts")
	}
}

func TestFencingGoesOnUntilTheLeaderIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fences atomic.Int64
		cfg := (&clock{}).lease(filepath.Join(t.TempDir(), "lease.json"))
		booted := time.Now()
		cfg.Now = func() time.Duration { return time.Since(booted) } // by the bubble's clock
		cfg.Fence = func(context.Context) { fences.Add(1) }
		l := New(cfg)
		l.Renew(l.Now(), length)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		after := func(d time.Duration) int64 {
			<-time.After(d)
			synctest.Wait()
			return fences.Load()
		}
		if n := after(22 * time.Second); n != 0 {
			t.Errorf("%d fences after 22 of 30 s", n)
		}
		over := after(5 * time.Second)
		if over < 2 { // what comes to life meanwhile is met as well
			t.Errorf("%d fences in the last quarter of the lease", over)
		}
		l.Renew(l.Now(), length)
		if n := after(22 * time.Second); n != over {
			t.Errorf("%d fences more after the leader was heard", n-over)
		}
		if n := after(5 * time.Second); n < over+2 {
			t.Errorf("%d fences after it was silent again", n-over)
		}
		cancel()
		<-ended
	})
}
