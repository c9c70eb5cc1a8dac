package box_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// stallable is a disk whose flushes can be made to hang.
type stallable struct {
	mu   sync.Mutex
	free chan struct{} // nil: it works
	hung chan struct{} // closed when a flush hangs
}

func (d *stallable) flush(f *os.File) error {
	d.mu.Lock()
	free := d.free
	if free != nil && d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
	d.mu.Unlock()
	if free != nil {
		<-free
	}
	return unix.Fdatasync(int(f.Fd()))
}

// stall has every flush from now hang until release is called; hung is closed
// when one does.
func (d *stallable) stall() (hung <-chan struct{}, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	free := make(chan struct{})
	d.free, d.hung = free, make(chan struct{})
	return d.hung, sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.free = nil
		close(free)
	})
}

func startOn(t *testing.T, w *boxtest.World, disk *stallable) *daemon {
	t.Helper()
	l, err := ledger.OpenOn(w.Paths.Ledger(), "h1", disk.flush)
	must(t, err)
	return boxtest.Serve(t, w, l)
}

// promptly fails where f waits for something.
func promptly(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("%s waits for the disk", what)
	}
}

func TestADiskThatHangsStopsNothingButWhatItWrites(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	disk := &stallable{}
	d := startOn(t, w, disk)
	for _, id := range []string{id(0), id(1), id(2)} {
		_, err := d.Put(ctx, id, spec(1))
		must(t, err)
	}
	if d.DiskStalled() != 0 {
		t.Error("a disk that works is said to hang")
	}

	hung, release := disk.stall()
	defer release()
	var writers sync.WaitGroup
	write := func(f func() error) {
		writers.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	// Each of these waits for the disk: a move, a create, a delete of a box and
	// of one that is not here.
	write(func() error { _, err := d.Pause(ctx, id(0)); return err })
	<-hung
	write(func() error { _, err := d.Put(ctx, id(3), spec(1)); return err })
	write(func() error { return d.Delete(ctx, id(1), 1) })
	write(func() error { return d.Delete(ctx, idB, 7) })
	await(t, func() bool {
		seen := map[string]hostapi.Status{}
		promptly(t, "the list", func() error {
			for _, b := range d.List() {
				seen[b.ID] = b.Status
			}
			return nil
		})
		return seen[id(1)] == hostapi.StatusDeleting && seen[id(3)] == hostapi.StatusStarting
	})
	promptly(t, "a look-up", func() error {
		got, err := d.Get(id(0))
		if got.Status != hostapi.StatusRunning {
			t.Errorf("a pause that is not on disk is shown: %s", got.Status)
		}
		return err
	})
	promptly(t, "the capacity", func() error {
		if d.SlotsUsed() < 3 || d.ReservedMB() == 0 || !d.Ready() || len(d.Captures().List()) != 0 {
			return errors.New("it is not what it was")
		}
		return nil
	})
	promptly(t, "an exec", func() error {
		_, err := d.Exec(ctx, id(2), hostapi.ExecRequest{Argv: []string{"hello"}, Timeout: time.Minute})
		return err
	})
	if d.DiskStalled() <= 0 {
		t.Error("nobody is told that the disk hangs")
	}

	release()
	writers.Wait()
	for id, want := range map[string]hostapi.Status{id(0): hostapi.StatusPaused, id(2): hostapi.StatusRunning, id(3): hostapi.StatusRunning} {
		got, err := d.Get(id)
		must(t, err)
		if got.Status != want {
			t.Errorf("%s is %s, want %s", id, got.Status, want)
		}
	}
	if _, err := d.Get(id(1)); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("the deleted one: %v", err)
	}
	if _, err := d.Put(ctx, idB, spec(7)); !errors.Is(err, hosterr.ErrStaleGeneration) {
		t.Errorf("a create that its delete overtook: %v", err)
	}
}

// A wake whose time is over before it is on disk that the saved memory is spent has not
// begun to run.
func TestAWakeThatTheDiskHoldsUpKeepsTheMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, disk := boxtest.NewWorld(t), &stallable{}
		d := startOn(t, w, disk)
		put(t, d, idA)
		w.VMM(idA).Remember("a thought")
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
		stalled := make(chan func(), 1)
		w.SetStep(func(_ context.Context, name string) error {
			if name == "restore" {
				_, release := disk.stall()
				stalled <- release
			}
			return nil
		})
		woken := make(chan error, 1)
		go func() {
			_, err := d.Wake(context.Background(), idA)
			woken <- err
		}()
		release := <-stalled
		<-time.After(w.Config().CreateTimeout + time.Second)
		release()
		if err := <-woken; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wake = %v", err)
		}
		w.SetStep(nil)
		wantStatus(t, d, idA, hostapi.StatusHibernated)
		if w.VMM(idA) != nil || d.ReservedMB() != 0 {
			t.Errorf("left: VMM %v, %d MB", w.VMM(idA), d.ReservedMB())
		}
		_, err = d.Wake(t.Context(), idA)
		must(t, err)
		if got := w.VMM(idA).Memory(); got != "a thought" {
			t.Errorf("its memory is %q", got)
		}
		d.Close()
	})
}

// A pause that a disk did not take is told all the same: the VM is paused. The next daemon
// knows nothing of it and lets the box run on, and what it tells then comes after it.
func TestWhatIsToldAfterARestartIsNewer(t *testing.T) {
	w := boxtest.NewWorld(t)
	var broken atomic.Bool
	l, err := ledger.OpenOn(w.Paths.Ledger(), "h1", func(f *os.File) error {
		if broken.Load() {
			return unix.EIO
		}
		return unix.Fdatasync(int(f.Fd()))
	})
	must(t, err)
	d := boxtest.Run(w, l)
	d.Open()
	put(t, d, idA)
	broken.Store(true)
	if _, err := d.Pause(t.Context(), idA); !errors.Is(err, unix.EIO) {
		t.Errorf("pause = %v", err)
	}
	told := wantStatus(t, d, idA, hostapi.StatusPaused)
	d.Close()
	_ = l.Close()

	broken.Store(false)
	l, err = ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	next := boxtest.Run(w, l)
	defer func() { next.Close(); _ = l.Close() }()
	_, err = next.Recover(t.Context(), l.Boxes()[0])
	must(t, err)
	next.Open()
	b := wantStatus(t, next, idA, hostapi.StatusRunning)
	if rec := l.Boxes()[0]; b.Seq <= told.Seq || rec.Seq != b.Seq {
		t.Errorf("running is number %d, %d on disk; paused was %d", b.Seq, rec.Seq, told.Seq)
	}
}
