package box_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/ledger"
)

func leaving(yes bool) hostapi.BoxUpdate { return hostapi.BoxUpdate{Leaving: &yes} }

func of(id string) hostapi.CaptureSpec {
	return hostapi.CaptureSpec{BoxID: id, Generation: 1, Memory: true}
}

// shipped is a box asleep on a host, marked as leaving, and its capture in a store.
func shipped(t *testing.T, change ...func(*box.Config, *box.Deps)) (w *boxtest.World, d *daemon, store string) {
	t.Helper()
	w, d, _ = world(t, change...)
	put(t, d, idA)
	w.VMM(idA).Remember("a thought")
	must(t, os.WriteFile(w.Paths.Overlay(idA), []byte("its disk"), 0o600))
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	_, err = d.Update(t.Context(), idA, leaving(true))
	must(t, err)
	_, err = d.Captures().Make(t.Context(), "mv-1", of(idA))
	must(t, err)
	store = t.TempDir()
	must(t, os.CopyFS(filepath.Join(store, "mv-1"), os.DirFS(filepath.Join(w.Paths.Captures(), "mv-1"))))
	return w, d, store
}

func arrival() hostapi.BoxSpec {
	return hostapi.BoxSpec{Generation: 2, WorkspaceID: "ws", Capture: "mv-1", Manifest: "digest", Asleep: true, Env: map[string]string{"K": "v"}}
}

func TestABoxMovesToAnotherHost(t *testing.T) {
	w, d, store := shipped(t)
	before := w.Told("host-aa")
	w2, d2, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Remote = &boxtest.Remote{Dir: store} })
	for range 2 { // the answer may be lost
		b, err := d2.Put(t.Context(), idA, arrival())
		must(t, err)
		if b.Status != hostapi.StatusHibernated || b.Generation != 2 || w2.VMM(idA) != nil || d2.ReservedMB() != 0 {
			t.Fatalf("arrived: %+v, %d MB reserved", b, d2.ReservedMB())
		}
	}
	must(t, d.Delete(t.Context(), idA, 1))
	must(t, d.Captures().Delete(t.Context(), "mv-1"))
	nothingLeft(t, w, d)
	must(t, d2.Captures().Delete(t.Context(), "mv-1")) // it has its own copy
	b, err := d2.Wake(t.Context(), idA)
	must(t, err)
	raw, err := os.ReadFile(w2.Paths.Overlay(idA))
	must(t, err)
	if b.Status != hostapi.StatusRunning || w2.VMM(idA).Memory() != "a thought" || string(raw) != "its disk" {
		t.Errorf("woken: %s, memory %q, disk %q", b.Status, w2.VMM(idA).Memory(), raw)
	}
	if told := w2.Told("host-aa"); told.MachineID != before.MachineID || !told.ResetTCP || len(told.SSHHostKeys) != 0 || told.Env["K"] != "v" {
		t.Errorf("told %+v, before %+v", told, before)
	}
	// It goes on as any other.
	_, err = d2.Hibernate(t.Context(), idA)
	must(t, err)
	_, err = d2.Wake(t.Context(), idA)
	must(t, err)
	must(t, d2.Delete(t.Context(), idA, 2))
	nothingLeft(t, w2, d2)
}

func TestABoxThatLeavesDoesNotRunHere(t *testing.T) {
	w, d, _ := shipped(t)
	check := func(h *box.Host) {
		t.Helper()
		if _, err := h.Wake(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
			t.Errorf("Wake = %v, want ErrIllegalState", err)
		}
	}
	check(d.Host)
	d.Close() // nor after a restart of the daemon
	must(t, d.Ledger.Close())
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	must(t, err)
	again := box.New(w.Config(), w.Deps(l))
	defer func() { again.Close(); _ = l.Close() }()
	must(t, again.Captures().Recover())
	for _, rec := range l.Boxes() {
		_, err := again.Recover(t.Context(), rec)
		must(t, err)
	}
	again.Open()
	check(again)
	_, err = again.Update(t.Context(), idA, leaving(false))
	must(t, err)
	b, err := again.Wake(t.Context(), idA)
	must(t, err)
	if b.Status != hostapi.StatusRunning || w.VMM(idA).Memory() != "a thought" {
		t.Errorf("after it stayed: %s, %q", b.Status, w.VMM(idA).Memory())
	}
}

