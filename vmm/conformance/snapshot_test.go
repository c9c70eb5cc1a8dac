package conformance_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

// Snapshots of RAM that is a shared file: the file is the RAM, and is left out
// (memory_range_table in vmm/src/memory_manager.rs, send in vmm/src/vm.rs).
func TestConformanceSnapshot(t *testing.T) {
	need(t)
	g := theGolden(t)
	// RAM of its own, in a copy of the captured file.
	f, dir := child(t, g, func(e *vmm.ConfigEdit, f files) {
		copySparse(t, f.ram, g.ram)
		must(t, e.SetZone(zoneID, f.ram, true))
	})
	h := startHost(t)
	guest := restore(t, h, f, dir)
	guest.tag("one")
	must(t, h.c.Pause(h.ctx()))

	t.Run("destinations", func(t *testing.T) {
		// url_to_path in vmm/src/migration/mod.rs.
		wantError(t, snapshotTo(h, filepath.Join(f.dir, "nowhere")), 500, "Cannot send VM snapshot", "Destination is not a directory")
		wantError(t, snapshotTo(h, f.data), 500, "Cannot send VM snapshot", "Destination is not a directory")
		err := h.c.Snapshot(h.ctx(), vmm.SnapshotConfig{DestinationURL: f.dir})
		wantError(t, err, 500, "Cannot send VM snapshot", "Could not extract path from URL")
		// create_new.
		taken := mkdir(t, f.dir, "taken")
		newFile(t, filepath.Join(taken, "config.json"), 0, "")
		wantError(t, snapshotTo(h, taken), 500, "Cannot send VM snapshot", "Error creating VM config snapshot file", "File exists")
		h.wantState(vmm.StatePaused)
	})

	first, second := mkdir(t, f.dir, "first"), mkdir(t, f.dir, "second")
	must(t, snapshotTo(h, first))
	h.wantState(vmm.StatePaused)
	// A VM may be saved more than once a pause.
	must(t, snapshotTo(h, second))
	for _, dir := range []string{first, second} {
		wantNames(t, dir, "config.json", "state.json")
	}
	wantSavedConfig(t, h, first)
	copySparse(t, f.ram+"-saved", f.ram)
	before := guest.up()
	must(t, h.c.Resume(h.ctx()))
	guest.after(before)

	// What was saved first can be restored beside the VM that went on, from the
	// RAM as it was.
	guest.tag("two")
	f2 := newFiles(t)
	dir2 := editSnapshot(t, second, f2, func(e *vmm.ConfigEdit) {
		must(t, e.SetZone(zoneID, f.ram+"-saved", false))
	})
	h2 := startHost(t)
	restore(t, h2, f2, dir2).await("the saved tag", func(r conformance.Report) bool {
		return r.Boot == before.Boot && r.Tag == "one" && r.Sum == checksum("one")
	})
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if len(got) != len(want) {
		t.Errorf("%s holds %v, want %v", dir, got, want)
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s holds %v, want %v", dir, got, want)
		}
	}
}

// wantSavedConfig checks that config.json is what vm.info shows.
func wantSavedConfig(t *testing.T, h *host, dir string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	must(t, err)
	var saved any
	must(t, json.Unmarshal(raw, &saved))
	var info struct {
		Config any `json:"config"`
	}
	must(t, json.Unmarshal(h.want("GET", "/api/v1/vm.info", nil, http.StatusOK).body, &info))
	a, err := json.Marshal(saved)
	must(t, err)
	b, err := json.Marshal(info.Config)
	must(t, err)
	if string(a) != string(b) {
		t.Errorf("config.json is\n%s\nand vm.info shows\n%s", a, b)
	}
}

