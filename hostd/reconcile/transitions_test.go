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
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/tier"
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
			named := spec
			named.Hostname = "a"
			_, err := d.Put(t.Context(), idA, named)
			must(t, err)
			w.VMM(idA).Remember("x")
			_, err = d.Hibernate(t.Context(), idA)
			must(t, err)
			d.stop()
			w = crashAt(t, w, step, func(d *daemon) { _, _ = d.Wake(t.Context(), idA) })
			d = start(t, w)
			if told := w.Told("a"); want == hostapi.StatusRunning && (told.Resumed || len(told.Entropy) == 0) {
				t.Errorf("a guest that slept was told that it only stood still: %v", told.Resumed)
			}
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
				_, _ = d.Captures().Make(t.Context(), "c1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			})
			d = start(t, w)
			if list := d.Captures().List(); len(list) != 0 {
				t.Errorf("captures = %+v, want none", list)
			}
			isWell(t, d, w, idA, hostapi.StatusRunning)
			// The flow asks again.
			_, err := d.Captures().Make(t.Context(), "c1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			must(t, err)
			must(t, d.Captures().Delete(t.Context(), "c1"))
			nothingAfterDelete(t, d, w, idA)
		})
	}
}

func TestACrashAtAnyStepOfAWarmFork(t *testing.T) {
	tier.Slow(t)
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
				if _, err := d.Get(idB); !errors.Is(err, hosterr.ErrNotFound) {
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
	tier.Slow(t)
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

// The ledger says that it boots, so the next daemon boots it.
func TestACrashAtAnyStepOfARestart(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"cgroup", "start", "create", "boot", "identity"} {
		for _, gone := range []bool{false, true} {
			name := step
			if gone {
				name += " and the VMM is gone too"
			}
			t.Run(name, func(t *testing.T) {
				w := boxtest.NewWorld(t)
				d := start(t, w)
				_, err := d.Put(t.Context(), idA, spec)
				must(t, err)
				must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("kept"), 0o600))
				w.VMM(idA).Die(syscall.SIGKILL)
				await(t, func() bool { v, _ := d.Get(idA); return v.Status == hostapi.StatusFailed }, nil)
				d.stop()
				w = crashAt(t, w, step, func(d *daemon) { _, _ = d.Restart(t.Context(), idA) })
				if v := w.VMM(idA); v != nil && gone {
					v.Die(syscall.SIGKILL)
				}
				d = start(t, w)
				await(t, func() bool { v, _ := d.Get(idA); return v.Status == hostapi.StatusRunning }, nil)
				raw, err := os.ReadFile(w.Paths.Overlay(idA))
				must(t, err)
				if n := d.ReservedMB(); string(raw) != "kept" || n != 600 {
					t.Errorf("disk = %q, %d MB are reserved", raw, n)
				}
				_, err = d.Restart(t.Context(), idA) // asked again by whoever did not hear
				must(t, err)
				nothingAfterDelete(t, d, w, idA)
			})
		}
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

// rebooted makes n persistent boxes on a machine that is rebooted then. room is for
// the daemons on it: they have memory for one box more.
func rebooted(t *testing.T, n int, change ...func(i int, s *hostapi.BoxSpec)) (w *boxtest.World, ids []string, room func(*box.Config)) {
	t.Helper()
	w = boxtest.NewWorld(t)
	w.Slots = n + 1
	room = func(c *box.Config) { c.MemoryMB = (n + 1) * 600 }
	d := start(t, w, room)
	persistent := spec
	persistent.Persistent = true
	for i := range n {
		id := strings.Repeat("b", 24) + string(rune('a'+i/26)) + string(rune('a'+i%26))
		own := persistent
		for _, f := range change {
			f(i, &own)
		}
		_, err := d.Put(t.Context(), id, own)
		must(t, err)
		ids = append(ids, id)
	}
	d.stop()
	reboot(t, w, ids...)
	return w, ids, room
}

// runInTheEnd waits until boxes run and are rid of what they failed of.
func runInTheEnd(t *testing.T, d *daemon, ids []string) {
	t.Helper()
	for _, id := range ids {
		await(t, func() bool { v, _ := d.Get(id); return v.Status == hostapi.StatusRunning && v.Error == "" }, nil)
	}
}

// bootsAtOnce is how many boxes are booted again at once.
var bootsAtOnce = max(1, runtime.NumCPU()/2)

func TestPersistentBoxesAreBootedInTheirTurnAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ids, room := rebooted(t, 2*runtime.NumCPU()+1)
		deleted := ids[0]
		var mu sync.Mutex
		var now, most int
		var failed string
		free := make(chan struct{})
		w.SetStep(func(ctx context.Context, name string) error {
			if name != "boot" {
				return nil
			}
			mu.Lock()
			now++
			most = max(most, now)
			id := boxtest.BoxID(ctx)
			fail := failed == "" && id != deleted
			if fail {
				failed = id
			}
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
		d := start(t, w, room)
		synctest.Wait()
		// A new box and a delete wait for none of them.
		_, err := d.Put(t.Context(), idA, spec)
		must(t, err)
		must(t, d.Delete(t.Context(), deleted, 1))
		synctest.Wait()
		close(free)
		synctest.Wait() // no time has passed: what failed has not been tried again
		v, err := d.Get(failed)
		must(t, err)
		if v.Status != hostapi.StatusStarting || !strings.Contains(v.Error, "could not be booted again yet") {
			t.Errorf("the box whose boot failed is %s, error %q", v.Status, v.Error)
		}
		runInTheEnd(t, d, ids[1:])
		if most != bootsAtOnce {
			t.Errorf("%d were booted at once, want %d", most, bootsAtOnce)
		}
		if n := d.ReservedMB(); n != len(ids)*600 {
			t.Errorf("%d MB are reserved for %d boxes", n, len(ids))
		}
		nothingAfterDelete(t, d, w, append(ids[1:], idA)...)
		d.Close()
	})
}

