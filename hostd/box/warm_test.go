package box_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

func warm(parent string) func(*hostapi.BoxSpec) {
	return func(s *hostapi.BoxSpec) { s.Template, s.WarmFrom = "", parent }
}

func TestAWarmForkTakesItsParentsPlace(t *testing.T) {
	events := &boxtest.Events{}
	w, d, _ := world(t, withEvents(events))
	parent := put(t, d, idA)
	w.VMM(idA).Remember("shared past")
	must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("disk"), 0o600))
	// Both are never on the net at once.
	w.SetStep(func(_ context.Context, name string) error {
		if name == "start" && w.VMM(idA) != nil {
			t.Error("the child's VMM starts beside its parent's")
		}
		return nil
	})
	child := put(t, d, idB, warm(idA))
	if child.Slot != parent.Slot || child.Status != hostapi.StatusRunning || child.Template != "base" {
		t.Errorf("child = %+v", child)
	}
	raw, err := os.ReadFile(w.Paths.Overlay(idB))
	must(t, err)
	if got := w.VMM(idB).Memory(); got != "shared past" || string(raw) != "disk" {
		t.Errorf("memory %q, disk %q", got, raw)
	}
	// Its connections are the parent's; it is somebody else all the same.
	if told := w.Told("host-bb"); told.ResetTCP || len(told.SSHHostKeys) == 0 {
		t.Errorf("the child was told %+v", told)
	}
	stopped := wantStatus(t, d, idA, hostapi.StatusPaused)
	if stopped.Slot != -1 || stopped.Seq <= parent.Seq || w.VMM(idA) != nil || d.ReservedMB() != 600 {
		t.Errorf("parent = %+v, %d MB reserved", stopped, d.ReservedMB())
	}
	if _, err := d.Hibernate(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("hibernate of a stopped box = %v", err)
	}
	w.VMM(idB).Remember("the child's")
	resumed, err := d.Resume(t.Context(), idA)
	must(t, err)
	if resumed.Status != hostapi.StatusRunning || resumed.Slot == child.Slot || w.VMM(idA).Memory() != "shared past" {
		t.Errorf("resumed parent = %+v with memory %q", resumed, w.VMM(idA).Memory())
	}
	if told := w.Told("host-aa"); !told.ResetTCP || len(told.SSHHostKeys) != 0 {
		t.Errorf("the parent was told %+v", told)
	}
	if want := []hostapi.EventType{hostapi.EventRunning, hostapi.EventPaused, hostapi.EventResumed}; !slices.Equal(events.Types(idA), want) {
		t.Errorf("events of the parent = %v, want %v", events.Types(idA), want)
	}
	if ev := events.Of(idB); len(ev) != 1 || ev[0].Metadata["warm"] != true {
		t.Errorf("events of the child = %+v", ev)
	}
	for _, id := range []string{idA, idB} {
		must(t, d.Delete(t.Context(), id, 1))
	}
	nothingLeft(t, w, d)
}

func TestTheParentOfAWarmForkThatFailsRunsOn(t *testing.T) {
	for _, step := range []string{"pause", "snapshot", "detach", "cgroup", "start", "overlay", "configure", "restore", "resume", "identity"} {
		t.Run(step, func(t *testing.T) {
			w, d, f := world(t)
			parent := put(t, d, idA)
			w.VMM(idA).Remember("x")
			// Only the child's steps fail: the parent's own way back is open.
			var mu sync.Mutex
			failures := 1
			if step == "overlay" || step == "pause" {
				failures = 2 // asked for twice
			}
			w.SetStep(func(ctx context.Context, name string) error {
				mu.Lock()
				defer mu.Unlock()
				if failures > 0 && f.Run(ctx, name) != nil {
					failures--
					return boxtest.ErrInjected
				}
				return nil
			})
			f.At(step)
			_, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, WarmFrom: idA})
			if step == "overlay" {
				must(t, err) // not the template's, but the parent's disk
				return
			}
			if err == nil {
				t.Fatal("create succeeded")
			}
			b := wantStatus(t, d, idA, hostapi.StatusRunning)
			if got := w.VMM(idA).Memory(); got != "x" || b.Slot != parent.Slot || d.ReservedMB() != 600 {
				t.Errorf("memory %q, slot %d, %d MB", got, b.Slot, d.ReservedMB())
			}
			if _, err := d.Get(idB); !errors.Is(err, hosterr.ErrNotFound) {
				t.Errorf("child: %v, want ErrNotFound", err)
			}
			f.At("")
			put(t, d, idB, warm(idA))
			for _, id := range []string{idA, idB} {
				must(t, d.Delete(t.Context(), id, 1))
			}
			nothingLeft(t, w, d)
		})
	}
}

