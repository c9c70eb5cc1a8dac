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
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
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
	// Half a share later the daemon has had its time: see Observer.
	shareObserved = 3.5
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
	file   *os.File // kept open
	failed bool     // the file could not be written the last time
	wasOut bool
}

// word is the leader's last, as the file has it.
type word struct {
	Format int           `json:"format"`
	BootID string        `json:"boot_id"`
	Sent   time.Duration `json:"sent_ns"`  // when the heartbeat that it answered was sent, after boot
	Lease  time.Duration `json:"lease_ns"` // as the leader said
	Sum    uint32        `json:"sum,omitempty"`
}

const format = 1

// recordBytes is the size of the file, always.
const recordBytes = 256

// sum is a check of the other fields: who reads while the file is written may see parts
// of two words.
func (w word) sum() uint32 {
	w.Sum = 0
	return crc32.ChecksumIEEE(fmt.Appendf(nil, "%+v", w))
}

// record is what the file has, a line of JSON that is filled up with spaces.
func (w word) record() ([]byte, error) {
	w.Sum = w.sum()
	raw, err := json.Marshal(w)
	if err == nil && len(raw) >= recordBytes {
		err = fmt.Errorf("%d bytes, at most %d", len(raw), recordBytes-1)
	}
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%-*s\n", recordBytes-1, raw), nil
}

// New reads what an earlier daemon heard. If that cannot be read, the lease is
// over until the leader is heard.
func New(cfg Config) *Lease {
	if cfg.Now == nil {
		cfg.Now = SinceBoot
	}
	l := &Lease{cfg: cfg}
	l.word, _ = read(cfg.File, cfg.BootID)
	l.wasOut = l.Over() // no news of one that starts
	return l
}

// read returns the leader's last word of this run of the machine.
func read(file, bootID string) (w word, ok bool) {
	raw, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(raw, &w) != nil || w.Format != format || w.BootID != bootID {
		return word{}, false
	}
	if w.Sum != 0 && w.Sum != w.sum() { // earlier daemons replaced the file, and wrote none
		return word{}, false
	}
	return w, true
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
		l.cfg.Log.Error("the leader's last word cannot be kept: what is exclusive on this host is ended although the host is well. "+
			"Make room in the file system of the runtime directory, or let it be written to", "file", l.cfg.File, "error", err)
	}
	if err == nil && l.failed {
		l.cfg.Log.Info("the leader's last word is kept again", "file", l.cfg.File)
	}
	l.failed = err != nil
}

// save writes over what the file has, by a descriptor that stays open: that needs no
// room, where a file system is full that others share. It needs no sync: the file need
// not outlive the machine.
func (l *Lease) save() error {
	raw, err := l.word.record()
	if err != nil {
		return err
	}
	if err := l.open(raw); err != nil {
		return err
	}
	_, err = l.file.WriteAt(raw, 0)
	return err
}

// open opens the file, unless it is the one that is open, and makes it if there is none.
func (l *Lease) open(raw []byte) error {
	there, err := os.Stat(l.cfg.File)
	if err == nil && l.file != nil {
		if own, err := l.file.Stat(); err == nil && os.SameFile(own, there) {
			return nil
		}
	}
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = atomicfile.Swap(l.cfg.File, raw, 0o600)
	}
	if err != nil {
		return err
	}
	l.file, err = os.OpenFile(l.cfg.File, os.O_WRONLY, 0)
	return err
}

// Over reports whether the host has been without its leader for too long.
func (l *Lease) Over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.word.over(l.cfg.Now(), shareOver)
}

// over reports whether so many quarters of a lease have passed.
func (w word) over(now time.Duration, shares float64) bool {
	return now-w.Sent >= time.Duration(float64(w.Lease)*shares/shareOf)
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
	return l.word.tick()
}

// tick is how long the lease need not be looked at.
func (w word) tick() time.Duration {
	if w.Lease == 0 {
		return maxTick
	}
	return max(min(w.Lease/20, maxTick), time.Millisecond)
}
