package conformance_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cloud/berth/vmm"
	"github.com/berth-cloud/berth/vmm/conformance"
)

// A VM that cannot start: Vm::new and Vm::boot in vmm/src/vm.rs, in whose order
// memory comes before the validation of the rest, that before the devices, those
// before their locks, and the kernel last.
func TestConformanceBootRefused(t *testing.T) {
	need(t)
	type edit = func(*testing.T, *vmm.VMConfig, files)
	zone := func(f func(*vmm.MemoryZone)) edit {
		return func(_ *testing.T, c *vmm.VMConfig, _ files) { f(&c.Memory.Zones[0]) }
	}
	disk := func(f func(*vmm.DiskConfig)) edit {
		return func(_ *testing.T, c *vmm.VMConfig, _ files) { f(&c.Disks[1]) }
	}
	cases := []struct {
		name  string
		edit  edit
		texts []string
	}{
		// MemoryManager::new, validate_memory_config, memory_zone_get_align_size and
		// create_ram_region_raw in vmm/src/memory_manager.rs.
		{"no memory", func(_ *testing.T, c *vmm.VMConfig, _ files) { c.Memory.Zones = nil }, []string{"Memory manager error", "No memory zones found"}},
		{"both a size and zones", func(_ *testing.T, c *vmm.VMConfig, _ files) { c.Memory.Size = ramSize }, []string{"Memory manager error", "Memory configuration is not valid"}},
		{"a zone of no whole pages", zone(func(z *vmm.MemoryZone) { z.Size -= 512 }), []string{"Memory manager error", "Memory size is misaligned with default page size or its hugepage size"}},
		{"no file of the zone", zone(func(z *vmm.MemoryZone) { z.File += "-not" }), []string{"Memory manager error", "Failed to stat filesystem", "No such file or directory"}},
		{"a directory as the zone's file", zone(func(z *vmm.MemoryZone) { z.File = filepath.Dir(z.File) }), []string{"Memory manager error", "Using a directory as a backing file for memory is not supported"}},

		// VmConfig::validate in vmm/src/config.rs.
		{"no payload", func(_ *testing.T, c *vmm.VMConfig, _ files) { c.Payload = nil }, []string{"Failed to validate config", "Payload configuration is not bootable"}},
		{"fewer CPUs at most than at boot", func(_ *testing.T, c *vmm.VMConfig, _ files) { c.CPUs.BootVCPUs = 2 }, []string{"Failed to validate config", "Max CPUs (1) lower than boot CPUs (2)"}},
		{"an id twice", disk(func(d *vmm.DiskConfig) { d.ID = "orders" }), []string{"Failed to validate config", "Identifier orders is not unique"}},
		{"the id of a zone for a disk", disk(func(d *vmm.DiskConfig) { d.ID = zoneID }), []string{"Failed to validate config", "Identifier ram is not unique"}},
		{"a reserved id", disk(func(d *vmm.DiskConfig) { d.ID = "__data" }), []string{"Failed to validate config", "Identifier __data is not invalid"}},
		{"more queues than CPUs", disk(func(d *vmm.DiskConfig) { d.NumQueues = 2 }), []string{"Failed to validate config", "Queue count (2) must not exceed boot vCPUs (1)"}},
		{"an odd queue size", disk(func(d *vmm.DiskConfig) { d.QueueSize = 100 }), []string{"Failed to validate config", "Queue size must be a power of 2"}},
		{"a queue too small", disk(func(d *vmm.DiskConfig) { d.QueueSize = 2 }), []string{"Failed to validate config", "Block queue size must be greater than 2: 2"}},
		{"a serial number too long", disk(func(d *vmm.DiskConfig) { d.Serial = "123456789012345678901" }), []string{"Failed to validate config", "Block device serial length (21) exceeds maximum allowed length (20)"}},
		{"a PCI segment that is not there", disk(func(d *vmm.DiskConfig) { d.PCISegment = 1 }), []string{"Failed to validate config", "Invalid PCI segment id: 1"}},
		{"an MTU too small", func(_ *testing.T, c *vmm.VMConfig, _ files) {
			c.Net = []vmm.NetConfig{{ID: "net", Tap: "no-such-tap", MTU: 1000}}
		}, []string{"Failed to validate config"}},

		// make_virtio_block_device in vmm/src/device_manager.rs, open_disk in
		// block/src/factory.rs.
		{"no image", disk(func(d *vmm.DiskConfig) { d.Path += "-not" }), []string{"Error from device manager", "Cannot open disk path", "No such file or directory"}},
		{"an image that is none", func(t *testing.T, _ *vmm.VMConfig, f files) {
			must(t, os.WriteFile(f.data, []byte("QFI\xfb"), 0o600))
			must(t, os.Truncate(f.data, diskSize))
		}, []string{"Error from device manager"}},
		{"an image with a VHD's footer", func(t *testing.T, _ *vmm.VMConfig, f files) {
			raw := make([]byte, diskSize)
			copy(raw[diskSize-512:], vhdFooter())
			must(t, os.WriteFile(f.data, raw, 0o600))
		}, []string{"Error from device manager", "Disk image type does not match expected type: specified = raw, detected = vhd"}},

		// A file that is too short is mapped all the same, and has no page for the
		// initramfs, which goes to the end of the RAM (load_initramfs in vmm/src/vm.rs).
		{"a zone's file that is too short", func(t *testing.T, _ *vmm.VMConfig, f files) { must(t, os.Truncate(f.ram, ramSize/2)) }, nil},

		// Vm::new in vmm/src/vm.rs, then load_payload.
		{"no initramfs", func(_ *testing.T, c *vmm.VMConfig, _ files) { c.Payload.Initramfs += "-not" }, []string{"Cannot open initramfs file", "No such file or directory"}},
		{"neither kernel nor initramfs", func(_ *testing.T, c *vmm.VMConfig, _ files) {
			c.Payload.Kernel += "-not"
			c.Payload.Initramfs += "-not"
		}, []string{"Cannot open initramfs file", "No such file or directory"}},
		{"no kernel", func(_ *testing.T, c *vmm.VMConfig, _ files) { c.Payload.Kernel += "-not" }, []string{"Cannot open kernel file", "No such file or directory"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := startHost(t)
			f := newFiles(t)
			cfg := f.config()
			c.edit(t, &cfg, f)
			// vm_create stores it all the same.
			must(t, h.c.Create(h.ctx(), cfg))
			wantError(t, h.c.Boot(h.ctx()), http.StatusInternalServerError, append([]string{"Error from API", "The VM could not boot"}, c.texts...)...)
			h.wantState(vmm.StateCreated)
		})
	}
}

