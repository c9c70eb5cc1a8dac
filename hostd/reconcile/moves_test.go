package reconcile_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/vmm"
)

// thinking makes a box whose guest remembers something.
func thinking(t *testing.T, d *daemon, w *boxtest.World, id string) {
	t.Helper()
	_, err := d.Put(t.Context(), id, spec)
	must(t, err)
	w.VMM(id).Remember("x")
}

// isWell checks that a box is as it should be, and gets it to run.
func isWell(t *testing.T, d *daemon, w *boxtest.World, id string, want hostapi.Status) {
	t.Helper()
	v, err := d.Get(id)
	must(t, err)
	if v.Status != want {
		t.Fatalf("status = %s, want %s (error %q)", v.Status, want, v.Error)
	}
	switch want {
	case hostapi.StatusHibernated:
		if w.VMM(id) != nil || d.ReservedMB() != 0 {
			t.Errorf("a hibernated box has VMM %v and %d MB", w.VMM(id), d.ReservedMB())
		}
		_, err = d.Wake(t.Context(), id)
	case hostapi.StatusPaused:
		_, err = d.Resume(t.Context(), id)
	}
	must(t, err)
	state, err := w.VMM(id).State(t.Context())
	must(t, err)
	if got := w.VMM(id).Memory(); got != "x" || state != vmm.StateRunning {
		t.Errorf("memory = %q, VM %s", got, state)
	}
	for _, dir := range []string{w.Paths.State(id), w.Paths.StateTmp(id)} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a running box has %s", dir)
		}
	}
}

func nothingAfterDelete(t *testing.T, d *daemon, w *boxtest.World, ids ...string) {
	t.Helper()
	for _, id := range ids {
		must(t, d.Delete(t.Context(), id, 1))
	}
	await(t, func() bool { return len(w.Left()) == 0 }, func() string { return strings.Join(w.Left(), ", ") })
	if got := d.ReservedMB(); got != 0 {
		t.Errorf("%d MB are reserved for nothing", got)
	}
	entries, err := os.ReadDir(w.Paths.Captures())
	must(t, err)
	if len(entries) > 0 {
		t.Errorf("left of captures: %v", entries)
	}
}

func TestACrashAtAnyStepOfAHibernate(t *testing.T) {
	for step, want := range map[string]hostapi.Status{
		"pause": hostapi.StatusRunning, "snapshot": hostapi.StatusRunning, "snapshot-done": hostapi.StatusRunning, "detach": hostapi.StatusRunning,
		// From here the state is complete and the ledger knows.
		"kill": hostapi.StatusHibernated, "remove-cgroup": hostapi.StatusHibernated,
	} {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			w = crashAt(t, w, step, func(d *daemon) {
				thinking(t, d, w, idA)
				_, _ = d.Hibernate(t.Context(), idA)
			})
			d := start(t, w)
			isWell(t, d, w, idA, want)
			nothingAfterDelete(t, d, w, idA)
		})
	}
}

func TestACrashAtAnyStepOfAWake(t *testing.T) {
	for step, want := range map[string]hostapi.Status{
		"cgroup": hostapi.StatusHibernated, "start": hostapi.StatusHibernated, "configure": hostapi.StatusHibernated, "restore": hostapi.StatusHibernated,
		// From here the state is spent, and the VM is all there is.
		"resume": hostapi.StatusRunning, "identity": hostapi.StatusRunning,
	} {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			thinking(t, d, w, idA)
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			d.stop()
			w = crashAt(t, w, step, func(d *daemon) { _, _ = d.Wake(t.Context(), idA) })
			d = start(t, w)
			isWell(t, d, w, idA, want)
			nothingAfterDelete(t, d, w, idA)
		})
	}
}

// The VMM went with the daemon while its box woke: what was saved of it may be
// older than its disk.
func TestAWakeThatIsLostIsNotTriedAgain(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	thinking(t, d, w, idA)
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	d.stop()
	w = crashAt(t, w, "resume", func(d *daemon) { _, _ = d.Wake(t.Context(), idA) })
	w.VMM(idA).Die(syscall.SIGKILL)
	d = start(t, w)
	if v, err := d.Get(idA); err != nil || v.Status != hostapi.StatusFailed {
		t.Errorf("status = %s, %v; want failed", v.Status, err)
	}
	nothingAfterDelete(t, d, w, idA)
}

