package box_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

// dead makes a box whose VMM has died, with something on its disk.
func dead(t *testing.T, w *boxtest.World, d *daemon, id string, change ...func(*hostapi.BoxSpec)) hostapi.Box {
	t.Helper()
	put(t, d, id, change...)
	must(t, os.WriteFile(w.Paths.Overlay(id), []byte("kept"), 0o600))
	w.VMM(id).Die(syscall.SIGKILL)
	await(t, func() bool { b, _ := d.Get(id); return b.Status == hostapi.StatusFailed })
	return wantStatus(t, d, id, hostapi.StatusFailed)
}

func TestARestartBootsWhatHasFailedFromItsDisk(t *testing.T) {
	for name, change := range map[string]func(*hostapi.BoxSpec){
		"restored": func(*hostapi.BoxSpec) {}, "booted": cold,
		"with volumes": func(s *hostapi.BoxSpec) {
			s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			events := &boxtest.Events{}
			w, d, _ := world(t, withEvents(events), func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
			failed := dead(t, w, d, idA, change)
			for range 2 { // the second finds it running
				b, err := d.Restart(t.Context(), idA)
				must(t, err)
				if b.Status != hostapi.StatusRunning || b.Seq <= failed.Seq || b.Slot != failed.Slot || b.Error != "" || b.ExitCode != nil || b.Signal != "" {
					t.Errorf("box = %+v", b)
				}
			}
			raw, err := os.ReadFile(w.Paths.Overlay(idA))
			must(t, err)
			if got := w.VMM(idA).Memory(); got != "booted" || string(raw) != "kept" || d.ReservedMB() != 600 {
				t.Errorf("memory %q, disk %q, %d MB", got, raw, d.ReservedMB())
			}
			await(t, func() bool {
				return slices.Equal(events.Types(idA), []hostapi.EventType{hostapi.EventRunning, hostapi.EventVMDied, hostapi.EventRunning})
			})
			// It is as any other, and may die again.
			w.VMM(idA).Remember("y")
			_, err = d.Hibernate(t.Context(), idA)
			must(t, err)
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			if got := w.VMM(idA).Memory(); got != "y" {
				t.Errorf("memory = %q", got)
			}
			w.VMM(idA).Die(syscall.SIGKILL)
			await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed && d.ReservedMB() == 0 })
			_, err = d.Restart(t.Context(), idA)
			must(t, err)
			must(t, d.Delete(t.Context(), idA, 1))
			nothingLeft(t, w, d)
		})
	}
}

func TestConcurrentRestartsAreOneAndOutliveTheirCallers(t *testing.T) {
	w, d, _ := world(t)
	dead(t, w, d, idA)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var boots int
	var mu sync.Mutex
	hold := blockAt("boot", reached, proceed)
	w.SetStep(func(ctx context.Context, name string) error {
		if name == "boot" {
			mu.Lock()
			boots++
			mu.Unlock()
		}
		return hold(ctx, name)
	})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { _, err := d.Restart(ctx, idA); first <- err }()
	<-reached
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("first restart = %v", err)
	}
	wantStatus(t, d, idA, hostapi.StatusStarting)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if b, err := d.Restart(t.Context(), idA); err != nil || b.Status != hostapi.StatusRunning {
				t.Errorf("restart = %s, %v", b.Status, err)
			}
		})
	}
	close(proceed)
	group.Wait()
	mu.Lock()
	defer mu.Unlock()
	if boots != 1 {
		t.Errorf("it was booted %d times", boots)
	}
}

func TestAFailureAtEachStepOfARestartLeavesTheBoxFailed(t *testing.T) {
	for _, step := range []string{"cgroup", "start", "create", "boot", "identity"} {
		t.Run(step, func(t *testing.T) {
			w, d, failing := world(t)
			before := dead(t, w, d, idA)
			failing.At(step)
			if _, err := d.Restart(t.Context(), idA); err == nil {
				t.Fatal("it was restarted")
			}
			b := wantStatus(t, d, idA, hostapi.StatusFailed)
			if b.Seq <= before.Seq || b.Error != "it could not be booted again" || w.VMM(idA) != nil || d.ReservedMB() != 0 {
				t.Errorf("box = %+v, VMM %v, %d MB", b, w.VMM(idA), d.ReservedMB())
			}
			failing.At("")
			_, err := d.Restart(t.Context(), idA)
			must(t, err)
			must(t, d.Delete(t.Context(), idA, 1))
			nothingLeft(t, w, d)
		})
	}
}

