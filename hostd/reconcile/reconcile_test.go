package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/hostd/reconcile"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/vmm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var spec = hostapi.BoxSpec{Generation: 1, WorkspaceID: "ws", Template: "base"}

type daemon struct {
	*boxtest.Daemon
	ledger *ledger.Ledger
	report reconcile.Report
	events *boxtest.Events
	log    *strings.Builder
}

// start starts a daemon on a machine as it is found.
func start(t *testing.T, w *boxtest.World, change ...func(*box.Config)) *daemon {
	t.Helper()
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	d := &daemon{ledger: l, log: &strings.Builder{}, events: &boxtest.Events{}}
	d.Daemon = boxtest.Run(w, l, func(cfg *box.Config, deps *box.Deps) {
		deps.Events = d.events
		for _, f := range change {
			f(cfg)
		}
	})
	r := &reconcile.Reconciler{Records: l.Boxes(), Boxes: d, Captures: d.Captures(), Machine: w, Events: d.events, Log: slog.New(slog.NewTextHandler(d.log, nil))}
	d.report, err = r.Run(t.Context())
	must(t, err)
	t.Cleanup(func() { d.Close(); _ = l.Close() })
	return d
}

// stop ends a daemon; its VMs live on.
func (d *daemon) stop() {
	d.Close()
	_ = d.ledger.Close()
}

// crashAt runs act on a daemon that is frozen at the step, and returns the
// machine as the next daemon finds it.
func crashAt(t *testing.T, w *boxtest.World, step string, act func(*daemon)) *boxtest.World {
	t.Helper()
	reached, frozen := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.SetStep(func(_ context.Context, name string) error {
		if name == step {
			once.Do(func() { close(reached) })
			<-frozen
			return boxtest.ErrInjected
		}
		return nil
	})
	d := start(t, w)
	ended := make(chan struct{})
	go func() { defer close(ended); act(d) }()
	<-reached
	after := w.Fork(t)
	close(frozen)
	<-ended
	return after
}

func TestACrashAtAnyStepOfACreateLeavesNothing(t *testing.T) {
	for _, step := range []string{"take", "cgroup", "start", "configure", "restore", "resume", "identity"} {
		t.Run(step, func(t *testing.T) {
			w := crashAt(t, boxtest.NewWorld(t), step, func(d *daemon) { _, _ = d.Put(t.Context(), idA, spec) })
			d := start(t, w)
			if _, err := d.Get(idA); !errors.Is(err, hosterr.ErrNotFound) {
				t.Errorf("Get = %v, want ErrNotFound", err)
			}
			// The flow of the control plane asks again, with the same generation.
			if _, err := d.Put(t.Context(), idA, spec); err != nil {
				t.Fatalf("Put again: %v", err)
			}
			must(t, d.Delete(t.Context(), idA, 1))
			await(t, func() bool { return len(w.Left()) == 0 }, func() string { return strings.Join(w.Left(), ", ") })
			if recs := d.ledger.Boxes(); len(recs) > 0 {
				t.Errorf("left in the ledger: %+v", recs)
			}
		})
	}
}

func TestACrashAtAnyStepOfADeleteIsFinished(t *testing.T) {
	for _, step := range boxtest.DeleteSteps {
		t.Run(step, func(t *testing.T) {
			w := crashAt(t, boxtest.NewWorld(t), step, func(d *daemon) {
				_, err := d.Put(t.Context(), idA, spec)
				must(t, err)
				_ = d.Delete(t.Context(), idA, 1)
			})
			d := start(t, w)
			if d.report.Leftover != 1 {
				t.Errorf("report = %+v, want one leftover", d.report)
			}
			await(t, func() bool { return len(w.Left()) == 0 }, func() string { return strings.Join(w.Left(), ", ") })
			if _, err := d.Put(t.Context(), idA, spec); !errors.Is(err, hosterr.ErrStaleGeneration) {
				t.Errorf("Put of the deleted generation = %v, want ErrStaleGeneration", err)
			}
		})
	}
}