// A restore reads config.json as it is then: another file for the RAM, other
// disks, another console (vm_restore in vmm/src/lib.rs). The VM is Paused.
func TestConformanceRestoreEdited(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, nil)
	newFile(t, f.data, diskSize, "another disk\n")
	newFile(t, f.serial, 0, "of an earlier VM\n")
	h := startHost(t)
	must(t, h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir)}))
	info := h.info()
	if info.State != vmm.StatePaused {
		t.Errorf("a restored VM is %s, want Paused", info.State)
	}
	zones := info.Config.Memory.Zones
	if len(zones) != 1 || zones[0].File != g.ram || zones[0].Shared || info.Config.Disks[1].Path != f.data {
		t.Errorf("restored with zones %+v, disks %+v", zones, info.Config.Disks)
	}
	// File::create in pre_create_console_devices.
	if st, err := os.Stat(f.serial); err != nil || st.Size() != 0 {
		t.Errorf("the console's file was not emptied: %v %v", st, err)
	}
	wantError(t, h.c.Pause(h.ctx()), 500, "InvalidStateTransition(Paused, Paused)")
	wantError(t, h.c.Boot(h.ctx()), 500, "VM is already created")
	wantError(t, h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir)}), 500, "VM is already created")
	if _, ok := f.guest(t).last(); ok {
		t.Error("a guest that is paused reports")
	}
	must(t, h.c.Resume(h.ctx()))
	h.wantState(vmm.StateRunning)
	f.guest(t).await("the other disk", func(r conformance.Report) bool {
		return r.Boot == g.report.Boot && r.Tick > g.report.Tick && r.Disks[1].Head == "another disk"
	})
	// What the guest writes goes to the other disk.
	f.guest(t).order("write vdb written-by-the-child")
	eventually(t, "the guest writes", func() bool {
		raw, err := os.ReadFile(f.data)
		must(t, err)
		return string(raw[conformance.WriteOffset:conformance.WriteOffset+20]) == "written-by-the-child"
	})
}

// resume: true in a restore (vm_restore in vmm/src/lib.rs, RestoreConfig in
// vmm/src/config.rs), on RAM that is shared with a file of the VM's own.
func TestConformanceRestoreAndResume(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, func(e *vmm.ConfigEdit, f files) {
		copySparse(t, f.ram, g.ram)
		must(t, e.SetZone(zoneID, f.ram, true))
	})
	before := sum(t, f.ram)
	h := startHost(t)
	must(t, h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir), Resume: true, MemoryRestoreMode: vmm.MemoryRestoreCopy}))
	h.wantState(vmm.StateRunning)
	f.guest(t).tag("shared")
	if sum(t, f.ram) == before {
		t.Error("what the guest wrote did not reach the shared file")
	}
}

// Restores that fail leave no VM, and a VMM that can restore another (vm_delete
// in the error path of vm_restore in vmm/src/lib.rs).
func TestConformanceRestoreRefused(t *testing.T) {
	need(t)
	g := theGolden(t)
	cases := []struct {
		name  string
		spoil func(t *testing.T, f files, dir string)
		cfg   vmm.RestoreConfig
		texts []string
	}{
		{"no directory", func(t *testing.T, _ files, dir string) { must(t, os.RemoveAll(dir)) }, vmm.RestoreConfig{}, []string{"Cannot restore VM", "Destination is not a directory"}},
		// recv_vm_config and recv_vm_state in vmm/src/migration/mod.rs.
		{"no config", func(t *testing.T, _ files, dir string) { must(t, os.Remove(filepath.Join(dir, "config.json"))) }, vmm.RestoreConfig{}, []string{"Cannot restore VM", "Error opening VM config snapshot file"}},
		{"a config that is no JSON", func(t *testing.T, _ files, dir string) { spoil(t, dir, "config.json") }, vmm.RestoreConfig{}, []string{"Cannot restore VM", "Error deserialising VM config snapshot"}},
		{"no state", func(t *testing.T, _ files, dir string) { must(t, os.Remove(filepath.Join(dir, "state.json"))) }, vmm.RestoreConfig{}, []string{"Cannot restore VM", "Error opening VM state snapshot file"}},
		{"a state that is no JSON", func(t *testing.T, _ files, dir string) { spoil(t, dir, "state.json") }, vmm.RestoreConfig{}, []string{"Cannot restore VM", "Error deserialising VM state snapshot"}},
		// A state that another engine made.
		{"a state of something else", func(t *testing.T, _ files, dir string) {
			must(t, os.Remove(filepath.Join(dir, "state.json")))
			must(t, os.WriteFile(filepath.Join(dir, "state.json"), []byte(`{"something":"else"}`), 0o600))
		}, vmm.RestoreConfig{}, []string{"Cannot restore VM"}},
		// RestoreConfig::validate in vmm/src/config.rs.
		{"prefault and on demand", nil, vmm.RestoreConfig{Prefault: true, MemoryRestoreMode: vmm.MemoryRestoreOnDemand}, nil},
		{"no image", func(t *testing.T, f files, _ string) { must(t, os.Remove(f.data)) }, vmm.RestoreConfig{}, []string{"Error from device manager", "Cannot open disk path"}},
		// Vm::new in vmm/src/vm.rs.
		{"no initramfs", func(t *testing.T, f files, dir string) {
			editConfig(t, dir, func(e *vmm.ConfigEdit) error {
				return e.SetPayload(shared.kernel, filepath.Join(f.dir, "no-initramfs"))
			})
		}, vmm.RestoreConfig{}, []string{"Cannot open initramfs file", "No such file or directory"}},
	}
	h := startHost(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, dir := child(t, g, nil)
			if c.spoil != nil {
				c.spoil(t, f, dir)
			}
			c.cfg.SourceURL = vmm.FileURL(dir)
			wantError(t, h.c.Restore(h.ctx(), c.cfg), http.StatusInternalServerError, append([]string{"Error from API", "The VM could not be restored"}, c.texts...)...)
			h.wantNoVM()
		})
	}
	wantError(t, h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: g.snapshot}), 500, "Could not extract path from URL")
	f, dir := child(t, g, nil)
	restore(t, h, f, dir).await("a restore after all", func(r conformance.Report) bool { return r.Boot == g.report.Boot })
}