func TestACrashAtAnyStepOfACapture(t *testing.T) {
	for _, step := range []string{"pause", "snapshot", "snapshot-done", "resume", "detach"} {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			thinking(t, d, w, idA)
			d.stop()
			w = crashAt(t, w, step, func(d *daemon) {
				_, _ = d.Capture(t.Context(), "c1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			})
			d = start(t, w)
			if list := d.Captures(); len(list) != 0 {
				t.Errorf("captures = %+v, want none", list)
			}
			isWell(t, d, w, idA, hostapi.StatusRunning)
			// The flow asks again.
			_, err := d.Capture(t.Context(), "c1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			must(t, err)
			must(t, d.DeleteCapture(t.Context(), "c1"))
			nothingAfterDelete(t, d, w, idA)
		})
	}
}

func TestACrashAtAnyStepOfAWarmFork(t *testing.T) {
	child := hostapi.BoxSpec{Generation: 1, WarmFrom: idA}
	for step, parent := range map[string]hostapi.Status{
		"pause": hostapi.StatusRunning, "snapshot": hostapi.StatusRunning, "detach": hostapi.StatusRunning,
		// From here the parent is stopped, and its slot the child's.
		"kill": hostapi.StatusPaused, "remove-cgroup": hostapi.StatusPaused, "cgroup": hostapi.StatusPaused, "start": hostapi.StatusPaused,
		"configure": hostapi.StatusPaused, "restore": hostapi.StatusPaused, "resume": hostapi.StatusPaused, "identity": hostapi.StatusPaused,
	} {
		for _, again := range []bool{true, false} {
			name := step + " and the parent is resumed"
			if again {
				name = step + " and the flow asks again"
			}
			t.Run(name, func(t *testing.T) {
				want := parent
				w := boxtest.NewWorld(t)
				d := start(t, w)
				thinking(t, d, w, idA)
				d.stop()
				w = crashAt(t, w, step, func(d *daemon) { _, _ = d.Put(t.Context(), idB, child) })
				d = start(t, w)
				if v, err := d.Get(idA); err != nil || v.Status != want {
					t.Errorf("parent: %s, %v; want %s", v.Status, err, want)
				}
				if _, err := d.Get(idB); !errors.Is(err, box.ErrNotFound) {
					t.Errorf("child: %v, want ErrNotFound", err)
				}
				if again {
					_, err := d.Put(t.Context(), idB, child)
					must(t, err)
					if got := w.VMM(idB).Memory(); got != "x" {
						t.Errorf("memory of the child = %q", got)
					}
					want = hostapi.StatusPaused
				}
				isWell(t, d, w, idA, want)
				nothingAfterDelete(t, d, w, idA, idB)
			})
		}
	}
}

// reboot takes away what a reboot of the host does.
func reboot(t *testing.T, w *boxtest.World, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if v := w.VMM(id); v != nil {
			v.Die(syscall.SIGKILL)
		}
		must(t, w.RemoveCgroup(t.Context(), id))
		must(t, os.RemoveAll(w.Paths.VMM(id)))
	}
}

func TestAfterAReboot(t *testing.T) {
	const idC, idD = "cccccccccccccccccccccccccc", "dddddddddddddddddddddddddd"
	w := boxtest.NewWorld(t)
	d := start(t, w)
	persistent := spec
	persistent.Persistent = true
	for _, id := range []string{idA, idD} {
		_, err := d.Put(t.Context(), id, persistent)
		must(t, err)
	}
	must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("kept"), 0o600))
	thinking(t, d, w, idB)
	thinking(t, d, w, idC)
	for _, id := range []string{idC, idD} {
		w.VMM(id).Remember("x")
		_, err := d.Hibernate(t.Context(), id)
		must(t, err)
	}
	d.stop()
	reboot(t, w, idA, idB, idC, idD)
	w = w.Fork(t)
	d = start(t, w)
	if d.report.Rebooted != 1 || d.report.Orphaned != 1 || d.report.Kept != 2 {
		t.Errorf("report = %+v", d.report)
	}
	await(t, func() bool { v, _ := d.Get(idA); return v.Status == hostapi.StatusRunning }, nil)
	raw, err := os.ReadFile(w.Paths.Overlay(idA))
	must(t, err)
	if got := w.VMM(idA).Memory(); got != "booted" || string(raw) != "kept" {
		t.Errorf("persistent box: memory %q, disk %q", got, raw)
	}
	// It is told after the box has its status.
	await(t, func() bool { return len(d.events.Of(idA)) > 0 }, nil)
	ev := d.events.Of(idA)
	if len(ev) != 1 || ev[0].Type != hostapi.EventRunning || ev[0].Metadata["boot_mode"] != "cold" || ev[0].Metadata["recovered"] != true {
		t.Errorf("events = %+v", ev)
	}
	if v, _ := d.Get(idB); v.Status != hostapi.StatusFailed || !slices.Equal(d.events.Types(idB), []hostapi.EventType{hostapi.EventOrphaned}) {
		t.Errorf("status = %s, events %v; want orphaned", v.Status, d.events.Types(idB))
	}
	must(t, d.Delete(t.Context(), idB, 1))
	for _, id := range []string{idC, idD} {
		_, err := d.Wake(t.Context(), id)
		must(t, err)
		if got := w.VMM(id).Memory(); got != "x" {
			t.Errorf("memory = %q", got)
		}
	}
	// It sleeps and wakes like any other now.
	w.VMM(idA).Remember("y")
	_, err = d.Hibernate(t.Context(), idA)
	must(t, err)
	_, err = d.Wake(t.Context(), idA)
	must(t, err)
	if got := w.VMM(idA).Memory(); got != "y" {
		t.Errorf("memory = %q", got)
	}
	nothingAfterDelete(t, d, w, idA, idC, idD)
}