func TestRunningAndPausedVMsAreAdopted(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	for _, id := range []string{idA, idB} {
		_, err := d.Put(t.Context(), id, spec)
		must(t, err)
	}
	_, err := d.Pause(t.Context(), idB)
	must(t, err)
	pid := w.VMM(idA).PID()
	d.stop()

	w = w.Fork(t)
	d = start(t, w)
	if d.report.Adopted != 2 || d.report.Unmanaged != 0 {
		t.Errorf("report = %+v, want two adopted", d.report)
	}
	a, err := d.Get(idA)
	must(t, err)
	b, err := d.Get(idB)
	must(t, err)
	if a.Status != hostapi.StatusRunning || a.VMMPID != pid || b.Status != hostapi.StatusPaused {
		t.Errorf("a = %+v\nb = %+v", a, b)
	}
	if got := d.ReservedMB(); got != 1200 {
		t.Errorf("%d MB reserved, want 1200", got)
	}
	res, err := d.Exec(t.Context(), idA, hostapi.ExecRequest{Argv: []string{"hi"}, Timeout: time.Minute})
	must(t, err)
	if string(res.Stdout) != "hi" {
		t.Errorf("exec in an adopted box = %q", res.Stdout)
	}
	// Its death is noticed too, though only a parent learns how.
	w.VMM(idA).Die(syscall.SIGKILL)
	await(t, func() bool { v, _ := d.Get(idA); return v.Status == hostapi.StatusFailed }, nil)
	must(t, d.Delete(t.Context(), idA, 1))
	must(t, d.Delete(t.Context(), idB, 1))
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestTheVMsOwnStateWins(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	named := spec
	named.Hostname = "a"
	_, err := d.Put(t.Context(), idA, named)
	must(t, err)
	d.stop()
	// The crash came while it stood still for a moment, for a capture or on its
	// way to sleep: it goes on.
	w.VMM(idA).SetState(vmm.StatePaused)
	d = start(t, w)
	v, err := d.Get(idA)
	must(t, err)
	if state, _ := w.VMM(idA).State(t.Context()); v.Status != hostapi.StatusRunning || state != vmm.StateRunning {
		t.Errorf("status = %s, VM %s, want running", v.Status, state)
	}
	_, err = d.Pause(t.Context(), idA)
	must(t, err)
	d.stop()
	before := w.Told("a")
	w.VMM(idA).SetState(vmm.StateRunning) // resumed before the ledger knew, and the guest the time
	d = start(t, w)
	v, err = d.Get(idA)
	must(t, err)
	if v.Status != hostapi.StatusRunning || !slices.Equal(d.events.Types(idA), []hostapi.EventType{hostapi.EventResumed}) {
		t.Errorf("status = %s, events %v; want running, and resumed", v.Status, d.events.Types(idA))
	}
	if told := w.Told("a"); !told.Resumed || string(told.Entropy) == string(before.Entropy) {
		t.Error("the guest was not told the time")
	}
	d.stop()
	w.VMM(idA).SetState(vmm.StateShutdown) // the guest powered off
	d = start(t, w)
	v, err = d.Get(idA)
	must(t, err)
	if v.Status != hostapi.StatusFailed || w.VMM(idA) != nil {
		t.Errorf("status = %s with VMM %v, want failed and none", v.Status, w.VMM(idA))
	}
}

// A snapshot that was cut off by the daemon's end goes on in the VMM, which answers
// nothing until it is done.
func TestAVMMThatAnswersLateIsTakenUpThen(t *testing.T) {
	tier.Slow(t)
	for step, status := range map[string]hostapi.Status{
		"snapshot": hostapi.StatusRunning, // of a hibernation
		"resume":   hostapi.StatusHibernated,
	} {
		t.Run(step, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w)
			thinking(t, d, w, idA)
			if step == "resume" {
				_, err := d.Hibernate(t.Context(), idA)
				must(t, err)
			}
			d.stop()
			w = crashAt(t, w, step, func(d *daemon) {
				if step == "resume" {
					_, _ = d.Wake(t.Context(), idA)
				} else {
					_, _ = d.Hibernate(t.Context(), idA)
				}
			})
			w.SetStep(func(_ context.Context, name string) error {
				if name == "state" {
					return boxtest.ErrInjected
				}
				return nil
			})
			d = start(t, w)
			if v, err := d.Get(idA); err != nil || v.Status != status {
				t.Errorf("status = %s, %v; want %s", v.Status, err, status)
			}
			w.SetStep(nil)
			await(t, func() bool {
				v, _ := d.Get(idA)
				state, _ := w.VMM(idA).State(t.Context())
				return v.Status == hostapi.StatusRunning && state == vmm.StateRunning
			}, nil)
			isWell(t, d, w, idA, hostapi.StatusRunning)
			nothingAfterDelete(t, d, w, idA)
		})
	}
}