// A VMM that takes longer to end than anybody waits for it, as on a disk that hangs.
func TestAParentWhoseVMMCouldNotBeEndedHasNoSecondOne(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	w.VMM(idA).Remember("x")
	var stuck atomic.Bool
	w.SetStep(func(_ context.Context, name string) error {
		switch {
		case name == "kill" && stuck.Load():
			return boxtest.ErrInjected
		case name == "start" && w.VMM(idA) != nil:
			t.Error("a VMM is started beside the parent's")
		}
		return nil
	})
	stuck.Store(true)
	if _, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, WarmFrom: idA}); err == nil {
		t.Fatal("create succeeded")
	}
	if _, err := d.Resume(t.Context(), idA); err == nil {
		t.Error("the parent runs on beside its VMM")
	}
	stuck.Store(false)
	await(t, func() bool { return w.VMM(idA) == nil }) // the sweep
	_, err := d.Resume(t.Context(), idA)
	must(t, err)
	if got := w.VMM(idA).Memory(); got != "x" {
		t.Errorf("memory = %q", got)
	}
	must(t, d.Delete(t.Context(), idA, 1))
	await(t, func() bool { _, err := d.Get(idB); return errors.Is(err, hosterr.ErrNotFound) })
	nothingLeft(t, w, d)
}

func TestADeletedWarmForkGivesItsParentBack(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	reached := make(chan struct{})
	once := blockAt("restore", reached, nil)
	w.SetStep(func(ctx context.Context, name string) error {
		select {
		case <-reached:
			return nil // the parent's own restore
		default:
			return once(ctx, name)
		}
	})
	result := make(chan error, 1)
	go func() {
		_, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, WarmFrom: idA})
		result <- err
	}()
	<-reached
	must(t, d.Delete(t.Context(), idB, 1))
	if err := <-result; !errors.Is(err, hosterr.ErrStaleGeneration) {
		t.Errorf("Put = %v, want ErrStaleGeneration", err)
	}
	wantStatus(t, d, idA, hostapi.StatusRunning)
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

