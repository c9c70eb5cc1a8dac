package lease

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/tier"
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

// The guard gives the daemon the time to end what is exclusive itself, and is done
// before the leader has counted the lease out.
func TestAnObserverActsBetweenDaemonAndLeader(t *testing.T) {
	c := &clock{}
	c.pass(time.Hour)
	file := filepath.Join(t.TempDir(), "lease.json")
	o := Observe(file, "boot-1", c.Now)
	if !o.Over() {
		t.Error("it counts on a lease that there never was")
	}
	l := New(c.lease(file))
	l.Renew(c.Now(), length)
	for _, step := range []struct {
		pass         time.Duration
		daemon, over bool
	}{{22 * time.Second, false, false}, {2 * time.Second, true, false}, {3 * time.Second, true, true}} {
		c.pass(step.pass)
		if l.Over() != step.daemon || o.Over() != step.over {
			t.Errorf("%s after the leader's word: over for the daemon %t, for its observer %t", c.Now()-time.Hour, l.Over(), o.Over())
		}
	}
	l.Renew(c.Now(), length)
	if o.Over() {
		t.Error("over when the leader was heard")
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.pass(20 * time.Second)
	if o.Over() {
		t.Error("half a file ends a lease")
	}
	c.pass(10 * time.Second)
	if !o.Over() {
		t.Error("half a file makes a lease last")
	}
	if again := Observe(file, "boot-2", c.Now); !again.Over() {
		t.Error("the word of another boot counts")
	}
}

// full mounts a file system that has room for so many pages.
func full(t *testing.T) string {
	t.Helper()
	tier.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("berth-test", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // the lease stays open
			t.Error(err)
		}
	})
	return dir
}

// A host is not dead because somebody has filled the file system of its lease.
func TestALeaseIsRenewedOnAFullFileSystem(t *testing.T) {
	c := &clock{}
	c.pass(time.Hour)
	dir := full(t)
	file := filepath.Join(dir, "lease.json")
	l := New(c.lease(file))
	o := Observe(file, "boot-1", c.Now)
	l.Renew(c.Now(), length)
	if err := os.WriteFile(filepath.Join(dir, "other"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	for range 5 {
		c.pass(20 * time.Second)
		l.Renew(c.Now(), length)
		if o.Over() {
			t.Fatal("the guard takes it for dead")
		}
	}
	again := New(c.lease(file))
	if again.Over() {
		t.Error("a restart of the daemon ends the lease")
	}
	c.pass(20 * time.Second)
	again.Renew(c.Now(), length)
	if o.Over() {
		t.Error("a daemon that starts cannot renew it")
	}
}

// What cannot be written is told of once, with what helps, and again when it can.
func TestALeaseThatCannotBeKept(t *testing.T) {
	c := &clock{}
	c.pass(time.Hour)
	dir := filepath.Join(t.TempDir(), "run")
	file := filepath.Join(dir, "lease.json")
	var log strings.Builder
	cfg := c.lease(file)
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	l := New(cfg)
	l.Renew(c.Now(), length)
	l.Renew(c.Now(), length)
	if got := log.String(); strings.Count(got, "level=ERROR") != 1 || !strings.Contains(got, "Make room") || !strings.Contains(got, file) {
		t.Errorf("log: %s", got)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l.Renew(c.Now(), length)
	if o := Observe(file, "boot-1", c.Now); o.Over() || !strings.Contains(log.String(), "is kept again") {
		t.Errorf("over: %t; log: %s", o.Over(), &log)
	}
	if err := os.Remove(file); err != nil { // by somebody who cleans up
		t.Fatal(err)
	}
	l.Renew(c.Now(), length)
	if o := Observe(file, "boot-1", c.Now); o.Over() {
		t.Error("it is written into a file that nobody finds")
	}
}

// The file is written over, so who reads it meanwhile may see parts of two words.
func TestPartsOfTwoWordsAreNone(t *testing.T) {
	c := &clock{}
	file := filepath.Join(t.TempDir(), "lease.json")
	l := New(c.lease(file))
	c.pass(3999 * time.Second)
	l.Renew(c.Now(), length)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c.pass(6 * time.Second)
	l.Renew(c.Now(), length)
	after, err := os.ReadFile(file)
	if err != nil || len(after) != len(before) {
		t.Fatalf("%d bytes, then %d: %v", len(before), len(after), err)
	}
	for n := range after {
		if err := os.WriteFile(file, append(append([]byte{}, after[:n]...), before[n:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		if w, ok := read(file, "boot-1"); ok && w.Sent != 3999*time.Second && w.Sent != 4005*time.Second {
			t.Errorf("after %d bytes: %+v", n, w)
		}
	}
	earlier := `{"format":1,"boot_id":"boot-1","sent_ns":7,"lease_ns":8}`
	if err := os.WriteFile(file, []byte(earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	if w, ok := read(file, "boot-1"); !ok || w.Sent != 7 || w.Lease != 8 {
		t.Errorf("of an earlier daemon: %+v, %t", w, ok)
	}
}