// A VMM that cannot be killed, or a cgroup that stays, costs its own box and none
// of the others.
func TestOneVMMThatCannotBeEnded(t *testing.T) {
	tier.Slow(t)
	persistent := spec
	persistent.Persistent = true
	for name, c := range map[string]struct {
		left   func(t *testing.T, w *boxtest.World) *boxtest.World // what the crash leaves of box A
		status hostapi.Status                                      // of it, while its VMM cannot be ended
		after  hostapi.Status
	}{
		"hibernated": {func(t *testing.T, w *boxtest.World) *boxtest.World {
			return crashAt(t, w, "kill", func(d *daemon) {
				_, err := d.Put(t.Context(), idA, spec)
				must(t, err)
				_, _ = d.Hibernate(t.Context(), idA)
			})
		}, hostapi.StatusHibernated, hostapi.StatusHibernated},
		"booting": {func(t *testing.T, w *boxtest.World) *boxtest.World {
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, persistent)
			must(t, err)
			d.stop()
			reboot(t, w, idA)
			return crashAt(t, w, "boot", func(d *daemon) {
				await(t, func() bool { v, _ := d.Get(idA); return v.Error != "" }, nil)
			})
		}, hostapi.StatusStarting, hostapi.StatusRunning},
		"powered off": {func(t *testing.T, w *boxtest.World) *boxtest.World {
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, spec)
			must(t, err)
			d.stop()
			w.VMM(idA).SetState(vmm.StateShutdown)
			return w
		}, hostapi.StatusFailed, hostapi.StatusFailed},
		"gone": {func(t *testing.T, w *boxtest.World) *boxtest.World {
			d := start(t, w)
			_, err := d.Put(t.Context(), idA, spec)
			must(t, err)
			d.stop()
			w.VMM(idA).Die(syscall.SIGKILL)
			return w
		}, hostapi.StatusFailed, hostapi.StatusFailed},
	} {
		for _, step := range []string{"kill", "remove-cgroup"} {
			t.Run(name+" "+step, func(t *testing.T) {
				w := boxtest.NewWorld(t)
				d := start(t, w)
				_, err := d.Put(t.Context(), idB, spec)
				must(t, err)
				d.stop()
				w = c.left(t, w)
				var stuck atomic.Bool
				stuck.Store(true)
				w.SetStep(func(ctx context.Context, name string) error {
					if _, bounded := ctx.Deadline(); name == step && !bounded {
						t.Errorf("%s may take for ever", name)
					}
					if name == step && stuck.Load() {
						return boxtest.ErrInjected
					}
					return nil
				})
				for _, when := range []string{"first", "second"} {
					d = start(t, w)
					a, err := d.Get(idA)
					must(t, err)
					b, err := d.Get(idB)
					must(t, err)
					if a.Status != c.status || b.Status != hostapi.StatusRunning {
						t.Errorf("%s start: status = %s, of the other %s; want %s and running", when, a.Status, b.Status, c.status)
					}
					if lives := w.VMM(idA) != nil; lives && d.ReservedMB() != 1200 {
						t.Errorf("%s start: %d MB are reserved while it lives, want 1200", when, d.ReservedMB())
					}
					if when == "first" {
						d.stop()
					}
				}
				stuck.Store(false)
				runs, reserved := false, 600
				if c.after == hostapi.StatusRunning {
					runs, reserved = true, 1200
				}
				await(t, func() bool {
					v, err := d.Get(idA)
					must(t, err)
					return v.Status == c.after && runs == (w.VMM(idA) != nil) && runs == slices.Contains(w.Left(), "cgroup "+idA) && d.ReservedMB() == reserved
				}, func() string { return strings.Join(w.Left(), ", ") })
				nothingAfterDelete(t, d, w, idA, idB)
			})
		}
	}
}