// editConfig edits the config.json of a snapshot directory again.
func editConfig(t *testing.T, dir string, edit func(*vmm.ConfigEdit) error) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	e, err := vmm.OpenConfig(path)
	must(t, err)
	must(t, edit(e))
	must(t, writeConfig(path, e))
}

// A restore opens the initramfs, whatever is in it, and not the kernel: it loads
// neither (Vm::new in vmm/src/vm.rs).
func TestConformanceRestorePayload(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, func(e *vmm.ConfigEdit, f files) {
		initramfs := newFile(t, filepath.Join(f.dir, "initramfs"), 0, "")
		must(t, e.SetPayload(filepath.Join(f.dir, "no-kernel"), initramfs))
	})
	restore(t, startHost(t), f, dir).await("its memory", func(r conformance.Report) bool { return r.Boot == g.report.Boot })
}

// spoil replaces a file, which may be linked to the shared snapshot's.
func spoil(t *testing.T, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.Remove(path))
	must(t, os.WriteFile(path, []byte("no JSON"), 0o600))
}

// Two VMs from one snapshot at the same time, each with its RAM mapped privately
// (MAP_PRIVATE in create_ram_region_raw in vmm/src/memory_manager.rs): they
// diverge, and the captured files stay as they are.
func TestConformanceTwoFromOne(t *testing.T) {
	need(t)
	g := theGolden(t)
	captured := []string{g.ram, filepath.Join(g.snapshot, "state.json"), filepath.Join(g.snapshot, "config.json")}
	var before []string
	for _, path := range captured {
		before = append(before, sum(t, path))
	}
	_, _, a := restoreGolden(t)
	_, _, b := restoreGolden(t)
	ra, rb := a.tag("alpha"), b.tag("beta")
	if ra.Boot != g.report.Boot || rb.Boot != g.report.Boot {
		t.Errorf("the children booted as %s and %s, their parent as %s", ra.Boot, rb.Boot, g.report.Boot)
	}
	if ra = a.after(ra); ra.Sum != checksum("alpha") {
		t.Errorf("the first child's memory changed: %+v", ra)
	}
	for i, path := range captured {
		if sum(t, path) != before[i] {
			t.Errorf("%s was changed", path)
		}
	}
}