func TestWhatCannotBeForkedWarm(t *testing.T) {
	_, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} })
	put(t, d, id(4))
	_, err := d.Pause(t.Context(), id(4))
	must(t, err)
	for _, c := range []struct {
		name string
		spec hostapi.BoxSpec
		want error
	}{
		{"no parent", hostapi.BoxSpec{WarmFrom: id(5)}, hosterr.ErrNotFound},
		{"itself", hostapi.BoxSpec{WarmFrom: idB}, hosterr.ErrInvalid},
		{"a name", hostapi.BoxSpec{WarmFrom: "../x"}, hosterr.ErrInvalid},
		{"a paused parent", hostapi.BoxSpec{WarmFrom: id(4)}, hosterr.ErrNotRunning},
		{"volumes of the parent", hostapi.BoxSpec{WarmFrom: idA}, hosterr.ErrIllegalState},
		{"cold", hostapi.BoxSpec{WarmFrom: idA, Boot: hostapi.BootCold}, hosterr.ErrInvalid},
		{"two sources", hostapi.BoxSpec{WarmFrom: idA, Capture: "c"}, hosterr.ErrInvalid},
		{"volumes of its own", hostapi.BoxSpec{WarmFrom: id(4), Volumes: []hostapi.VolumeAttach{{ID: "v", MountPath: "/d"}}}, hosterr.ErrInvalid},
	} {
		c.spec.Generation = 1
		if _, err := d.Put(t.Context(), idB, c.spec); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestVolumesFollowTheirBox(t *testing.T) {
	volumes := &boxtest.Volumes{}
	with := func(_ *box.Config, deps *box.Deps) { deps.Volumes = volumes }
	attach := func(s *hostapi.BoxSpec) {
		s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}, {ID: "vol-2", MountPath: "/more"}}
	}
	for name, change := range map[string]func(*hostapi.BoxSpec){"restored": func(*hostapi.BoxSpec) {}, "booted": cold} {
		t.Run(name, func(t *testing.T) {
			w, d, f := world(t, with)
			put(t, d, idA, attach, change)
			has := func() map[string]string { return w.VMM(idA).Disks() }
			if got := has(); got["vol-1"] != "/volumes/vol-1" || got["vol-2"] != "/volumes/vol-2" {
				t.Errorf("disks = %v", got)
			}
			if _, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, Template: "base", Volumes: []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/d"}}}); !errors.Is(err, hosterr.ErrInUse) {
				t.Errorf("another box's volume: %v, want ErrInUse", err)
			}
			_, err := d.Hibernate(t.Context(), idA)
			must(t, err)
			if got := volumes.Holders(); got["vol-1"] != idA {
				t.Errorf("holders while asleep = %v", got)
			}
			_, err = d.Wake(t.Context(), idA)
			must(t, err)
			if got := has(); got["vol-1"] != "/volumes/vol-1" || len(got) != 2 {
				t.Errorf("disks after a wake = %v", got)
			}
			must(t, d.Delete(t.Context(), idA, 1))
			nothingLeft(t, w, d)
			if got := volumes.Holders(); len(got) != 0 {
				t.Errorf("holders after the delete = %v", got)
			}
			for _, step := range []string{"add-disk", "mounts", "identity"} {
				f.At(step)
				s := spec(2)
				attach(&s)
				change(&s)
				if _, err := d.Put(t.Context(), idA, s); err == nil {
					t.Errorf("create succeeded although %s failed", step)
				}
				if got := volumes.Holders(); len(got) != 0 {
					t.Errorf("%s: holders = %v", step, got)
				}
			}
		})
	}
}

func TestVolumesAreChecked(t *testing.T) {
	_, d, _ := world(t)
	for name, list := range map[string][]hostapi.VolumeAttach{
		"no id":           {{MountPath: "/data"}},
		"a long id":       {{ID: "vol-45678901234567890", MountPath: "/data"}},
		"a relative path": {{ID: "v", MountPath: "data"}},
		"the root":        {{ID: "v", MountPath: "/"}},
		"dots":            {{ID: "v", MountPath: "/a/../b"}},
		"NUL":             {{ID: "v", MountPath: "/a\x00"}},
		"a long path":     {{ID: "v", MountPath: longPath + "a"}},
		"twice":           {{ID: "v", MountPath: "/a"}, {ID: "v", MountPath: "/b"}},
		"one path":        {{ID: "v", MountPath: "/a"}, {ID: "w", MountPath: "/a"}},
		"no volumes here": {{ID: "v", MountPath: "/a"}},
	} {
		s := spec(1)
		s.Volumes = list
		if _, err := d.Put(t.Context(), idA, s); !errors.Is(err, hosterr.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	_, d, _ = world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "v", MountPath: longPath}} })
}

// longPath is as long as the API allows, in parts that a file system has names for.
var longPath = strings.Repeat("/"+strings.Repeat("a", 127), 8)

// Its connections are its child's, also where it is slow to take that in.
func TestAParentThatResumesLateIsToldOfItsConnections(t *testing.T) {
	w, d, f := world(t)
	put(t, d, idA)
	put(t, d, idB, warm(idA))
	f.At("identity")
	_, err := d.Resume(t.Context(), idA)
	must(t, err)
	f.At("")
	await(t, func() bool { return w.Told("host-aa").ResetTCP })
}
