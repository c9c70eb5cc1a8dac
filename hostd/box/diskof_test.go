package box_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/vmm"
)

// copyOf is a box that is booted from a copy of another one's disk.
func copyOf(other string) hostapi.BoxSpec {
	return hostapi.BoxSpec{Generation: 1, DiskOf: other, Boot: hostapi.BootCold}
}

// states of a box whose disk can be copied, and how it gets there.
var copied = map[hostapi.Status]func(t *testing.T, w *boxtest.World, d *daemon){
	hostapi.StatusRunning: func(*testing.T, *boxtest.World, *daemon) {},
	hostapi.StatusHibernated: func(t *testing.T, _ *boxtest.World, d *daemon) {
		t.Helper()
		_, err := d.Hibernate(t.Context(), idA)
		must(t, err)
	},
	hostapi.StatusFailed: func(t *testing.T, w *boxtest.World, d *daemon) {
		t.Helper()
		w.VMM(idA).Die(syscall.SIGKILL)
		await(t, func() bool { b, _ := d.Get(idA); return b.Status == hostapi.StatusFailed })
	},
}

func TestABoxIsBootedFromACopyOfAnothersDisk(t *testing.T) {
	for status, become := range copied {
		t.Run(string(status), func(t *testing.T) {
			seen := &steps{}
			w, d, _ := world(t)
			put(t, d, idA)
			must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("rows"), 0o600))
			become(t, w, d)
			before := wantStatus(t, d, idA, status)
			w.SetStep(seen.note)
			b, err := d.Put(t.Context(), idB, copyOf(idA))
			must(t, err)
			if b.Status != hostapi.StatusRunning || b.Boot != hostapi.BootCold || b.Template != before.Template || w.VMM(idB).Memory() != "booted" {
				t.Errorf("box = %+v, memory %q", b, w.VMM(idB).Memory())
			}
			if raw, err := os.ReadFile(w.Paths.Overlay(idB)); err != nil || string(raw) != "rows" {
				t.Errorf("the disk has %q, %v", raw, err)
			}
			if status == hostapi.StatusRunning {
				seen.inOrder(t, "pause", "resume")
			} else if seen.saw("pause") {
				t.Error("what does not run was paused")
			}
			must(t, os.WriteFile(w.Paths.Overlay(idB), []byte("others"), 0o600))
			if raw, err := os.ReadFile(w.Paths.Overlay(idA)); err != nil || string(raw) != "rows" {
				t.Errorf("the other's disk has %q, %v", raw, err)
			}
			if after := wantStatus(t, d, idA, status); after.Seq != before.Seq || after.Error != before.Error {
				t.Errorf("the other is %+v, was %+v", after, before)
			}
			must(t, d.Delete(t.Context(), idA, 1))
			wantStatus(t, d, idB, hostapi.StatusRunning)
			must(t, d.Delete(t.Context(), idB, 1))
			nothingLeft(t, w, d)
		})
	}
}

// Wherever it fails, nothing of the new box is left, and the other one is as it was.
func TestAFailureAtEachStepOfACopy(t *testing.T) {
	for _, step := range []string{"cgroup", "start", "pause", "create", "boot", "identity"} {
		t.Run(step, func(t *testing.T) {
			w, d, failing := world(t)
			put(t, d, idA)
			failing.At(step)
			if _, err := d.Put(t.Context(), idB, copyOf(idA)); err == nil || !strings.Contains(err.Error(), boxtest.ErrInjected.Error()) {
				t.Errorf("put = %v, want the failure of the step", err)
			}
			failing.At("")
			await(t, func() bool { b, err := d.Get(idA); return err == nil && b.Status == hostapi.StatusRunning })
			await(t, func() bool { return len(d.List()) == 1 && d.ReservedMB() == 600 })
			if _, err := os.Stat(w.Paths.Box(idB)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("files of it are left: %v", err)
			}
			_, err := d.Put(t.Context(), idB, copyOf(idA))
			must(t, err)
		})
	}
}

// A delete that comes while the other one is at work cuts the copy off.
func TestACopyThatWaitsIsDeleted(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.SetStep(blockAt("snapshot", reached, proceed))
	slept := make(chan error, 1)
	go func() { _, err := d.Hibernate(context.WithoutCancel(t.Context()), idA); slept <- err }()
	<-reached
	made := make(chan error, 1)
	go func() { _, err := d.Put(t.Context(), idB, copyOf(idA)); made <- err }()
	await(t, func() bool { _, err := d.Get(idB); return err == nil })
	must(t, d.Delete(t.Context(), idB, 1))
	if err := <-made; err == nil {
		t.Error("it was made")
	}
	close(proceed)
	must(t, <-slept)
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
}

