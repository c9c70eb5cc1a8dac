package box_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
	"github.com/berth-cloud/berth/vmm"
)

func TestHibernateAndWakeKeepsMemory(t *testing.T) {
	for name, change := range map[string]func(*hostapi.BoxSpec){"restored": func(*hostapi.BoxSpec) {}, "booted": cold} {
		t.Run(name, func(t *testing.T) {
			events := &boxtest.Events{}
			w, d, _ := world(t, withEvents(events))
			before := put(t, d, idA, change)
			keys := w.Told("host-aa")
			for round := range 2 {
				w.VMM(idA).Remember("a thought")
				b, err := d.Hibernate(t.Context(), idA)
				must(t, err)
				if b.Status != hostapi.StatusHibernated || b.Seq <= before.Seq || b.Slot != before.Slot || b.VMMPID != 0 {
					t.Errorf("round %d: hibernated box = %+v", round, b)
				}
				if w.VMM(idA) != nil || d.ReservedMB() != 0 {
					t.Errorf("round %d: a hibernated box has a VMM or %d MB", round, d.ReservedMB())
				}
				if _, err := d.Exec(t.Context(), idA, hostapi.ExecRequest{Argv: []string{"x"}, Timeout: time.Second}); !errors.Is(err, hosterr.ErrNotRunning) {
					t.Errorf("exec = %v, want ErrNotRunning", err)
				}
				woken, err := d.Wake(t.Context(), idA)
				must(t, err)
				if woken.Status != hostapi.StatusRunning || woken.Seq <= b.Seq || woken.Slot != before.Slot {
					t.Errorf("round %d: woken box = %+v", round, woken)
				}
				if got := w.VMM(idA).Memory(); got != "a thought" {
					t.Errorf("round %d: memory = %q", round, got)
				}
				if _, err := os.Stat(w.Paths.State(idA)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("round %d: spent state is still there (%v)", round, err)
				}
			}
			told := w.Told("host-aa")
			if told.MachineID != keys.MachineID || len(told.SSHHostKeys) != 0 || told.ResetTCP || string(told.Entropy) == string(keys.Entropy) {
				t.Errorf("identity after a wake = %+v", told)
			}
			must(t, d.Delete(t.Context(), idA, 1))
			nothingLeft(t, w, d)
			want := []hostapi.EventType{
				hostapi.EventRunning, hostapi.EventHibernated, hostapi.EventWoken, hostapi.EventHibernated, hostapi.EventWoken, hostapi.EventDeleted,
			}
			if got := events.Types(idA); !slices.Equal(got, want) {
				t.Errorf("events = %v, want %v", got, want)
			}
			for _, ev := range events.Of(idA) {
				keys := map[hostapi.EventType][]string{
					hostapi.EventRunning: {"boot_ms", "boot_mode", "from_snapshot", "warm"}, hostapi.EventHibernated: {"snap_ms", "mem_mib"},
					hostapi.EventWoken: {"wake_ms"}, hostapi.EventDeleted: {"lifetime_seconds"},
				}[ev.Type]
				for _, k := range keys {
					if _, ok := ev.Metadata[k]; !ok {
						t.Errorf("%s lacks %s: %v", ev.Type, k, ev.Metadata)
					}
				}
			}
		})
	}
}

// Memory that takes something for written needs disks that have it.
func TestVolumesAreFlushedBeforeTheirBoxSleeps(t *testing.T) {
	volumes := &boxtest.Volumes{}
	_, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = volumes })
	put(t, d, idA, func(s *hostapi.BoxSpec) {
		s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}, {ID: "vol-2", MountPath: "/more"}}
	})
	volumes.NoFlush = boxtest.ErrInjected
	if _, err := d.Hibernate(t.Context(), idA); !errors.Is(err, boxtest.ErrInjected) {
		t.Errorf("hibernate = %v", err)
	}
	wantStatus(t, d, idA, hostapi.StatusRunning)
	volumes.NoFlush = nil
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	if want := []string{"vol-1", "vol-2"}; !slices.Equal(volumes.Flushed, want) {
		t.Errorf("flushed %v, want %v", volumes.Flushed, want)
	}
}

