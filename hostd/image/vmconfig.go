package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berth-cloud/berth/vmm"
)

// The same in every VM: what the slot provides, and the ids by which a stored
// configuration is edited.
const (
	tapName   = "tap0"
	guestMAC  = "52:54:00:be:47:02"
	zoneID    = "ram"
	overlayID = "overlay"
	netID     = "net0"
	rngSource = "/dev/urandom"
)

func layerID(i int) string { return "layer" + strconv.Itoa(i) }

// cmdline is the kernel's command line. It switches off what only protects the guest
// from itself or wakes it while it is idle, because a guest belongs to one tenant
// and its processor may be emulated.
//
// The security modules that remain are those that programs use by themselves.
// reboot=t ends the VM when the guest ends, and panic=1 one second after its kernel
// panicked, so that its last output is kept (vmm.Process.LastConsole). The 8042 and
// the other serial ports are not probed.
const cmdline = "console=ttyS0 quiet loglevel=4 reboot=t panic=1 mitigations=off init_on_alloc=0 " +
	"hardened_usercopy=off psi=0 nosoftlockup noautogroup audit=0 lsm=landlock,yama tsc=reliable no_timer_check " +
	"8250.nr_uarts=1 i8042.noaux i8042.nokbd i8042.nopnp random.trust_cpu=on cryptomgr.notests"

// VM is the part of a VM's configuration that belongs to one sandbox.
type VM struct {
	Overlay string // path of the writable disk
	// RAM is the path of a RAM file of the template's memory size. A cold boot's
	// guest writes to it; that of a saved state is only read.
	RAM    string
	Serial string            // path of the serial console's log; empty: the console is off
	Disks  map[string]string // paths of plugged disks, by id
}

// VMConfig is the configuration of a boot from the kernel.
func (t Template) VMConfig(vm VM) vmm.VMConfig {
	cfg := vmm.VMConfig{
		CPUs: vmm.CPUsConfig{BootVCPUs: uint32(t.CPU), MaxVCPUs: uint32(t.CPU)},
		Memory: vmm.MemoryConfig{Zones: []vmm.MemoryZone{{
			ID: zoneID, Size: uint64(t.MemoryMB) << 20, File: vm.RAM, Shared: true,
		}}},
		Payload: &vmm.PayloadConfig{Kernel: t.Kernel, Initramfs: t.Initramfs, Cmdline: t.cmdline()},
		Net:     []vmm.NetConfig{{ID: netID, Tap: tapName, MAC: guestMAC}},
		RNG:     &vmm.RNGConfig{Src: rngSource},
		Serial:  serial(vm.Serial),
		Console: &vmm.ConsoleConfig{Mode: vmm.ConsoleOff},
	}
	for i, layer := range t.Layers {
		cfg.Disks = append(cfg.Disks, vmm.DiskConfig{ID: layerID(i), Path: layer, ReadOnly: true, ImageType: vmm.ImageRaw})
	}
	cfg.Disks = append(cfg.Disks, vmm.DiskConfig{ID: overlayID, Path: vm.Overlay, ImageType: vmm.ImageRaw})
	return cfg
}

func (t Template) cmdline() string {
	return cmdline + " berth.lower=" + strconv.Itoa(len(t.Layers))
}

func serial(path string) *vmm.ConsoleConfig {
	if path == "" {
		return &vmm.ConsoleConfig{Mode: vmm.ConsoleOff}
	}
	return &vmm.ConsoleConfig{Mode: vmm.ConsoleFile, File: path}
}

// EditRestoreConfig returns the configuration of a restore for one sandbox: its own
// disks and console, the RAM file mapped privately, and the current paths of the
// template's files. raw is the config.json of the stored state, which a VMM wrote
// that its guest may have taken over; only what names nothing outside the VM is
// used. If vm has no RAM file, the state is the template's.
func (t Template) EditRestoreConfig(raw []byte, vm VM) ([]byte, error) {
	edit, err := vmm.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("stored configuration: %w", err)
	}
	if err := t.edit(edit, vm); err != nil {
		return nil, fmt.Errorf("stored configuration: %w", err)
	}
	return edit.Bytes()
}

