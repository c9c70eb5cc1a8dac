package capture_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/vmm"
)

func from(capture string) func(*hostapi.BoxSpec) {
	return func(s *hostapi.BoxSpec) { s.Template, s.Capture = "", capture }
}

func roomy(c *box.Config, _ *box.Deps) { c.MemoryMB = 8 * 600 }

func TestChildrenOfACaptureHaveItsMemoryAndDisk(t *testing.T) {
	for name, change := range map[string]func(*hostapi.BoxSpec){"restored": func(*hostapi.BoxSpec) {}, "booted": cold} {
		t.Run(name, func(t *testing.T) {
			w, d, _ := world(t, roomy)
			put(t, d, idA, change)
			w.VMM(idA).Remember("then")
			must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("disk then"), 0o600))
			c, err := d.Captures().Make(t.Context(), "snap-1", memory(idA))
			must(t, err)
			if !c.Memory || c.BoxID != idA || c.Template != "base" || c.BuildID != "build1" || c.MemoryBytes == 0 || c.DiskBytes == 0 || c.WorkspaceID != "ws" {
				t.Errorf("capture = %+v", c)
			}
			wantStatus(t, d, idA, hostapi.StatusRunning)
			w.VMM(idA).Remember("now")
			must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("disk now"), 0o600))

			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					if _, err := d.Put(t.Context(), id(i+1), hostapi.BoxSpec{Generation: 1, Capture: "snap-1", Hostname: fmt.Sprint("child-", i)}); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for i := range 4 {
				raw, err := os.ReadFile(w.Paths.Overlay(id(i + 1)))
				must(t, err)
				if got := w.VMM(id(i + 1)).Memory(); got != "then" || string(raw) != "disk then" {
					t.Errorf("child %d: memory %q, disk %q", i, got, raw)
				}
				if told := w.Told(fmt.Sprint("child-", i)); !told.ResetTCP || len(told.SSHHostKeys) == 0 {
					t.Errorf("child %d was told %+v", i, told)
				}
			}
			// The capture may go; its children sleep and wake without it.
			must(t, d.Captures().Delete(t.Context(), "snap-1"))
			must(t, d.Captures().Delete(t.Context(), "snap-1"))
			if _, err := d.Captures().Get("snap-1"); !errors.Is(err, hosterr.ErrNoSnapshot) || len(d.Captures().List()) != 0 {
				t.Errorf("GetCapture = %v, %d captures", err, len(d.Captures().List()))
			}
			_, err = d.Hibernate(t.Context(), id(1))
			must(t, err)
			_, err = d.Wake(t.Context(), id(1))
			must(t, err)
			if got := w.VMM(id(1)).Memory(); got != "then" {
				t.Errorf("memory = %q", got)
			}
			if _, err := d.Put(t.Context(), id(6), hostapi.BoxSpec{Generation: 1, Capture: "snap-1"}); !errors.Is(err, hosterr.ErrNoSnapshot) {
				t.Errorf("Put from a deleted capture = %v", err)
			}
			for _, b := range d.List() {
				must(t, d.Delete(t.Context(), b.ID, 1))
			}
			nothingLeft(t, w, d)
			emptyDir(t, w.Paths.Captures())
		})
	}
}

func TestACaptureOfTheDiskAlone(t *testing.T) {
	w, d, f := world(t)
	put(t, d, idA)
	must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("disk"), 0o600))
	f.At("sync")
	if _, err := d.Captures().Make(t.Context(), "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1}); !errors.Is(err, hosterr.ErrGuest) {
		t.Errorf("Capture of a guest that does not flush = %v", err)
	}
	f.At("snapshot") // not needed
	c, err := d.Captures().Make(t.Context(), "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1})
	must(t, err)
	if c.Memory || c.MemoryBytes != 0 {
		t.Errorf("capture = %+v", c)
	}
	if _, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, Capture: "cap-1"}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("restore of a disk = %v, want ErrInvalid", err)
	}
	b := put(t, d, idB, from("cap-1"), cold)
	raw, err := os.ReadFile(w.Paths.Overlay(idB))
	must(t, err)
	if string(raw) != "disk" || b.Boot != hostapi.BootCold || w.VMM(idB).Memory() != "booted" {
		t.Errorf("disk %q, box %+v", raw, b)
	}
}