// A volume outlives its box: what a guest still has to write to it is written before the
// guest is stopped, or ended.
func TestAGuestFlushesItsVolumesBeforeItStops(t *testing.T) {
	withVolumes := func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} }
	attached := func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} }
	for before, stop := range map[string]func(*daemon) error{
		"kill":   func(d *daemon) error { return d.Delete(t.Context(), idA, 1) },
		"pause":  func(d *daemon) error { _, err := d.Pause(t.Context(), idA); return err },
		"freeze": func(d *daemon) error { _, err := d.Hibernate(t.Context(), idA); return err },
	} {
		for flush, fails := range map[string]string{"works": "", "fails": "sync"} {
			t.Run("the flush before "+before+" "+flush, func(t *testing.T) {
				events := &boxtest.Events{}
				w, d, _ := world(t, withVolumes, boxtest.WithEvents(events))
				put(t, d, idA, attached)
				put(t, d, idB)
				seen := &steps{fail: fails}
				w.SetStep(seen.note)
				must(t, d.Delete(t.Context(), idB, 1))
				if seen.saw("sync") {
					t.Error("a guest without volumes is held up")
				}
				must(t, stop(d))
				seen.inOrder(t, "freeze", "sync", before)
				if told := slices.Contains(events.Types(idA), hostapi.EventVolumeUnflushed); told != (flush == "fails") {
					t.Errorf("the flush %s, its event: %t", flush, told)
				}
				must(t, d.Delete(t.Context(), idA, 1))
				if before == "pause" { // no matter what came of the flush before it
					seen.inOrder(t, "resume", "freeze", "sync", "kill")
				} else if seen.saw("sync") { // once more, or of a guest that sleeps
					t.Error("a guest that does not run is asked")
				}
				nothingLeft(t, w, d)
			})
		}
	}
}

// A daemon that stops cannot know whether its machine stops, too.
func TestGuestsFlushTheirVolumesBeforeTheDaemonEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := &boxtest.Events{}
		w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} }, boxtest.WithEvents(events))
		put(t, d, idA, withVolume)
		put(t, d, idB)
		idC := strings.Repeat("c", len(idA))
		put(t, d, idC, func(s *hostapi.BoxSpec) {
			s.Exclusive, s.Volumes = true, []hostapi.VolumeAttach{{ID: "vol-2", MountPath: "/data"}}
		})
		var seen steps
		w.SetStep(seen.note)
		d.FlushVolumes(t.Context())
		if seen.saw("freeze") {
			t.Error("processes stand still that go on")
		}
		if !slices.Equal(seen.names, []string{"sync"}) {
			t.Errorf("guests did %q, want one sync, of the one with a volume that is no database", seen.names)
		}
		// One that does not answer holds the end up for a moment alone, and is told of.
		w.SetStep(func(ctx context.Context, name string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		d.FlushVolumes(t.Context())
		if !slices.Contains(events.Types(idA), hostapi.EventVolumeUnflushed) {
			t.Errorf("its events are %v", events.Types(idA))
		}
		w.SetStep(nil)
		must(t, d.Delete(t.Context(), idA, 1))
		must(t, d.Delete(t.Context(), idC, 1))
		must(t, d.Delete(t.Context(), idB, 1))
		d.Close()
	})
}

// A guest that does not answer holds its delete up for a moment alone.
func TestADeleteDoesNotWaitForAFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
		put(t, d, idA, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} })
		w.SetStep(func(ctx context.Context, name string) error {
			if name == "sync" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		began := time.Now()
		must(t, d.Delete(t.Context(), idA, 1))
		if took := time.Since(began); took > timescale.Limit(20*time.Second) {
			t.Errorf("it took %s", took)
		}
		nothingLeft(t, w, d)
		d.Close()
	})
}

// Nor does it where the guest, or the VMM, says nothing at all.
func TestAFlushOfAGuestThatIsSilentEndsInTime(t *testing.T) {
	for name, silent := range map[string][]string{"guest": {"freeze", "sync"}, "VMM": {"state", "resume"}} {
		synctest.Test(t, func(t *testing.T) {
			w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
			put(t, d, idA, withVolume)
			_, err := d.Pause(t.Context(), idA)
			must(t, err)
			w.SetStep(func(ctx context.Context, step string) error {
				if slices.Contains(silent, step) {
					<-ctx.Done()
				}
				return ctx.Err()
			})
			began := time.Now()
			must(t, d.Delete(t.Context(), idA, 1))
			if took := time.Since(began); took > timescale.Limit(20*time.Second) {
				t.Errorf("silent %s: it took %s", name, took)
			}
			nothingLeft(t, w, d)
			d.Close()
		})
	}
}