func TestAVanishedVMIsOrphaned(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec)
	must(t, err)
	d.stop()
	w.VMM(idA).Die(syscall.SIGKILL)

	d = start(t, w)
	v, err := d.Get(idA)
	must(t, err)
	if v.Status != hostapi.StatusFailed || v.Error == "" || d.report.Orphaned != 1 {
		t.Errorf("box = %+v, report = %+v", v, d.report)
	}
	d.stop()
	d = start(t, w) // and stays failed
	if d.report.Kept != 1 {
		t.Errorf("report = %+v, want one kept", d.report)
	}
	must(t, d.Delete(t.Context(), idA, 1))
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestWhatHasNoRecordIsKilledAndRemoved(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	_, err := d.Put(t.Context(), idA, spec)
	must(t, err)
	d.stop()
	stray := w.AddVMM(t, idB)
	must(t, os.MkdirAll(w.Paths.Box("cccccccccccccccccccccccccc"), 0o755))
	other := filepath.Join(w.Paths.Run, "not-ours")
	must(t, os.MkdirAll(other, 0o755))

	d = start(t, w)
	<-stray.Done()
	if d.report.Unmanaged != 2 || d.report.Adopted != 1 {
		t.Errorf("report = %+v, want one adopted and two unmanaged", d.report)
	}
	if !strings.Contains(d.log.String(), "event=recover.unmanaged") {
		t.Errorf("log lacks recover.unmanaged: %s", d.log)
	}
	if got := d.events.Types(idB); !slices.Equal(got, []hostapi.EventType{hostapi.EventUnmanaged}) {
		t.Errorf("events = %v, want recover.unmanaged", got)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("a directory that is not a box's was touched: %v", err)
	}
	must(t, os.Remove(other))
	must(t, d.Delete(t.Context(), idA, 1))
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// A box that was made here before the ledger was lost may be made anew as soon as
// the host serves. What is left of the old one is not removed after that.
func TestNothingIsServedWhileFilesWithoutARecordAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := boxtest.NewWorld(t)
		must(t, os.MkdirAll(w.Paths.Box(idA), 0o755))
		l, err := ledger.Open(w.Paths.Ledger(), "h1")
		must(t, err)
		d := boxtest.Run(w, l)
		m := &slowRemoval{World: w, proceed: make(chan struct{})}
		r := &reconcile.Reconciler{Boxes: d, Captures: d.Captures(), Machine: m, Log: slog.New(slog.DiscardHandler)}
		reconciled := make(chan error)
		go func() {
			_, err := r.Run(t.Context())
			reconciled <- err
		}()
		synctest.Wait()
		if d.Ready() {
			t.Error("the host serves before what was left is removed")
		}
		close(m.proceed)
		must(t, <-reconciled)
		_, err = d.Put(t.Context(), idA, spec)
		must(t, err)
		d.Close()
		must(t, l.Close())
	})
}

// slowRemoval is a machine whose disk takes long to remove files.
type slowRemoval struct {
	*boxtest.World
	proceed chan struct{}
}

func (m *slowRemoval) RemoveFiles(id string) error {
	<-m.proceed
	return m.World.RemoveFiles(id)
}

func TestALostLedgerLeavesNoVM(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	for _, id := range []string{idA, idB} {
		_, err := d.Put(t.Context(), id, spec)
		must(t, err)
	}
	d.stop()
	w = w.Fork(t)
	must(t, os.Remove(w.Paths.Ledger()))
	d = start(t, w)
	if d.report.Unmanaged != 2 || len(d.List()) != 0 {
		t.Errorf("report = %+v, boxes = %v", d.report, d.List())
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// Nothing may be answered before the list is complete: the control plane would
// take "not found" for the truth.
func TestNothingIsAnsweredBeforeTheListIsComplete(t *testing.T) {
	w := boxtest.NewWorld(t)
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	h := boxtest.Run(w, l)
	defer func() { h.Close(); _ = l.Close() }()
	ctx := t.Context()
	_, getErr := h.Get(idA)
	_, putErr := h.Put(ctx, idA, spec)
	_, pauseErr := h.Pause(ctx, idA)
	_, execErr := h.Exec(ctx, idA, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Second})
	for name, err := range map[string]error{
		"get": getErr, "put": putErr, "pause": pauseErr, "exec": execErr, "delete": h.Delete(ctx, idA, 1),
	} {
		if !errors.Is(err, hosterr.ErrDraining) {
			t.Errorf("%s = %v, want ErrDraining", name, err)
		}
	}
}

func await(t *testing.T, cond func() bool, say func() string) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			if say != nil {
				t.Fatalf("condition did not come true within 10 s: %s", say())
			}
			t.Fatal("condition did not come true within 10 s")
		case <-tick.C:
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