func TestCapturesAreIdempotentAndJoined(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.SetStep(blockAt("snapshot", reached, proceed))
	var wg sync.WaitGroup
	got := make([]hostapi.Capture, 4)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = d.Captures().Make(t.Context(), "cap-1", memory(idA)); err != nil {
				t.Error(err)
			}
		})
	}
	<-reached
	if len(d.Captures().List()) != 0 {
		t.Error("half a capture is listed")
	}
	if _, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, Capture: "cap-1"}); !errors.Is(err, hosterr.ErrNoSnapshot) {
		t.Errorf("Put from half a capture = %v", err)
	}
	close(proceed)
	wg.Wait()
	for _, c := range got {
		if c != got[0] {
			t.Errorf("captures differ: %+v, %+v", c, got[0])
		}
	}
}

func TestAFailureAtEachStepOfACaptureLeavesTheBoxRunning(t *testing.T) {
	for _, step := range []string{"pause", "snapshot", "detach"} {
		t.Run(step, func(t *testing.T) {
			w, d, f := world(t)
			put(t, d, idA)
			f.At(step)
			if _, err := d.Captures().Make(t.Context(), "cap-1", memory(idA)); !errors.Is(err, boxtest.ErrInjected) {
				t.Fatalf("Capture = %v, want the injected failure", err)
			}
			f.At("")
			wantStatus(t, d, idA, hostapi.StatusRunning)
			if state, _ := w.VMM(idA).State(t.Context()); state != vmm.StateRunning {
				t.Errorf("VM is %s", state)
			}
			emptyDir(t, w.Paths.Captures())
			_, err := d.Captures().Make(t.Context(), "cap-1", memory(idA))
			must(t, err)
		})
	}
}

// A box that cannot run on says that it is paused.
func TestABoxThatCannotRunOnAfterACaptureIsPaused(t *testing.T) {
	_, d, f := world(t)
	put(t, d, idA)
	f.At("resume")
	if _, err := d.Captures().Make(t.Context(), "cap-1", memory(idA)); err == nil {
		t.Fatal("Capture succeeded")
	}
	f.At("")
	wantStatus(t, d, idA, hostapi.StatusPaused)
	_, err := d.Resume(t.Context(), idA)
	must(t, err)
}

func TestWhatIsNotCaptured(t *testing.T) {
	_, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA)
	put(t, d, idB, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} })
	capture := func(id string, spec hostapi.CaptureSpec) error {
		_, err := d.Captures().Make(t.Context(), id, spec)
		return err
	}
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"no such box", capture("c1", memory(id(5))), hosterr.ErrNotFound},
		{"another generation", capture("c1", hostapi.CaptureSpec{BoxID: idA, Generation: 2, Memory: true}), hosterr.ErrStaleGeneration},
		{"a path", capture("../c1", memory(idA)), hosterr.ErrInvalid},
		{"no id", capture("", memory(idA)), hosterr.ErrInvalid},
		{"a hidden name", capture(".tmp-x", memory(idA)), hosterr.ErrInvalid},
		{"memory with volumes", capture("c1", memory(idB)), hosterr.ErrIllegalState},
		{"another end", capture("c1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, After: "stop"}), hosterr.ErrInvalid},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}
	must(t, capture("c2", hostapi.CaptureSpec{BoxID: idB, Generation: 1})) // its disk alone
	_, err := d.Pause(t.Context(), idA)
	must(t, err)
	if err := capture("c1", memory(idA)); !errors.Is(err, hosterr.ErrNotRunning) {
		t.Errorf("capture of a paused box = %v", err)
	}
}

func TestACaptureNeedsRoom(t *testing.T) {
	_, d, _ := world(t, func(_ *box.Config, deps *box.Deps) {
		deps.DiskFree = func(string) (int64, error) { return 400 << 20, nil }
	})
	put(t, d, idA)
	if _, err := d.Captures().Make(t.Context(), "c1", memory(idA)); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("Capture = %v, want ErrNoDisk", err)
	}
	wantStatus(t, d, idA, hostapi.StatusRunning)
}

