package box_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

// runs reports whether a box runs, by its status and by its VM.
func runs(t *testing.T, d *daemon, w *boxtest.World, id string) bool {
	t.Helper()
	b, err := d.Get(id)
	must(t, err)
	state, err := w.VMM(id).State(t.Context())
	return b.Status == hostapi.StatusRunning && err == nil && state == vmm.StateRunning && !w.VMM(id).StandsStill()
}

// A VMM carries out what it was asked for when it comes to it, although nobody
// waits for that any more.
func TestWhatAVMMDoesTooLate(t *testing.T) {
	for name, c := range map[string]struct {
		fails string // what the VMM does not answer in time
		late  vmm.State
		move  func(ctx context.Context, d *daemon) error
	}{
		"a pause": {"pause", vmm.StatePaused, func(ctx context.Context, d *daemon) error {
			_, err := d.Pause(ctx, idA)
			return err
		}},
		"a resume": {"resume", vmm.StateRunning, func(ctx context.Context, d *daemon) error {
			_, err := d.Resume(ctx, idA)
			return err
		}},
		"the pause of a capture": {"pause", vmm.StatePaused, func(ctx context.Context, d *daemon) error {
			_, err := d.Captures().Make(ctx, "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			return err
		}},
		"the resume after a capture": {"resume", vmm.StateRunning, func(ctx context.Context, d *daemon) error {
			_, err := d.Captures().Make(ctx, "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, f := world(t)
				put(t, d, idA)
				if name == "a resume" {
					_, err := d.Pause(t.Context(), idA)
					must(t, err)
				}
				f.At(c.fails)
				if err := c.move(t.Context(), d); err == nil {
					t.Fatal("it was answered")
				}
				w.VMM(idA).SetState(c.late)
				f.At("")
				await(t, func() bool { return runs(t, d, w, idA) })
				_, err := d.Pause(t.Context(), idA)
				must(t, err)
				_, err = d.Resume(t.Context(), idA)
				must(t, err)
				must(t, d.Delete(t.Context(), idA, 1))
				nothingLeft(t, w, d)
				d.Close()
			})
		})
	}
}

// failTimes makes a step fail so often, each time as Cloud Hypervisor does after the
// time that a disk has, and then no more.
func failTimes(w *boxtest.World, step string, times int32) { w.SetStep(refusing(step, times)) }

func refusing(step string, times int32) func(context.Context, string) error {
	var left atomic.Int32
	left.Store(times)
	return func(ctx context.Context, name string) error {
		if name != step || left.Add(-1) < 0 {
			return nil
		}
		if err := within(ctx, 30*time.Second); err != nil {
			return err
		}
		return &vmm.Error{Op: "vm.pause", Status: 500, Messages: []string{"Cannot pause VM", "timed out draining block requests"}}
	}
}

// within does what takes so long, unless it is cut off.
func within(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var pausing = map[string]func(ctx context.Context, d *daemon) error{
	"a pause": func(ctx context.Context, d *daemon) error {
		_, err := d.Pause(ctx, idA)
		return err
	},
	"a hibernation": func(ctx context.Context, d *daemon) error {
		_, err := d.Hibernate(ctx, idA)
		return err
	},
	"a capture": func(ctx context.Context, d *daemon) error {
		_, err := d.Captures().Make(ctx, "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
		return err
	},
}

// Whoever pauses a box waits for a disk that is slow.
func TestAPauseOutlastsASlowDisk(t *testing.T) {
	for name, pause := range pausing {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, _ := world(t)
				put(t, d, idA)
				failTimes(w, "drain", 1)
				must(t, pause(t.Context(), d))
				must(t, d.Delete(t.Context(), idA, 1))
				d.Close()
			})
		})
	}
}

