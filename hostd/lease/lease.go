// Package lease knows for how long this host may run what must not run twice.
// When the leader has not been heard for most of a lease, the host ends that
// itself, before the leader gives the host up and starts it elsewhere.
//
// Time is counted since the machine's boot, suspended time included. The
// leader's last word is kept across restarts of the daemon, in a file that does
// not outlive a boot.
package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// The share of a lease after which the host ends what is exclusive: the leader
// begins to count later, when it hears, but a VMM takes a moment to end.
const (
	shareOver = 3
	shareOf   = 4
)

// maxTick is how often a lease is looked at, at least.
const maxTick = time.Second

// Config is what a Lease works with.
type Config struct {
	File   string // on a file system that a reboot empties
	BootID string // of the machine
	// Fence ends what is exclusive. It is called again and again while the lease
	// is over.
	Fence func(ctx context.Context)
	// Now is the time since boot; default SinceBoot.
	Now func() time.Duration
	Log *slog.Logger
}

// Lease is the lease of this host.
type Lease struct {
	cfg Config

	mu     sync.Mutex
	word   word
	failed bool // the file could not be written the last time
	wasOut bool
}

// word is the leader's last, as the file has it.
type word struct {
	Format int           `json:"format"`
	BootID string        `json:"boot_id"`
	Sent   time.Duration `json:"sent_ns"`  // when the heartbeat that it answered was sent, after boot
	Lease  time.Duration `json:"lease_ns"` // as the leader said
}

const format = 1

// New reads what an earlier daemon heard. If that cannot be read, the lease is
// over until the leader is heard.
func New(cfg Config) *Lease {
	if cfg.Now == nil {
		cfg.Now = SinceBoot
	}
	l := &Lease{cfg: cfg}
	raw, err := os.ReadFile(cfg.File)
	var w word
	if err == nil && json.Unmarshal(raw, &w) == nil && w.Format == format && w.BootID == cfg.BootID {
		l.word = w
	}
	l.wasOut = l.Over() // no news of one that starts
	return l
}

// SinceBoot is how long ago the machine was booted.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Sprintf("CLOCK_BOOTTIME: %v", err)) // in every kernel that this runs on
	}
	return time.Duration(t.Nano())
}

// Now is the time to hand to Renew.
func (l *Lease) Now() time.Duration { return l.cfg.Now() }

// Renew notes that the leader has answered a heartbeat that was sent at a time.
func (l *Lease) Renew(sent, lease time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease <= 0 || sent < l.word.Sent {
		return
	}
	l.word = word{Format: format, BootID: l.cfg.BootID, Sent: sent, Lease: lease}
	err := l.save()
	if err != nil && !l.failed {
		l.cfg.Log.Error("the leader's last word is not kept: a restart of the daemon ends what is exclusive", "error", err)
	}
	l.failed = err != nil
}

// save needs no sync: the file need not outlive the machine.
func (l *Lease) save() error {
	raw, err := json.Marshal(l.word)
	if err != nil {
		return err
	}
	return atomicfile.Swap(l.cfg.File, raw, 0o600)
}

// Over reports whether the host has been without its leader for too long.
func (l *Lease) Over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cfg.Now()-l.word.Sent >= l.word.Lease*shareOver/shareOf
}

// Run fences for as long as the lease is over, until ctx ends.
func (l *Lease) Run(ctx context.Context) {
	for ctx.Err() == nil {
		over := l.Over()
		if over {
			l.cfg.Fence(ctx)
		}
		switch {
		case over && !l.wasOut:
			l.cfg.Log.Warn("the lease of this host is over: the leader was not heard in time")
		case !over && l.wasOut:
			l.cfg.Log.Info("this host has a lease")
		}
		l.wasOut = over
		t := time.NewTimer(l.tick())
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

func (l *Lease) tick() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.word.Lease == 0 {
		return maxTick
	}
	return max(min(l.word.Lease/20, maxTick), time.Millisecond)
}