// A daemon that ended between the intent to delete and the flush leaves it to the next one.
func TestADeleteThatIsFinishedLaterFlushesFirst(t *testing.T) {
	withVolumes := func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} }
	w := boxtest.NewWorld(t)
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	last := boxtest.Run(w, l, withVolumes)
	last.Open()
	put(t, last, idA, withVolume)
	last.Close()
	rec, _ := l.Get(idA)
	rec.Enter(ledger.Deleting)
	must(t, l.Put(rec))
	var seen steps
	w.SetStep(seen.note)
	next := boxtest.Run(w, l, withVolumes)
	_, err = next.Recover(t.Context(), rec)
	must(t, err)
	next.Open()
	t.Cleanup(func() { next.Close(); _ = l.Close() })
	await(t, func() bool { return len(l.Boxes()) == 0 })
	seen.inOrder(t, "freeze", "sync", "kill")
	await(t, func() bool { return len(next.List()) == 0 })
	nothingLeft(t, w, next)
}

func TestAPauseThatFailsThawsTheGuest(t *testing.T) {
	w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA, withVolume)
	seen := &steps{fail: "pause"}
	w.SetStep(seen.note)
	if _, err := d.Pause(t.Context(), idA); err == nil {
		t.Fatal("it is said to be paused")
	}
	await(t, func() bool { return seen.saw("identity") })
	seen.inOrder(t, "freeze", "sync", "pause", "identity")
}

// The whole table: from each state, each move.
func TestMovesThatTheTableDoesNotHaveAreRefused(t *testing.T) {
	moves := map[string]func(*daemon) error{
		"pause":     func(d *daemon) error { _, err := d.Pause(t.Context(), idA); return err },
		"resume":    func(d *daemon) error { _, err := d.Resume(t.Context(), idA); return err },
		"hibernate": func(d *daemon) error { _, err := d.Hibernate(t.Context(), idA); return err },
		"wake":      func(d *daemon) error { _, err := d.Wake(t.Context(), idA); return err },
	}
	legal := map[hostapi.Status][]string{
		hostapi.StatusRunning:    {"pause", "hibernate", "wake"},
		hostapi.StatusPaused:     {"resume"},
		hostapi.StatusHibernated: {"wake"},
		hostapi.StatusFailed:     {},
	}
	for status, allowed := range legal {
		for name, move := range moves {
			t.Run(string(status)+" "+name, func(t *testing.T) {
				w, d, _ := world(t)
				put(t, d, idA)
				switch status {
				case hostapi.StatusPaused:
					must(t, moves["pause"](d))
				case hostapi.StatusHibernated:
					must(t, moves["hibernate"](d))
				case hostapi.StatusFailed:
					w.VMM(idA).Die(9)
					await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed })
				}
				err := move(d)
				if slices.Contains(allowed, name) {
					must(t, err)
					return
				}
				var refusal *box.StateError
				if !errors.Is(err, hosterr.ErrIllegalState) || !errors.As(err, &refusal) || refusal.Status != status {
					t.Errorf("%s = %v, want a refusal that says %s", name, err, status)
				}
				wantStatus(t, d, idA, status)
			})
		}
	}
}

func TestConcurrentWakesAreOneWake(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	var mu sync.Mutex
	starts := 0
	reached, proceed := make(chan struct{}), make(chan struct{})
	block := blockAt("restore", reached, proceed)
	w.SetStep(func(ctx context.Context, name string) error {
		if name == "start" {
			mu.Lock()
			starts++
			mu.Unlock()
		}
		return block(ctx, name)
	})
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if b, err := d.Wake(t.Context(), idA); err != nil || b.Status != hostapi.StatusRunning {
				t.Errorf("Wake = %s, %v", b.Status, err)
			}
		})
	}
	<-reached
	if b, _ := d.Get(idA); b.Status != hostapi.StatusHibernated {
		t.Errorf("status = %s while it wakes, want hibernated", b.Status)
	}
	// Whoever hangs up does not end it for the others.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Wake(ctx, idA); !errors.Is(err, context.Canceled) {
		t.Errorf("Wake = %v, want context.Canceled", err)
	}
	close(proceed)
	wg.Wait()
	if starts != 1 {
		t.Errorf("%d VMMs were started, want 1", starts)
	}
}