// What cannot be begun leaves the box as it was, with its reason.
func TestARestartThatIsRefusedChangesNothing(t *testing.T) {
	w, d, failing := world(t, func(c *box.Config, _ *box.Deps) { c.MemoryMB = 600 })
	before := dead(t, w, d, idA)
	failing.At("remove-cgroup")
	if _, err := d.Restart(t.Context(), idA); !errors.Is(err, boxtest.ErrInjected) {
		t.Errorf("restart = %v, want the failure of the step", err)
	}
	failing.At("")
	put(t, d, idB)
	if _, err := d.Restart(t.Context(), idA); !errors.Is(err, hosterr.ErrNoMemory) {
		t.Errorf("restart = %v, want ErrNoMemory", err)
	}
	if b := wantStatus(t, d, idA, hostapi.StatusFailed); b.Seq != before.Seq || b.Error != before.Error || b.Signal != before.Signal {
		t.Errorf("box = %+v, was %+v", b, before)
	}
	must(t, d.Delete(t.Context(), idB, 1))
	_, err := d.Restart(t.Context(), idA)
	must(t, err)
}

// Memory that can never be restored is given up for the disk, by who asks for that
// alone, and never memory that can.
func TestARestartOfWhatHasLostItsMemory(t *testing.T) {
	for name, lose := range map[string]func(w *boxtest.World){
		"no memory":        func(w *boxtest.World) { must(t, os.Remove(capture.Memory(w.Paths.State(idA)))) },
		"no state":         func(w *boxtest.World) { must(t, os.Remove(filepath.Join(w.Paths.State(idA), vmm.FileState))) },
		"another engine's": func(*boxtest.World) {},
		"another engine's, of an earlier daemon": func(w *boxtest.World) {
			w.SetStep(func(_ context.Context, name string) error {
				if name == "build" {
					return boxtest.ErrInjected
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			l, err := ledger.Open(w.Paths.Ledger(), "h1")
			must(t, err)
			t.Cleanup(func() { must(t, l.Close()) })
			d := boxtest.Run(w, l)
			d.Open()
			put(t, d, idA)
			must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("kept"), 0o600))
			_, err = d.Hibernate(t.Context(), idA)
			must(t, err)
			d.Close()
			engine := "fake"
			if name == "another engine's" {
				engine = "fake v2"
			}
			d = boxtest.Run(w, l, func(c *box.Config, _ *box.Deps) { c.Engine = engine })
			defer d.Close()
			for _, rec := range l.Boxes() {
				if strings.HasSuffix(name, "earlier daemon") {
					rec.SavedBy = ""
				}
				_, err := d.Recover(t.Context(), rec)
				must(t, err)
			}
			d.Open()
			if _, err := d.Restart(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
				t.Errorf("restart before a wake = %v", err)
			}
			lose(w)
			if _, err := d.Wake(t.Context(), idA); !errors.Is(err, hosterr.ErrBadSnapshot) {
				t.Errorf("wake = %v, want ErrBadSnapshot", err)
			}
			wantStatus(t, d, idA, hostapi.StatusHibernated)
			b, err := d.Restart(t.Context(), idA)
			must(t, err)
			raw, err := os.ReadFile(w.Paths.Overlay(idA))
			must(t, err)
			if got := w.VMM(idA).Memory(); b.Status != hostapi.StatusRunning || got != "booted" || string(raw) != "kept" {
				t.Errorf("%s, memory %q, disk %q", b.Status, got, raw)
			}
			// Its memory is this engine's from now on.
			w.VMM(idA).Remember("y")
			_, err = d.Hibernate(t.Context(), idA)
			must(t, err)
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			if got := w.VMM(idA).Memory(); got != "y" {
				t.Errorf("memory = %q", got)
			}
		})
	}
}