// A VM whose RAM is private is saved with all of it in memory-ranges, and what
// was saved is restored like any other, by several at once, and again saved.
func TestConformancePrivateSnapshot(t *testing.T) {
	need(t)
	g := theGolden(t)
	ramBefore := sum(t, g.ram)
	h, f, guest := restoreGolden(t)
	guest.tag("parent")
	must(t, h.c.Pause(h.ctx()))
	saved := mkdir(t, f.dir, "saved")
	must(t, snapshotTo(h, saved))
	wantNames(t, saved, "config.json", "memory-ranges", "state.json")
	memory := filepath.Join(saved, "memory-ranges")
	if st, err := os.Stat(memory); err != nil || st.Size() != ramSize {
		t.Errorf("memory-ranges: %v %v, want %d bytes", st, err, ramSize)
	}
	before := sum(t, memory)
	again := mkdir(t, f.dir, "again")
	must(t, snapshotTo(h, again))
	if sum(t, filepath.Join(again, "memory-ranges")) != before {
		t.Error("two snapshots of one pause differ in their memory")
	}
	must(t, h.c.Resume(h.ctx()))
	guest.tag("parent-went-on")

	var hosts []*host
	for _, tag := range []string{"one", "two"} {
		fc := newFiles(t)
		dir := editSnapshot(t, saved, fc, func(*vmm.ConfigEdit) {})
		hc := startHost(t)
		hosts = append(hosts, hc)
		child := restore(t, hc, fc, dir)
		child.await("the parent's tag", func(r conformance.Report) bool {
			return r.Boot == g.report.Boot && r.Tag == "parent" && r.Sum == checksum("parent")
		})
		child.tag(tag)
		// A child of a child.
		must(t, hc.c.Pause(hc.ctx()))
		deeper := mkdir(t, fc.dir, "saved")
		must(t, snapshotTo(hc, deeper))
		fg := newFiles(t)
		grandchild := restore(t, startHost(t), fg, editSnapshot(t, deeper, fg, func(*vmm.ConfigEdit) {}))
		grandchild.await("the child's tag", func(r conformance.Report) bool {
			return r.Boot == g.report.Boot && r.Tag == tag && r.Sum == checksum(tag)
		})
	}
	if sum(t, memory) != before || sum(t, g.ram) != ramBefore {
		t.Error("the captured memory was changed")
	}
	_ = hosts
}

// A write beyond the size that files may have fails, and the VM goes on.
func TestConformanceFilesAreBounded(t *testing.T) {
	need(t)
	g := theGolden(t)
	f, dir := child(t, g, nil)
	h := launchHost(t, vmm.Launch{Engine: shared.engine, Dir: filepath.Join(shortDir(t), "r"), MaxFile: ramSize / 2})
	guest := restore(t, h, f, dir)
	before := guest.up()
	must(t, h.c.Pause(h.ctx()))
	var refused *vmm.Error
	if err := snapshotTo(h, mkdir(t, f.dir, "saved")); !errors.As(err, &refused) {
		t.Errorf("a snapshot of %d bytes where files may have %d: %v", ramSize, ramSize/2, err)
	}
	h.wantState(vmm.StatePaused)
	must(t, h.c.Resume(h.ctx()))
	guest.after(before)
}

// memory_restore_mode OnDemand asks the kernel for the faults of the RAM, which it
// has for anonymous memory and for a tmpfs alone (restore_by_uffd in
// vmm/src/memory_manager.rs). RAM in a file is refused: here it is on another
// file system, for on a tmpfs the guest would start, and die of a fault.
func TestConformanceRestoreOnDemand(t *testing.T) {
	need(t)
	g := theGolden(t)
	h, f, guest := restoreGolden(t)
	guest.tag("lazy")
	must(t, h.c.Pause(h.ctx()))
	saved := mkdir(t, f.dir, "saved")
	must(t, snapshotTo(h, saved))
	h.kill()

	fc := newFiles(t)
	dir := editSnapshot(t, saved, fc, func(*vmm.ConfigEdit) {})
	hc := startHost(t)
	err := hc.c.Restore(hc.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir), MemoryRestoreMode: vmm.MemoryRestoreOnDemand})
	wantError(t, err, http.StatusInternalServerError, "On-demand restore")
	hc.wantNoVM()
	restore(t, hc, fc, dir).await("the tag", func(r conformance.Report) bool {
		return r.Boot == g.report.Boot && r.Tag == "lazy" && r.Sum == checksum("lazy")
	})
}