func (t Template) edit(edit *vmm.ConfigEdit, vm VM) error {
	edit.Distrust()
	// A private mapping: the file is only read.
	if err := edit.SetZone(zoneID, t.ramOf(vm), false); err != nil {
		return err
	}
	// The paths that the state was stored with may be gone: they were the build's.
	if err := edit.SetPayload(t.Kernel, t.Initramfs); err != nil {
		return err
	}
	for i, layer := range t.Layers {
		if err := edit.SetDiskPath(layerID(i), layer); err != nil {
			return err
		}
	}
	if err := edit.SetDiskPath(overlayID, vm.Overlay); err != nil {
		return err
	}
	for id, path := range vm.Disks {
		if err := edit.SetDiskPath(id, path); err != nil {
			return err
		}
	}
	if err := edit.SetNetTap(netID, tapName); err != nil {
		return err
	}
	if err := edit.SetRNG(rngSource); err != nil {
		return err
	}
	if vm.Serial != "" {
		edit.SetSerialFile(vm.Serial)
	}
	return t.check(edit)
}

// check refuses a configuration with other disks, links or memory than those that
// were set above.
func (t Template) check(edit *vmm.ConfigEdit) error {
	cfg, err := edit.Config()
	if err != nil {
		return err
	}
	want := vmm.CPUsConfig{BootVCPUs: uint32(t.CPU), MaxVCPUs: uint32(t.CPU)}
	switch {
	case cfg.CPUs != want:
		return fmt.Errorf("it has %d CPUs, up to %d, and the template %d", cfg.CPUs.BootVCPUs, cfg.CPUs.MaxVCPUs, t.CPU)
	case len(cfg.Memory.Zones) != 1 || cfg.Memory.Size != 0 || cfg.Memory.Zones[0].Size != uint64(t.MemoryMB)<<20:
		return fmt.Errorf("its memory is not one zone of %d MB", t.MemoryMB)
	case len(cfg.Net) != 1:
		return fmt.Errorf("it has %d network devices", len(cfg.Net))
	}
	layers := map[string]bool{}
	for i := range t.Layers {
		layers[layerID(i)] = true
	}
	for _, d := range cfg.Disks {
		switch {
		case d.Path == "":
			return fmt.Errorf("it has a disk %q, which is not the sandbox's", d.ID)
		case d.ImageType != vmm.ImageRaw:
			return fmt.Errorf("disk %q is not raw, but %q", d.ID, d.ImageType)
		case d.ReadOnly != layers[d.ID]:
			return fmt.Errorf("disk %q: readonly is %t", d.ID, d.ReadOnly)
		}
	}
	return nil
}

func (t Template) ramOf(vm VM) string {
	if vm.RAM != "" {
		return vm.RAM
	}
	return t.RAM
}

// checkRAM refuses a truncated RAM file. A VMM would map it, and the guest would die
// when it used the first missing page.
func (t Template) checkRAM(vm VM) error {
	path := t.ramOf(vm)
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if want := int64(t.MemoryMB) << 20; st.Size() != want {
		return fmt.Errorf("%w: %s has %d bytes, and the guest's memory %d", vmm.ErrDamaged, path, st.Size(), want)
	}
	return nil
}

// WriteRestore writes to dir what vm.restore reads to start from the template's
// stored state: the edited configuration, and links to the other files.
func (t Template) WriteRestore(dir string, vm VM) error {
	vm.RAM = ""
	if err := t.writeRestore(dir, t.SnapshotDir, vm); err != nil {
		return fmt.Errorf("%w: template %s: %w", ErrCorrupt, t.Name, err)
	}
	return nil
}

// WriteRestoreFrom does the same for the saved state of a sandbox of this build,
// with its RAM in vm.RAM. If no VM can ever be restored from it, the error is
// vmm.ErrDamaged.
func (t Template) WriteRestoreFrom(dir, state string, vm VM) error {
	err := errors.Join(vmm.CheckState(state), t.checkRAM(vm))
	switch {
	case err == nil:
		err = t.writeRestore(dir, state, vm)
	case errors.Is(err, os.ErrNotExist) && !errors.Is(err, vmm.ErrDamaged):
		err = fmt.Errorf("%w: %w", vmm.ErrDamaged, err)
	}
	if err != nil {
		return fmt.Errorf("saved state %s: %w", state, err)
	}
	return nil
}

func (t Template) writeRestore(dir, state string, vm VM) error {
	if err := t.checkRAM(vm); err != nil {
		return err
	}
	raw, err := vmm.ReadConfig(state)
	if err != nil {
		return err
	}
	if raw, err = t.EditRestoreConfig(raw, vm); err != nil {
		return err
	}
	for _, name := range []string{vmm.FileState, vmm.FileMemory} {
		path := filepath.Join(state, name)
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) && name == vmm.FileMemory {
			continue // the RAM was a shared file
		} else if err != nil {
			return err
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, vmm.FileConfig), raw, 0o644)
}