func TestAFailureAtEachStepOfAHibernateLeavesTheBoxRunning(t *testing.T) {
	for _, step := range []string{"pause", "snapshot", "detach"} {
		t.Run(step, func(t *testing.T) {
			w, d, f := world(t)
			put(t, d, idA)
			w.VMM(idA).Remember("x")
			f.At(step)
			if _, err := d.Hibernate(t.Context(), idA); !errors.Is(err, boxtest.ErrInjected) {
				t.Fatalf("Hibernate = %v, want the injected failure", err)
			}
			f.At("")
			wantStatus(t, d, idA, hostapi.StatusRunning)
			if state, _ := w.VMM(idA).State(t.Context()); state != vmm.StateRunning {
				t.Errorf("VM is %s", state)
			}
			for _, dir := range []string{w.Paths.State(idA), w.Paths.StateTmp(idA)} {
				if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is left", dir)
				}
			}
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
		})
	}
}

func TestAVMMThatCannotBeEndedKeepsItsMemoryReserved(t *testing.T) {
	for _, step := range []string{"kill", "remove-cgroup"} {
		t.Run(step, func(t *testing.T) {
			w, d, f := world(t)
			put(t, d, idA)
			w.VMM(idA).Remember("x")
			f.At(step)
			b, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			if b.Status != hostapi.StatusHibernated {
				t.Errorf("status = %s", b.Status)
			}
			if step == "kill" {
				if d.ReservedMB() == 0 {
					t.Error("the memory of a VMM that lives is given away")
				}
				if _, err := d.Wake(t.Context(), idA); err == nil {
					t.Error("a second VMM was started beside the first")
				}
				wantStatus(t, d, idA, hostapi.StatusHibernated)
			}
			f.At("")
			await(t, func() bool { return w.VMM(idA) == nil && d.ReservedMB() == 0 }) // the sweep
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			if got := w.VMM(idA).Memory(); got != "x" {
				t.Errorf("memory = %q", got)
			}
		})
	}
}

func TestAFailureOfAWakeLeavesTheBoxAsleep(t *testing.T) {
	for _, step := range []string{"cgroup", "start", "configure", "restore"} {
		t.Run(step, func(t *testing.T) {
			w, d, f := world(t)
			put(t, d, idA)
			w.VMM(idA).Remember("x")
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			f.At(step)
			if _, err := d.Wake(t.Context(), idA); err == nil {
				t.Fatal("Wake succeeded")
			}
			f.At("")
			wantStatus(t, d, idA, hostapi.StatusHibernated)
			if w.VMM(idA) != nil || d.ReservedMB() != 0 {
				t.Errorf("left: VMM %v, %d MB", w.VMM(idA), d.ReservedMB())
			}
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			if got := w.VMM(idA).Memory(); got != "x" {
				t.Errorf("memory = %q", got)
			}
		})
	}
}

// A state is never restored again once a VM may have gone on from it.
func TestAStateIsSpentWhenItsVMMayHaveRun(t *testing.T) {
	w, d, f := world(t)
	put(t, d, idA)
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	w.SetStep(func(_ context.Context, name string) error {
		if name != "resume" {
			return nil
		}
		return errors.Join(os.WriteFile(w.Paths.VMMLog(idA), []byte("of the host"), 0o600), boxtest.ErrInjected)
	})
	if _, err := d.Wake(t.Context(), idA); err == nil || !strings.Contains(err.Error(), "of the host") {
		t.Fatalf("wake = %v, want one with the VMM's log", err)
	}
	// The tenant reads why.
	if b := wantStatus(t, d, idA, hostapi.StatusFailed); b.Error != "it did not go on from its saved memory" {
		t.Errorf("error %q", b.Error)
	}
	w.SetStep(f.Run)
	if w.VMM(idA) != nil || d.ReservedMB() != 0 {
		t.Errorf("left: VMM %v, %d MB", w.VMM(idA), d.ReservedMB())
	}
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

// The guest runs, so the box does, though its agent is slow.
func TestAWokenGuestThatDoesNotAnswerRuns(t *testing.T) {
	w, d, f := world(t)
	put(t, d, idA)
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	before := w.Told("host-aa")
	f.At("identity")
	_, err = d.Wake(t.Context(), idA)
	must(t, err)
	wantStatus(t, d, idA, hostapi.StatusRunning)
	// It is told once it does that its callers are gone.
	f.At("")
	await(t, func() bool { return !bytes.Equal(w.Told("host-aa").Entropy, before.Entropy) })
	if told := w.Told("host-aa"); told.Resumed || len(told.SSHHostKeys) != 0 {
		t.Errorf("it was told %+v", told)
	}
	w.VMM(idA).Die(9) // and is watched
	await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed })
}