// vhdFooter is the beginning of the last sector of a fixed VHD image, as far as
// is_fixed_vhd in block/src/formats/vhd/footer.rs looks at it.
func vhdFooter() []byte {
	foot := make([]byte, 64)
	copy(foot, "conectix")
	copy(foot[12:], []byte{0, 1, 0, 0}) // version of the format
	copy(foot[16:], bytes.Repeat([]byte{0xff}, 8))
	foot[63] = 2 // fixed
	return foot
}

// The moves of a VM that was booted (VmState::valid_transition in vmm/src/vm.rs,
// and the methods of RequestHandler for Vmm in vmm/src/lib.rs).
func TestConformanceLifecycle(t *testing.T) {
	need(t)
	h := startHost(t)
	f := newFiles(t)
	cfg := f.config()
	g, first := boot(t, h, f, cfg)
	if first.CPUs != 1 || len(first.Disks) != 2 {
		t.Fatalf("the guest sees %d CPUs and disks %+v", first.CPUs, first.Disks)
	}
	if d := first.Disks; !d[0].ReadOnly || d[1].ReadOnly || d[1].Size != diskSize || d[1].Head != "data disk" {
		t.Errorf("the guest sees disks %+v", d)
	}
	info := h.info()
	if info.State != vmm.StateRunning || info.MemoryActualSize != ramSize {
		t.Errorf("state %s, %d bytes", info.State, info.MemoryActualSize)
	}
	if info.DeviceTree["data"].ID != "data" || info.DeviceTree[info.DeviceTree["data"].Parent].PCIBDF == "" {
		t.Errorf("device tree %+v", info.DeviceTree)
	}

	t.Run("running", func(t *testing.T) {
		ctx := h.ctx()
		wantError(t, h.c.Create(ctx, cfg), 500, "VM is already created")
		wantError(t, h.c.Boot(ctx), 500, "The VM could not boot", "VM is already created")
		wantError(t, h.c.Restore(ctx, vmm.RestoreConfig{SourceURL: vmm.FileURL(f.dir)}), 500, "VM is already created")
		wantError(t, h.c.Resume(ctx), 500, "Cannot resume VM", "InvalidStateTransition(Running, Running)")
		// Vm::snapshot.
		wantError(t, snapshotTo(h, f.dir), 500, "Cannot snapshot VM", "Trying to snapshot while VM is running")
		h.wantState(vmm.StateRunning)
	})
	t.Run("paused", func(t *testing.T) {
		must(t, h.c.Pause(h.ctx()))
		h.wantState(vmm.StatePaused)
		still := g.up()
		wantError(t, h.c.Pause(h.ctx()), 500, "Cannot pause VM", "InvalidStateTransition(Paused, Paused)")
		wantError(t, h.c.Boot(h.ctx()), 500, "VM is already created")
		if now := g.up(); now.Tick != still.Tick {
			t.Errorf("the paused guest went from tick %d to %d", still.Tick, now.Tick)
		}
		must(t, h.c.Resume(h.ctx()))
		h.wantState(vmm.StateRunning)
		g.after(still)
	})
	t.Run("reboot", func(t *testing.T) {
		must(t, h.c.Reboot(h.ctx()))
		second := g.await("another boot", func(r conformance.Report) bool { return r.Boot != first.Boot })
		h.wantState(vmm.StateRunning)
		first = second
	})
	t.Run("shut down", func(t *testing.T) {
		must(t, h.c.Pause(h.ctx())) // Paused → Shutdown is a legal move
		must(t, h.c.Shutdown(h.ctx()))
		h.wantState(vmm.StateCreated)
		wantError(t, h.c.Shutdown(h.ctx()), 500, "VM is not running")
		if h.info().DeviceTree != nil {
			t.Error("a VM that is shut down has a device tree")
		}
		must(t, h.c.Boot(h.ctx()))
		g.await("another boot", func(r conformance.Report) bool { return r.Boot != first.Boot })
	})
	// vm_delete shuts a running VM down.
	must(t, h.c.Delete(h.ctx()))
	h.wantNoVM()
}