// A guest whose pause was refused when its CPUs had stopped runs on as soon as its disk
// comes to rest.
func TestARefusedPauseLeavesNoGuestStandingStill(t *testing.T) {
	for name, pause := range pausing {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, _ := world(t)
				put(t, d, idA)
				failTimes(w, "drain", 3)
				if err := pause(t.Context(), d); err == nil {
					t.Fatal("it was paused")
				}
				if !w.VMM(idA).StandsStill() {
					t.Fatal("the test's VM runs")
				}
				await(t, func() bool { return runs(t, d, w, idA) })
				must(t, pause(t.Context(), d))
				must(t, d.Delete(t.Context(), idA, 1))
				d.Close()
			})
		})
	}
}

// What was asked of a VMM by the last daemon it may still refuse under the next one. That
// one does not know it: the VM says that it runs.
func TestAnAdoptedGuestDoesNotStandStill(t *testing.T) {
	for name, silent := range map[string]string{"whose VMM answers": "", "whose VMM does not answer yet": "state"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, f := world(t)
				put(t, d, idA)
				f.At("drain")
				if _, err := d.Pause(t.Context(), idA); err == nil {
					t.Fatal("it was paused")
				}
				d.Close()
				f.At(silent)
				next := adopt(t, w, d)
				defer next.Close()
				f.At("")
				if !w.VMM(idA).StandsStill() {
					t.Fatal("the test's VM runs")
				}
				await(t, func() bool { return runs(t, next, w, idA) })
			})
		})
	}
}

// adopt starts the next daemon on a machine with one box.
func adopt(t *testing.T, w *boxtest.World, last *daemon) *daemon {
	t.Helper()
	next := boxtest.Run(w, last.Ledger)
	recovered, err := next.Recover(t.Context(), last.Ledger.Boxes()[0])
	must(t, err)
	if recovered != "adopted" {
		t.Fatalf("it is %s", recovered)
	}
	next.Open()
	return next
}

// A guest that says anything runs, and is not paused for nothing.
func TestAnAdoptedGuestThatAnswersIsLeftAlone(t *testing.T) {
	for name, guest := range map[string]http.Handler{"well": nil, "with a refusal": http.NotFoundHandler()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, _ := world(t)
				put(t, d, idA)
				d.Close()
				var seen steps
				w.Guest = guest
				w.SetStep(seen.note)
				next := adopt(t, w, d)
				defer next.Close()
				<-time.After(time.Minute)
				synctest.Wait()
				if seen.saw("pause") || !runs(t, next, w, idA) {
					t.Errorf("it went through %q", seen.names)
				}
			})
		})
	}
}

// A VMM that is still at work on a save when its time is over answers nothing else
// meanwhile. Its box runs, and its guest goes on as soon as the VMM is done.
func TestASaveThatOutlastsItsTimeLeavesTheBoxRunning(t *testing.T) {
	for _, name := range []string{"a hibernation", "a capture"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := &boxtest.Events{}
				w, d, _ := world(t, withEvents(events))
				put(t, d, idA)
				var busy atomic.Bool
				w.SetStep(func(ctx context.Context, name string) error {
					if name == "snapshot" {
						busy.Store(true)
					}
					if busy.Load() && (name == "snapshot" || name == "resume" || name == "state") {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				})
				if err := pausing[name](t.Context(), d); err == nil {
					t.Fatal("it was saved")
				}
				wantStatus(t, d, idA, hostapi.StatusRunning)
				<-time.After(time.Minute)
				wantStatus(t, d, idA, hostapi.StatusRunning)
				w.SetStep(nil)
				await(t, func() bool { return runs(t, d, w, idA) })
				if slices.Contains(events.Types(idA), hostapi.EventPaused) {
					t.Errorf("its events are %v", events.Types(idA))
				}
				must(t, pausing[name](t.Context(), d))
				must(t, d.Delete(t.Context(), idA, 1))
				nothingLeft(t, w, d)
				d.Close()
			})
		})
	}
}

// What a save waits for before the VM is paused takes nothing of the save's own time.
func TestTheTimeOfASaveRunsFromItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t)
		put(t, d, idA)
		slow := refusing("drain", 1)
		w.SetStep(func(ctx context.Context, name string) error {
			if name == "snapshot" {
				return within(ctx, 100*time.Second)
			}
			return slow(ctx, name)
		})
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
		must(t, d.Delete(t.Context(), idA, 1))
		d.Close()
	})
}

