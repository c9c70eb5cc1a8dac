package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/ledger"
)

// disk flushes like a real one, or hangs while it is told to.
type disk struct {
	flushes atomic.Int32
	hang    chan chan struct{} // capacity 1: the next flush waits for what is in it
	hangs   chan struct{}      // a flush has begun to wait
}

func newDisk() *disk { return &disk{hang: make(chan chan struct{}, 1), hangs: make(chan struct{}, 1)} }

func (d *disk) flush(f *os.File) error {
	d.flushes.Add(1)
	select {
	case free := <-d.hang:
		d.hangs <- struct{}{}
		<-free
	default:
	}
	return unix.Fdatasync(int(f.Fd()))
}

func openOn(t *testing.T, d *disk) (*ledger.Ledger, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger")
	l, err := ledger.OpenOn(path, "h1", d.flush)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

func TestReadersDoNotWaitForTheDisk(t *testing.T) {
	d := newDisk()
	l, path := openOn(t, d)
	must(t, l.Put(golden[0]))
	must(t, l.ObserveTerm("", 4))
	if got := l.Stalled(); got != 0 {
		t.Errorf("with nothing to write it is stalled for %s", got)
	}

	free := make(chan struct{})
	d.hang <- free
	written := make(chan error, 1)
	moved := golden[0]
	moved.State = ledger.Paused
	go func() { written <- l.Put(moved) }()
	<-d.hangs

	if r, ok := l.Get(golden[0].ID); !ok || r.State != ledger.Running {
		t.Errorf("while the disk hangs the record is %q, %t: want what is on disk", r.State, ok)
	}
	if n := len(l.Boxes()); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
	if _, term := l.Term(); l.Tombstone("x") != 0 || term != 4 {
		t.Error("tombstone or term is not what is on disk")
	}
	must(t, l.ObserveTerm("", 4))
	if err := l.ObserveTerm("", 3); !errors.Is(err, ledger.ErrStaleTerm) {
		t.Errorf("a lower term: %v", err)
	}
	if l.Stalled() <= 0 {
		t.Error("a disk that hangs is not told of")
	}

	// What comes meanwhile is written together.
	const more = 20
	var wg sync.WaitGroup
	before := d.flushes.Load()
	for i := range more {
		wg.Go(func() {
			if err := l.Put(ledger.Record{ID: fmt.Sprint(i), State: ledger.Running}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return ledger.Waiting(l) == more })
	close(free)
	must(t, <-written)
	wg.Wait()
	if got := d.flushes.Load() - before; got != 1 {
		t.Errorf("%d changes took %d flushes, want 1", more, got)
	}
	if l.Stalled() != 0 {
		t.Error("the disk is still said to hang")
	}
	must(t, l.Close())
	again, err := ledger.Open(path, "h1")
	must(t, err)
	if r, _ := again.Get(golden[0].ID); r.State != ledger.Paused || len(again.Boxes()) != more+1 {
		t.Errorf("after reopening: %q and %d records", r.State, len(again.Boxes()))
	}
	must(t, again.Close())
}

func TestADiskThatHangsIsNotQueuedForWithoutBound(t *testing.T) {
	d := newDisk()
	l, _ := openOn(t, d)
	free := make(chan struct{})
	d.hang <- free
	var wg sync.WaitGroup
	put := func() {
		wg.Go(func() {
			if err := l.Forget("x"); err != nil {
				t.Error(err)
			}
		})
	}
	put()
	<-d.hangs
	for range ledger.MaxWaiting {
		put()
	}
	waitFor(t, func() bool { return ledger.Waiting(l) == ledger.MaxWaiting })
	if err := l.Forget("x"); !errors.Is(err, ledger.ErrOverloaded) {
		t.Errorf("one too many: %v, want ErrOverloaded", err)
	}
	close(free)
	wg.Wait()
}

// waitFor gives way to others until cond holds.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for !cond() {
		if t.Context().Err() != nil {
			t.Fatal("it never came true")
		}
		unix.Select(0, nil, nil, nil, &unix.Timeval{Usec: 1000})
	}
}

// Whoever was told that a change failed has undone it. A daemon that ends then must
// not leave it to the next one.
func TestAChangeThatFailedIsNotThereAfterReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	fails := false
	l, err := ledger.OpenOn(path, "h1", func(f *os.File) error {
		if fails {
			return unix.EIO
		}
		return f.Sync()
	})
	must(t, err)
	must(t, l.Put(ledger.Record{ID: "a", State: ledger.Running}))
	fails = true
	if err := l.Put(ledger.Record{ID: "a", State: ledger.Hibernated}); !errors.Is(err, unix.EIO) {
		t.Errorf("Put = %v", err)
	}
	must(t, l.Close())
	l, err = ledger.Open(path, "h1")
	must(t, err)
	if r, _ := l.Get("a"); r.State != ledger.Running {
		t.Errorf("it is %s", r.State)
	}
	must(t, l.Close())
}

// A daemon that starts on a full disk goes on with the file that there is, so that it can
// delete, also where the last line was being written when the machine stopped.
func TestAFullDiskIsStartedOn(t *testing.T) {
	for name, tail := range map[string]string{"whole": "", "torn": "deadbeef {\"bo", "zeros": "\x00\x00\x00"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger")
			l := open(t, path)
			must(t, l.Put(golden[0]))
			must(t, l.Put(golden[1]))
			must(t, l.Close())
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteString(tail)
			must(t, errors.Join(err, f.Close()))

			full := true // for a second file
			l, err = ledger.OpenOn(path, "h1", func(f *os.File) error {
				if full && strings.HasSuffix(f.Name(), ".new") {
					return unix.ENOSPC
				}
				return f.Sync()
			})
			must(t, err)
			if got := l.Boxes(); len(got) != 2 {
				t.Fatalf("it has %+v", got)
			}
			must(t, l.Forget(golden[1].ID))
			must(t, l.Put(golden[2]))
			must(t, l.Close())
			full = false
			again := open(t, path)
			if got := again.Boxes(); len(got) != 2 || got[0].ID != golden[0].ID || got[1].ID != golden[2].ID {
				t.Errorf("afterwards it has %+v", got)
			}
		})
	}
}

func TestANewLedgerNeedsRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger")
	if _, err := ledger.OpenOn(path, "h1", func(*os.File) error { return unix.ENOSPC }); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("OpenOn = %v", err)
	}
}