// Two vCPUs: what one changes in code, as kernels do, the other runs. And RAM that is
// neither a zone nor a file: its snapshot holds all of it (memory_range_table in
// vmm/src/memory_manager.rs).
func TestConformanceTwoCPUsAndAnonymousMemory(t *testing.T) {
	need(t)
	h := startHost(t)
	f := newFiles(t)
	cfg := f.config()
	cfg.CPUs = vmm.CPUsConfig{BootVCPUs: 2, MaxVCPUs: 2}
	cfg.Memory = vmm.MemoryConfig{Size: ramSize}
	g, first := boot(t, h, f, cfg)
	if first.CPUs != 2 {
		t.Errorf("the guest sees %d CPUs, want 2", first.CPUs)
	}
	g.order("patch")
	r := g.await("the end of the changes", func(r conformance.Report) bool { return r.Patched })
	if r.Stale > 0 || len(r.Notes) > 0 {
		t.Errorf("after %d changes of code a CPU went on with the code of before; notes %q", r.Stale, r.Notes)
	}
	g.tag("anonymous")
	must(t, h.c.Pause(h.ctx()))
	snapshot := mkdir(t, f.dir, "saved")
	must(t, snapshotTo(h, snapshot))
	st, err := os.Stat(filepath.Join(snapshot, "memory-ranges"))
	must(t, err)
	if st.Size() != ramSize {
		t.Errorf("memory-ranges has %d bytes, want %d", st.Size(), ramSize)
	}
	must(t, h.c.Delete(h.ctx()))

	// The same VMM takes it back.
	must(t, os.Remove(f.serial))
	g = restore(t, h, f, snapshot)
	g.await("the tag", func(r conformance.Report) bool {
		return r.Boot == first.Boot && r.Tag == "anonymous" && r.Sum == checksum("anonymous")
	})
}

// A processor has the flags that its instructions leave, and no others: an
// interrupt at any time saves them.
func TestConformanceFlags(t *testing.T) {
	need(t)
	_, _, g := restoreGolden(t)
	const (
		always     = 1<<1 | 1<<9 // reserved, and interrupts
		arithmetic = 1 | 1<<2 | 1<<4 | 1<<6 | 1<<7 | 1<<11
	)
	if flags := g.up().Flags; flags&^arithmetic != always && flags != 0 {
		t.Errorf("the flags after a CMPXCHG16B are %#x", flags)
	}
}