func TestACrashWhileAPersistentBoxIsBootedAgain(t *testing.T) {
	for _, step := range []string{"cgroup", "start", "create", "boot", "identity"} {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			persistent := spec
			persistent.Persistent = true
			_, err := d.Put(t.Context(), idA, persistent)
			must(t, err)
			d.stop()
			reboot(t, w, idA)
			w = crashAt(t, w, step, func(d *daemon) {
				await(t, func() bool { v, _ := d.Get(idA); return v.Error != "" }, nil) // it is tried again
			})
			d = start(t, w)
			await(t, func() bool { v, _ := d.Get(idA); return v.Status == hostapi.StatusRunning }, nil)
			nothingAfterDelete(t, d, w, idA)
		})
	}
}

func TestAPersistentBoxThatCannotBeBootedFails(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	persistent := spec
	persistent.Persistent = true
	_, err := d.Put(t.Context(), idA, persistent)
	must(t, err)
	d.stop()
	reboot(t, w, idA)
	must(t, os.Remove(w.Paths.Overlay(idA)))
	d = start(t, w)
	await(t, func() bool { v, _ := d.Get(idA); return v.Status == hostapi.StatusFailed && d.ReservedMB() == 0 }, nil)
	nothingAfterDelete(t, d, w, idA)
}

func TestPersistentBoxesAreBootedInTheirTurnAndTriedAgain(t *testing.T) {
	const idC, idE = "cccccccccccccccccccccccccc", "eeeeeeeeeeeeeeeeeeeeeeeeee"
	w := boxtest.NewWorld(t)
	d := start(t, w)
	persistent := spec
	persistent.Persistent = true
	ids := []string{idA, idB, idC}
	for _, id := range ids {
		_, err := d.Put(t.Context(), id, persistent)
		must(t, err)
	}
	d.stop()
	reboot(t, w, ids...)

	var mu sync.Mutex
	var now, most, failures int
	free := make(chan struct{})
	w.SetStep(func(ctx context.Context, name string) error {
		if name != "boot" {
			return nil
		}
		mu.Lock()
		now++
		most = max(most, now)
		failures++
		fail := failures == 1
		mu.Unlock()
		defer func() { mu.Lock(); now--; mu.Unlock() }()
		select {
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		if fail {
			return boxtest.ErrInjected
		}
		return nil
	})
	d = start(t, w)
	await(t, func() bool { mu.Lock(); defer mu.Unlock(); return now > 0 }, nil)
	// A new box and a delete wait for none of them.
	_, err := d.Put(t.Context(), idE, spec)
	must(t, err)
	must(t, d.Delete(t.Context(), idC, 1))
	mu.Lock()
	if limit := max(1, runtime.NumCPU()/2); most > limit {
		t.Errorf("%d were booted at once, want at most %d", most, limit)
	}
	mu.Unlock()
	close(free)
	for _, id := range []string{idA, idB} {
		await(t, func() bool { v, _ := d.Get(id); return v.Status == hostapi.StatusRunning && v.Error == "" }, nil)
	}
	if n := d.ReservedMB(); n != 3*600 {
		t.Errorf("%d MB are reserved for three boxes", n)
	}
	nothingAfterDelete(t, d, w, idA, idB, idE)
}