// What may be in the way for a while does not cost a box its memory.
func TestAWakeThatFailsKeepsTheMemory(t *testing.T) {
	for _, step := range []string{"configure", "start", "restore", "cgroup"} {
		t.Run(step, func(t *testing.T) {
			w, d, failing := world(t)
			put(t, d, idA)
			w.VMM(idA).Remember("a thought")
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			failing.At(step)
			if _, err := d.Wake(t.Context(), idA); !errors.Is(err, boxtest.ErrInjected) {
				t.Errorf("wake = %v", err)
			}
			if _, err := d.Restart(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
				t.Errorf("restart = %v", err)
			}
			failing.At("")
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			if got := w.VMM(idA).Memory(); got != "a thought" {
				t.Errorf("memory = %q", got)
			}
		})
	}
}

// A saved state that the VMM does not take is given up, where the box has all that it
// needs on its disk.
func TestAMemoryThatTheVMMRefuses(t *testing.T) {
	refused := &vmm.Error{Op: "vm.restore", Status: 500, Messages: []string{"The VM could not be restored", "missing field `cpus`"}}
	die := func(s syscall.Signal) func(v *boxtest.VMM) error {
		return func(v *boxtest.VMM) error { v.Die(s); return syscall.ECONNRESET }
	}
	say := func(err error) func(v *boxtest.VMM) error { return func(*boxtest.VMM) error { return err } }
	for name, c := range map[string]struct {
		fail   func(v *boxtest.VMM) error
		shared bool
		lost   bool
	}{
		"it says so":                    {say(refused), false, true},
		"it dies of it":                 {die(syscall.SIGABRT), false, true},
		"it is killed meanwhile":        {die(syscall.SIGKILL), false, false},
		"the host has too little room":  {say(&vmm.Error{Status: 500, Messages: []string{"mmap", "Cannot allocate memory (os error 12)"}}), false, false},
		"its disk is locked":            {say(&vmm.Error{Status: 500, Messages: []string{"Error locking disk images: Another instance likely holds a lock", "The file is already locked"}}), false, false},
		"another box than a database's": {say(refused), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, d, _ := world(t)
			put(t, d, idA, func(s *hostapi.BoxSpec) { s.Persistent, s.Exclusive = true, !c.shared })
			w.VMM(idA).Remember("a thought")
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			w.SetStep(func(_ context.Context, name string) error {
				if name == "restore" {
					return c.fail(w.VMM(idA))
				}
				return nil
			})
			if _, err := d.Wake(t.Context(), idA); err == nil || errors.Is(err, hosterr.ErrBadSnapshot) {
				t.Errorf("the first wake = %v", err)
			}
			_, err = d.Wake(t.Context(), idA)
			if got := errors.Is(err, hosterr.ErrBadSnapshot); err == nil || got != c.lost {
				t.Errorf("the second wake = %v", err)
			}
			wantStatus(t, d, idA, hostapi.StatusHibernated)
			w.SetStep(nil)
			want := "a thought"
			if c.lost {
				want = "booted"
				_, err = d.Restart(t.Context(), idA)
			} else {
				_, err = d.Wake(t.Context(), idA)
			}
			must(t, err)
			if got := w.VMM(idA).Memory(); got != want {
				t.Errorf("memory = %q", got)
			}
		})
	}
}

func TestOnlyWhatHasFailedIsRestarted(t *testing.T) {
	_, d, _ := world(t)
	put(t, d, idA)
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	if _, err := d.Restart(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("of one that sleeps: %v", err)
	}
	if _, err := d.Restart(t.Context(), idB); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
}

