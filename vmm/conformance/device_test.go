package conformance_test

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

var bdf = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// diskWith waits until the guest sees a disk that begins with a text.
func diskWith(g *guest, head string, size uint64) conformance.Disk {
	g.t.Helper()
	var found conformance.Disk
	g.await("disk "+head, func(r conformance.Report) bool {
		for _, d := range r.Disks {
			if d.Head == head && d.Size == size {
				found = d
				return true
			}
		}
		return false
	})
	return found
}

// Disks that are added to a running VM and taken away (vm_add_disk and
// vm_remove_device in vmm/src/lib.rs; add_disk, remove_device and eject_device in
// vmm/src/device_manager.rs).
func TestConformanceHotplug(t *testing.T) {
	need(t)
	h, f, g := restoreGolden(t)
	extra := newFile(t, filepath.Join(f.dir, "extra"), diskSize, "extra disk\n")

	t.Run("refused", func(t *testing.T) {
		add := func(id, path string) error {
			_, err := h.c.AddDisk(h.ctx(), vmm.DiskConfig{ID: id, Path: path, ImageType: vmm.ImageRaw})
			return err
		}
		wantError(t, add("data", extra), 500, "The disk could not be added to the VM", "Failed to validate config", "Identifier data is not unique")
		wantError(t, add("__extra", extra), 500, "Failed to validate config", "Identifier __extra is not invalid")
		wantError(t, add("extra", extra+"-not"), 500, "Error from device manager", "Cannot open disk path")
		// try_lock_image in virtio-devices/src/block.rs: this VM's own write lock.
		wantError(t, add("extra", f.data), 500, "Error from device manager", "Cannot lock images of all block devices", "The file is already locked")
		wantError(t, h.c.RemoveDevice(h.ctx(), "extra"), 500, "Error from device manager", "Failed to find device corresponding to the given identifier: extra")
		if got := len(h.info().Config.Disks); got != 2 {
			t.Errorf("%d disks, want 2", got)
		}
	})

	dev, err := h.c.AddDisk(h.ctx(), vmm.DiskConfig{ID: "extra", Path: extra, ImageType: vmm.ImageRaw, Serial: "serial-7"})
	must(t, err)
	if dev.ID != "extra" || !bdf.MatchString(dev.BDF) {
		t.Errorf("vm.add-disk answers %+v", dev)
	}
	if d := diskWith(g, "extra disk", diskSize); d.ReadOnly || d.Serial != "serial-7" {
		t.Errorf("the guest sees %+v", d)
	}
	if disks := h.info().Config.Disks; len(disks) != 3 || disks[2].ID != "extra" {
		t.Errorf("vm.info shows disks %+v", disks)
	}

	t.Run("without an id", func(t *testing.T) {
		// next_device_name with DISK_DEVICE_NAME_PREFIX.
		image := newFile(t, filepath.Join(f.dir, "unnamed"), diskSize, "unnamed disk\n")
		dev, err := h.c.AddDisk(h.ctx(), vmm.DiskConfig{Path: image, ImageType: vmm.ImageRaw, ReadOnly: true})
		must(t, err)
		if !strings.HasPrefix(dev.ID, "_disk") {
			t.Errorf("the disk is called %q", dev.ID)
		}
		if d := diskWith(g, "unnamed disk", diskSize); !d.ReadOnly {
			t.Errorf("the guest sees %+v", d)
		}
	})

	t.Run("restored", func(t *testing.T) {
		must(t, h.c.Pause(h.ctx()))
		saved := mkdir(t, f.dir, "saved")
		must(t, snapshotTo(h, saved))
		must(t, h.c.Resume(h.ctx()))
		fc := newFiles(t)
		dir := editSnapshot(t, saved, fc, func(e *vmm.ConfigEdit) {
			must(t, e.SetDiskPath("extra", newFile(t, filepath.Join(fc.dir, "extra"), diskSize, "child's extra disk\n")))
		})
		child := restore(t, startHost(t), fc, dir)
		diskWith(child, "child's extra disk", diskSize)
	})

	must(t, h.c.RemoveDevice(h.ctx(), "extra"))
	g.await("the disk gone", func(r conformance.Report) bool {
		for _, d := range r.Disks {
			if d.Head == "extra disk" {
				return false
			}
		}
		return true
	})
	wantError(t, h.c.RemoveDevice(h.ctx(), "extra"), 500, "Error from device manager", "Failed to find device corresponding to the given identifier: extra")
	for _, d := range h.info().Config.Disks {
		if d.ID == "extra" {
			t.Error("vm.info shows the disk that was removed")
		}
	}
	awaitEvent(t, h, "vm", "device-removed", func(p map[string]string) bool { return p["id"] == "extra" && p["bdf"] == dev.BDF })
	// Its image is free again, and the name too.
	_, err = h.c.AddDisk(h.ctx(), vmm.DiskConfig{ID: "extra", Path: extra, ImageType: vmm.ImageRaw})
	must(t, err)
	diskWith(g, "extra disk", diskSize)
}

// Locks on images: one writer, or any number of readers (try_lock_disks in
// vmm/src/device_manager.rs, called by Vm::boot and Vm::restore; the lock type in
// try_lock_image in virtio-devices/src/block.rs).
func TestConformanceDiskLocks(t *testing.T) {
	need(t)
	g := theGolden(t)
	_, f, guest := restoreGolden(t)
	guest.up()

	t.Run("a second writer", func(t *testing.T) {
		fc, dir := child(t, g, func(e *vmm.ConfigEdit, _ files) { must(t, e.SetDiskPath("data", f.data)) })
		h := startHost(t)
		err := h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir)})
		wantError(t, err, http.StatusInternalServerError, "The VM could not be restored", "Error locking disk images: Another instance likely holds a lock", "Cannot lock images of all block devices", "The file is already locked")
		h.wantNoVM()

		cfg := fc.config()
		cfg.Memory.Zones[0].File = newFile(t, fc.ram, ramSize, "")
		cfg.Disks[1].Path = f.data
		must(t, h.c.Create(h.ctx(), cfg))
		wantError(t, h.c.Boot(h.ctx()), http.StatusInternalServerError, "The VM could not boot", "Error locking disk images: Another instance likely holds a lock")
	})
	t.Run("a second reader", func(t *testing.T) {
		fc, dir := child(t, g, func(e *vmm.ConfigEdit, _ files) { must(t, e.SetDiskPath("orders", f.orders)) })
		fc.orders = f.orders
		restore(t, startHost(t), fc, dir).tag("both")
		guest.await("the same order", func(r conformance.Report) bool { return r.Tag == "both" })
	})
	t.Run("a writer of what is read", func(t *testing.T) {
		_, dir := child(t, g, func(e *vmm.ConfigEdit, _ files) { must(t, e.SetDiskPath("data", f.orders)) })
		h := startHost(t)
		err := h.c.Restore(h.ctx(), vmm.RestoreConfig{SourceURL: vmm.FileURL(dir)})
		wantError(t, err, http.StatusInternalServerError, "Error locking disk images: Another instance likely holds a lock")
	})
}
