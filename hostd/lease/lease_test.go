package lease

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
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
	c := &clock{}
	c.pass(time.Hour)
	fenced := make(chan struct{})
	cfg := c.lease(filepath.Join(t.TempDir(), "lease.json"))
	cfg.Fence = func(ctx context.Context) {
		select {
		case fenced <- struct{}{}:
		case <-ctx.Done():
		}
	}
	l := New(cfg)
	l.Renew(c.Now(), 20*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run(ctx) }()
	c.pass(time.Minute)
	<-fenced
	<-fenced // what came to life meanwhile is met as well
	cancel()
	<-ended
}