// The memory of a large database is written whole, to a disk that takes 125 MB in a second.
func TestMuchMemoryMayTakeLongToBeSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const memoryMB = 16384
		w, d, _ := world(t, func(c *box.Config, deps *box.Deps) {
			c.MemoryMB = 2 * memoryMB
			deps.DiskFree = func(string) (int64, error) { return 2 * memoryMB << 20, nil }
		})
		w.MemoryMB = memoryMB
		put(t, d, idA)
		w.SetStep(func(ctx context.Context, name string) error {
			if name == "snapshot" {
				return within(ctx, memoryMB/125*time.Second)
			}
			return nil
		})
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
		must(t, d.Delete(t.Context(), idA, 1))
		d.Close()
	})
}

// A guest that never runs on is not called running for ever.
func TestAGuestThatStandsStillForGoodHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t)
		put(t, d, idA)
		failTimes(w, "drain", 1<<20)
		if _, err := d.Hibernate(t.Context(), idA); err == nil {
			t.Fatal("it hibernates")
		}
		failsInTheEnd(t, w, d)
	})
}

// Nor is one whose VMM says nothing any more.
func TestAGuestWhoseVMMIsSilentForGoodHasFailed(t *testing.T) {
	for name, pause := range pausing {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, _ := world(t)
				put(t, d, idA)
				hangs := "drain"
				if name != "a pause" {
					hangs = "snapshot"
				}
				var hung atomic.Bool
				w.SetStep(func(ctx context.Context, name string) error {
					if name == hangs {
						hung.Store(true)
					}
					if hung.Load() && (name == hangs || name == "resume" || name == "state") {
						<-ctx.Done()
						return ctx.Err()
					}
					return nil
				})
				if err := pause(t.Context(), d); err == nil {
					t.Fatal("it was paused")
				}
				failsInTheEnd(t, w, d)
			})
		})
	}
}

// failsInTheEnd waits for more than what a guest that stands still has, and removes it. The
// tenant does not read what the VMM says.
func failsInTheEnd(t *testing.T, w *boxtest.World, d *daemon) {
	t.Helper()
	var b hostapi.Box
	for range timescale.Limit(15*time.Minute) / time.Second {
		b, _ = d.Get(idA)
		if b.Status == hostapi.StatusFailed {
			break
		}
		<-time.After(time.Second)
	}
	if b.Status != hostapi.StatusFailed || b.Error != "it did not run on after a pause" {
		t.Errorf("it is %s (%q)", b.Status, b.Error)
	}
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
	d.Close()
}

// A delete does not wait for the disk.
func TestADeleteCutsAPauseOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t)
		put(t, d, idA)
		failTimes(w, "drain", 1<<20)
		paused := make(chan error, 1)
		go func() {
			_, err := d.Pause(context.Background(), idA)
			paused <- err
		}()
		synctest.Wait()
		began := time.Now()
		must(t, d.Delete(t.Context(), idA, 1))
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
		if err := <-paused; !errors.Is(err, context.Canceled) {
			t.Errorf("the pause: %v", err)
		}
		nothingLeft(t, w, d)
		d.Close()
	})
}

// A pause that was refused before anything stopped harms nobody.
func TestAPauseRefusedAtOnceIsLeftAtThat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t)
		put(t, d, idA)
		asked := 0
		w.SetStep(func(_ context.Context, name string) error {
			if name != "pause" {
				return nil
			}
			asked++
			return &vmm.Error{Op: "vm.pause", Status: 500, Messages: []string{"Error activating pending virtio devices: x"}}
		})
		if _, err := d.Hibernate(t.Context(), idA); err == nil {
			t.Fatal("it hibernates")
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if asked != 1 || !runs(t, d, w, idA) {
			t.Errorf("it was asked %d times", asked)
		}
		d.Close()
	})
}