func TestADeleteCutsOffARestart(t *testing.T) {
	w, d, _ := world(t)
	dead(t, w, d, idA)
	reached := make(chan struct{})
	w.SetStep(blockAt("boot", reached, nil))
	restarted := make(chan error, 1)
	go func() { _, err := d.Restart(t.Context(), idA); restarted <- err }()
	<-reached
	must(t, d.Delete(t.Context(), idA, 1))
	if err := <-restarted; err == nil {
		t.Error("it was restarted")
	}
	w.SetStep(nil)
	nothingLeft(t, w, d)
}

// A VMM that cannot be ended keeps its memory, and its box is not failed before.
func TestARestartWhoseVMMCannotBeEnded(t *testing.T) {
	w, d, _ := world(t)
	dead(t, w, d, idA)
	var mu sync.Mutex
	kills := 0
	w.SetStep(func(_ context.Context, name string) error {
		mu.Lock()
		defer mu.Unlock()
		switch name {
		case "identity":
			return boxtest.ErrInjected
		case "kill":
			if kills++; kills <= 2 {
				return boxtest.ErrInjected
			}
		}
		return nil
	})
	if _, err := d.Restart(t.Context(), idA); err == nil {
		t.Fatal("it was restarted")
	}
	if b, _ := d.Get(idA); b.Status == hostapi.StatusFailed && w.VMM(idA) != nil {
		t.Error("it has failed while its VMM lives")
	}
	await(t, func() bool {
		b, _ := d.Get(idA)
		return b.Status == hostapi.StatusFailed && w.VMM(idA) == nil && d.ReservedMB() == 0
	})
	w.SetStep(nil)
	_, err := d.Restart(t.Context(), idA)
	must(t, err)
}

// A restart of a box whose lease is over does not survive it, and says why.
func TestAFenceEndsARestart(t *testing.T) {
	w, d, _ := world(t)
	dead(t, w, d, idA, func(s *hostapi.BoxSpec) { s.Exclusive = true })
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.SetStep(blockAt("boot", reached, proceed))
	restarted := make(chan error, 1)
	go func() { _, err := d.Restart(t.Context(), idA); restarted <- err }()
	<-reached
	d.Fence(t.Context(), fenceReason)
	if err := <-restarted; err == nil {
		t.Error("it was restarted in spite of the fence")
	}
	close(proceed)
	if b := wantStatus(t, d, idA, hostapi.StatusFailed); b.Error != fenceReason {
		t.Errorf("error = %q", b.Error)
	}
}

// After a reboot of its host an exclusive box may run elsewhere.
func TestAnExclusiveBoxIsBootedAgainOnceItsHostHasALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := boxtest.NewWorld(t)
		l, err := ledger.Open(w.Paths.Ledger(), "h1")
		must(t, err)
		d := boxtest.Run(w, l)
		d.Open()
		for id, exclusive := range map[string]bool{idA: true, idB: false} {
			put(t, d, id, func(s *hostapi.BoxSpec) { s.Persistent, s.Exclusive = true, exclusive })
		}
		d.Close()
		for _, id := range []string{idA, idB} {
			w.VMM(id).Die(syscall.SIGKILL)
		}
		var mu sync.Mutex
		leased := false
		d = boxtest.Run(w, l, func(_ *box.Config, deps *box.Deps) {
			deps.Leased = func() bool { mu.Lock(); defer mu.Unlock(); return leased }
		})
		for _, rec := range l.Boxes() {
			_, err := d.Recover(t.Context(), rec)
			must(t, err)
		}
		d.Open()
		<-time.After(time.Hour)
		synctest.Wait()
		wantStatus(t, d, idB, hostapi.StatusRunning)
		if b := wantStatus(t, d, idA, hostapi.StatusStarting); w.VMM(idA) != nil || !strings.Contains(b.Error, "leader") {
			t.Errorf("an exclusive box without a lease: VMM %v, error %q", w.VMM(idA), b.Error)
		}
		mu.Lock()
		leased = true
		mu.Unlock()
		<-time.After(time.Second)
		synctest.Wait()
		if b := wantStatus(t, d, idA, hostapi.StatusRunning); b.Error != "" {
			t.Errorf("error = %q", b.Error)
		}
		d.Close()
		must(t, l.Close())
	})
}