// Guests that do not boot hold up those of their own workspace: another's have the next turn.
func TestBootsThatHangHoldUpTheirOwnWorkspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 6
		w, ids, room := rebooted(t, others*bootsAtOnce+1, func(i int, s *hostapi.BoxSpec) {
			if i == others*bootsAtOnce {
				s.WorkspaceID = "another"
			}
		})
		other := ids[len(ids)-1]
		var mu sync.Mutex
		hung, before := 0, -1
		w.SetStep(func(ctx context.Context, name string) error {
			if name != "boot" {
				return nil
			}
			mu.Lock()
			hang := boxtest.BoxID(ctx) != other
			if hang {
				hung++
			} else {
				before = hung
			}
			mu.Unlock()
			if hang {
				<-ctx.Done()
			}
			return nil
		})
		d := start(t, w, room, func(c *box.Config) { c.CreateTimeout = time.Second })
		await(t, func() bool { v, _ := d.Get(other); return v.Status == hostapi.StatusRunning }, nil)
		mu.Lock()
		defer mu.Unlock()
		if before > 2*bootsAtOnce {
			t.Errorf("it waited for %d boots that hang, of which %d are at once", before, bootsAtOnce)
		}
		d.Close()
	})
}

// The time of a boot runs from its turn: those before it may have used up theirs.
func TestABootIsTimedFromItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ids, room := rebooted(t, bootsAtOnce+1)
		var mu sync.Mutex
		held := map[string]bool{} // the first ones, until their time is over
		w.SetStep(func(ctx context.Context, name string) error {
			if name != "boot" {
				return nil
			}
			mu.Lock()
			hold := len(held) < bootsAtOnce
			if hold {
				held[boxtest.BoxID(ctx)] = true
			}
			mu.Unlock()
			if hold {
				<-ctx.Done()
			}
			return nil
		})
		d := start(t, w, room, func(c *box.Config) { c.CreateTimeout = time.Second })
		await(t, func() bool {
			return slices.ContainsFunc(ids, func(id string) bool { v, _ := d.Get(id); return v.Error != "" })
		}, nil)
		synctest.Wait()
		for _, id := range ids {
			v, err := d.Get(id)
			must(t, err)
			if late := held[id]; late != strings.Contains(v.Error, "could not be booted again yet") || late == (v.Status == hostapi.StatusRunning) {
				t.Errorf("held up: %v; it is %s, error %q", late, v.Status, v.Error)
			}
		}
		runInTheEnd(t, d, ids)
		nothingAfterDelete(t, d, w, ids...)
		d.Close()
	})
}