func TestHostLimitsOfHibernateAndWake(t *testing.T) {
	free := int64(1 << 40)
	var mu sync.Mutex
	_, d, _ := world(t, func(c *box.Config, deps *box.Deps) {
		c.MemoryMB, c.DiskHeadroomMB = 2*600, 100
		deps.DiskFree = func(string) (int64, error) { mu.Lock(); defer mu.Unlock(); return free, nil }
	})
	put(t, d, idA)
	mu.Lock()
	free = 512 << 20 // the memory would fit, the headroom would not stay
	mu.Unlock()
	if _, err := d.Hibernate(t.Context(), idA); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("Hibernate = %v, want ErrNoDisk", err)
	}
	wantStatus(t, d, idA, hostapi.StatusRunning)
	mu.Lock()
	free = 1 << 40
	mu.Unlock()
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	put(t, d, idB)
	put(t, d, id(3))
	if _, err := d.Wake(t.Context(), idA); !errors.Is(err, hosterr.ErrNoMemory) {
		t.Errorf("Wake = %v, want ErrNoMemory", err)
	}
	wantStatus(t, d, idA, hostapi.StatusHibernated)
	must(t, d.Delete(t.Context(), idB, 1))
	_, err = d.Wake(t.Context(), idA)
	must(t, err)
}

func TestAVMMThatDiesOnItsWayToSleepIsFailed(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	w.SetStep(func(_ context.Context, name string) error {
		if name == "detach" {
			w.VMM(idA).Die(9)
			await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed })
		}
		return nil
	})
	if _, err := d.Hibernate(t.Context(), idA); err == nil {
		t.Error("Hibernate succeeded")
	}
	wantStatus(t, d, idA, hostapi.StatusFailed)
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

func TestUpdateIsOnDisk(t *testing.T) {
	_, d, _ := world(t)
	put(t, d, idA)
	yes := true
	b, err := d.Update(t.Context(), idA, hostapi.BoxUpdate{Persistent: &yes})
	must(t, err)
	rec, _ := d.Ledger.Get(idA)
	if !b.Persistent || !rec.Persistent || rec.State != ledger.Running {
		t.Errorf("box = %+v, record = %+v", b, rec)
	}
}

// A VM that was refused its clock has not run: its memory still fits its disk. After any
// other refusal a part of it may have.
func TestAResumeThatWasRefusedTheClockKeepsTheMemory(t *testing.T) {
	for words, kept := range map[string]bool{
		"Failed to resume migratable component: Could not restore guest clock: Failed to set clock": true,
		"Failed to resume migratable component: Could not resume the VM: x":                         false,
	} {
		w, d, _ := world(t)
		put(t, d, idA)
		w.VMM(idA).Remember("a thought")
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
		w.SetStep(func(_ context.Context, name string) error {
			if name == "resume" {
				return &vmm.Error{Op: "vm.resume", Status: 500, Messages: []string{"Cannot resume VM", words}}
			}
			return nil
		})
		if _, err := d.Wake(t.Context(), idA); err == nil {
			t.Fatal("it woke")
		}
		w.SetStep(nil)
		if !kept {
			wantStatus(t, d, idA, hostapi.StatusFailed)
			continue
		}
		wantStatus(t, d, idA, hostapi.StatusHibernated)
		if got := d.ReservedMB(); got != 0 {
			t.Errorf("%d MB are reserved", got)
		}
		_, err = d.Wake(t.Context(), idA)
		must(t, err)
		if got := w.VMM(idA).Memory(); got != "a thought" {
			t.Errorf("its memory is %q", got)
		}
	}
}