// A capture that is deleted while a child is made of it stays until the child
// has what it needs.
func TestADeletedCaptureStaysForTheCreateThatUsesIt(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	_, err := d.Captures().Make(t.Context(), "c1", memory(idA))
	must(t, err)
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.SetStep(blockAt("configure", reached, proceed))
	result := make(chan error, 1)
	go func() {
		_, err := d.Put(t.Context(), idB, hostapi.BoxSpec{Generation: 1, Capture: "c1"})
		result <- err
	}()
	<-reached
	must(t, d.Captures().Delete(t.Context(), "c1"))
	if len(d.Captures().List()) != 0 {
		t.Error("a deleted capture is listed")
	}
	if _, err := d.Captures().Make(t.Context(), "c1", memory(idA)); !errors.Is(err, hosterr.ErrInUse) {
		t.Errorf("Capture under the same name = %v, want ErrInUse", err)
	}
	close(proceed)
	must(t, <-result)
	await(t, func() bool {
		_, err := os.Stat(filepath.Join(w.Paths.Captures(), "c1"))
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestCapturesAreFoundAgain(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	want, err := d.Captures().Make(t.Context(), "c1", memory(idA))
	must(t, err)
	must(t, d.Captures().MarkStored("c1", true))
	_, err = d.Captures().Make(t.Context(), "c2", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true, Transient: true})
	must(t, err)
	for _, half := range []string{".tmp-c3", "c4", ".gone-c5"} {
		must(t, os.Mkdir(filepath.Join(w.Paths.Captures(), half), 0o700))
	}
	d.Close()
	must(t, d.Ledger.Close())
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	again := box.New(w.Config(), w.Deps(l))
	defer func() { again.Close(); _ = l.Close() }()
	must(t, again.Captures().Recover())
	again.Open()
	list := again.Captures().List()
	want.Stored = true
	if len(list) != 2 || !list[0].CreatedAt.Equal(want.CreatedAt) || list[0].Stored != true || list[1].ID != "c2" {
		t.Errorf("captures = %+v", list)
	}
	for _, half := range []string{".tmp-c3", "c4", ".gone-c5"} {
		if _, err := os.Stat(filepath.Join(w.Paths.Captures(), half)); err == nil {
			t.Errorf("%s is still there", half)
		}
	}
	info, dir, release, err := again.Captures().Open("c1")
	must(t, err)
	must(t, again.Captures().Delete(t.Context(), "c1"))
	if _, err := os.Stat(filepath.Join(dir, "overlay.img")); err != nil || info.ID != "c1" {
		t.Errorf("files of an open capture: %v", err)
	}
	release()
	release()
	if _, err := os.Stat(dir); err == nil {
		t.Error("a deleted capture stays after its last use")
	}
}

func TestACaptureIsFetchedOnce(t *testing.T) {
	w, d, _ := world(t)
	put(t, d, idA)
	w.VMM(idA).Remember("far away")
	_, err := d.Captures().Make(t.Context(), "c1", memory(idA))
	must(t, err)
	store := t.TempDir()
	must(t, os.CopyFS(filepath.Join(store, "c1"), os.DirFS(filepath.Join(w.Paths.Captures(), "c1"))))
	must(t, os.CopyFS(filepath.Join(store, "c9"), os.DirFS(filepath.Join(w.Paths.Captures(), "c1"))))

	remote := &boxtest.Remote{Dir: store}
	w2, d2, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Remote = remote })
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			if _, err := d2.Put(t.Context(), id(i), hostapi.BoxSpec{Generation: 1, Capture: "c1", Manifest: "digest of c1"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if remote.Fetches != 1 || remote.Digests[0] != "digest of c1" {
		t.Errorf("%d fetches, want 1, by %q", remote.Fetches, remote.Digests)
	}
	if got := w2.VMM(id(0)).Memory(); got != "far away" {
		t.Errorf("memory = %q", got)
	}
	if c, err := d2.Captures().Get("c1"); err != nil || !c.Stored {
		t.Errorf("capture = %+v, %v", c, err)
	}
	for name, want := range map[string]error{"c9": hosterr.ErrBadSnapshot, "c2": hosterr.ErrNoSnapshot} {
		if _, err := d2.Put(t.Context(), id(3), hostapi.BoxSpec{Generation: 1, Capture: name}); !errors.Is(err, want) {
			t.Errorf("Put from %s = %v, want %v", name, err, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(w2.Paths.Captures(), ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What a VMM leaves in its directory is not followed.
func TestAStateDirectoryIsTakenAwayFromItsVMM(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	for name, spoil := range map[string]func(dir string) error{
		"a link":       func(dir string) error { return os.Symlink(secret, filepath.Join(dir, vmm.FileConfig)) },
		"another name": func(dir string) error { return os.Link(secret, filepath.Join(dir, vmm.FileConfig)) },
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.WriteFile(secret, []byte("secret"), 0o600))
			w, d, _ := world(t)
			put(t, d, idA)
			w.SetStep(func(_ context.Context, step string) error {
				if step != "snapshot-done" {
					return nil
				}
				must(t, os.Remove(filepath.Join(w.Paths.StateTmp(idA), vmm.FileConfig)))
				return spoil(w.Paths.StateTmp(idA))
			})
			if _, err := d.Hibernate(t.Context(), idA); err == nil {
				t.Error("Hibernate succeeded")
			}
			wantStatus(t, d, idA, hostapi.StatusRunning)
			if st, err := os.Stat(secret); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("the file was changed: %v %v", st, err)
			}
		})
	}
}

func emptyDir(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if len(names) > 0 {
		t.Errorf("%s holds %s", dir, strings.Join(names, ", "))
	}
}