func TestCopiesThatAreRefused(t *testing.T) {
	w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA)
	_, err := d.Pause(t.Context(), idA)
	must(t, err)
	const withVolume = "cccccccccccccccccccccccccc"
	put(t, d, withVolume, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} })
	for name, c := range map[string]struct {
		spec hostapi.BoxSpec
		want error
	}{
		"of none":          {copyOf(strings.Repeat("d", 26)), hosterr.ErrNotFound},
		"of itself":        {copyOf(idB), hosterr.ErrInvalid},
		"of a name":        {copyOf("../x"), hosterr.ErrInvalid},
		"of one paused":    {copyOf(idA), hosterr.ErrIllegalState},
		"with a volume":    {copyOf(withVolume), hosterr.ErrIllegalState},
		"with its memory":  {hostapi.BoxSpec{Generation: 1, DiskOf: idA}, hosterr.ErrInvalid},
		"and of a capture": {hostapi.BoxSpec{Generation: 1, DiskOf: idA, Boot: hostapi.BootCold, Capture: "c"}, hosterr.ErrInvalid},
		"and of a parent":  {hostapi.BoxSpec{Generation: 1, DiskOf: idA, Boot: hostapi.BootCold, WarmFrom: idA}, hosterr.ErrInvalid},
	} {
		if _, err := d.Put(t.Context(), idB, c.spec); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := os.Stat(w.Paths.Box(idB)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files of it are left: %v", err)
	}
}

// Where blocks are not shared, a large disk is not copied while its guest stands still.
func TestALargeDiskIsNotCopiedWhileItsGuestStandsStill(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("rows"), 0o600))
	defer box.SetMaxCopy(1)()
	_, err := d.Put(t.Context(), idB, copyOf(idA))
	if err != nil && (!errors.Is(err, hosterr.ErrIllegalState) || !strings.Contains(err.Error(), "shares no blocks")) {
		t.Errorf("put = %v", err)
	}
	wantStatus(t, d, idA, hostapi.StatusRunning)
}

// A copy that takes too long lets the box that it is of run on, and is nothing when it
// ends after all.
func TestACopyThatTakesTooLong(t *testing.T) {
	proceed, ended := make(chan struct{}), make(chan error, 1)
	slow := true
	w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) {
		deps.CloneDisk = func(src, dst string) error {
			if slow {
				<-proceed
			}
			err := image.CloneOverlay(src, dst)
			if slow {
				ended <- err
			}
			return err
		}
	})
	put(t, d, idA)
	defer box.SetCopyTime(time.Millisecond)()
	if _, err := d.Put(t.Context(), idB, copyOf(idA)); !errors.Is(err, hosterr.ErrDiskStalled) {
		t.Errorf("put = %v", err)
	}
	wantStatus(t, d, idA, hostapi.StatusRunning)
	if state, err := w.VMM(idA).State(t.Context()); err != nil || state != vmm.StateRunning {
		t.Errorf("the source is %s, %v", state, err)
	}
	await(t, func() bool { return len(d.List()) == 1 })
	close(proceed)
	<-ended
	slow = false
	box.SetCopyTime(time.Minute)
	_, err := d.Put(t.Context(), idB, copyOf(idA))
	must(t, err)
	await(t, func() bool {
		left, err := filepath.Glob(w.Paths.Overlay(idB) + ".*")
		return err == nil && len(left) == 0
	})
}

// The time that its pause takes is none of the copy's.
func TestACopyWaitsForASlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, d, _ := world(t, func(cfg *box.Config, deps *box.Deps) {
			cfg.CreateTimeout = 5 * time.Minute
			deps.CloneDisk = func(src, dst string) error {
				<-time.After(time.Second)
				return image.CloneOverlay(src, dst)
			}
		})
		put(t, d, idA)
		failTimes(w, "drain", 1)
		_, err := d.Put(t.Context(), idB, copyOf(idA))
		must(t, err)
		if !runs(t, d, w, idA) {
			t.Error("the source does not run on")
		}
		must(t, d.Delete(t.Context(), idA, 1))
		must(t, d.Delete(t.Context(), idB, 1))
		nothingLeft(t, w, d)
		d.Close()
	})
}