func TestWhatDoesNotLeave(t *testing.T) {
	_, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA)
	put(t, d, idB, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} })
	refused := func(what string, err error, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	leave := func(id string) error { _, err := d.Update(t.Context(), id, leaving(true)); return err }
	refused("a running one", leave(idA), hosterr.ErrIllegalState)
	for _, id := range []string{idA, idB} {
		_, err := d.Hibernate(t.Context(), id)
		must(t, err)
	}
	refused("one with a volume", leave(idB), hosterr.ErrIllegalState)
	_, err := d.Captures().Make(t.Context(), "c1", of(idA))
	refused("a capture of one that stays", err, hosterr.ErrNotRunning)
	must(t, leave(idA))
	_, err = d.Captures().Make(t.Context(), "c1", hostapi.CaptureSpec{BoxID: idA, Generation: 2, Memory: true})
	refused("a capture of another generation", err, hosterr.ErrStaleGeneration)
	_, err = d.Captures().Make(t.Context(), "c1", of(idA))
	must(t, err)
	spec := arrival()
	spec.Capture = "c1"
	_, err = d.Put(t.Context(), id(5), spec)
	refused("a double under another id", err, hosterr.ErrInvalid)
	for name, change := range map[string]func(*hostapi.BoxSpec){
		"no capture":   func(s *hostapi.BoxSpec) { s.Capture, s.Template = "", "base" },
		"a cold boot":  func(s *hostapi.BoxSpec) { s.Boot = hostapi.BootCold },
		"with volumes": func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-2", MountPath: "/data"}} },
	} {
		spec := arrival()
		change(&spec)
		_, err := d.Put(t.Context(), id(6), spec)
		refused(name, err, hosterr.ErrInvalid)
	}
}

// An exclusive box that leaves stays asleep whoever asks: it may run elsewhere by then.
func TestAnExclusiveBoxMoves(t *testing.T) {
	_, d, _ := world(t)
	put(t, d, idA, func(s *hostapi.BoxSpec) { s.Exclusive, s.Persistent = true, true })
	_, err := d.Hibernate(t.Context(), idA)
	must(t, err)
	_, err = d.Update(t.Context(), idA, leaving(true))
	must(t, err)
	if _, err := d.Wake(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("wake: %v", err)
	}
	if _, err := d.Restart(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("restart: %v", err)
	}
	_, err = d.Captures().Make(t.Context(), "c1", of(idA))
	must(t, err)
	must(t, d.Delete(t.Context(), idA, 1))
	spec := arrival()
	spec.Capture, spec.Exclusive, spec.Persistent = "c1", true, true
	b, err := d.Put(t.Context(), idA, spec)
	must(t, err)
	if b.Status != hostapi.StatusHibernated {
		t.Fatalf("it arrives %s", b.Status)
	}
	b, err = d.Wake(t.Context(), idA)
	must(t, err)
	if b.Status != hostapi.StatusRunning {
		t.Errorf("it is %s", b.Status)
	}
}

// An ordinary capture has no identity, so that no box is doubled.
func TestACaptureOfARunningBoxDoesNotArrive(t *testing.T) {
	_, d, _ := world(t)
	put(t, d, idA)
	_, err := d.Captures().Make(t.Context(), "c1", of(idA))
	must(t, err)
	spec := arrival()
	spec.Capture = "c1"
	if _, err := d.Put(t.Context(), idB, spec); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("Put = %v, want ErrInvalid", err)
	}
}
