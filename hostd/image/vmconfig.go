package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/berth-cloud/berth/vmm"
)

// The same in every VM: what the slot offers, and the names by which a stored
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

// cmdline is the kernel's. Nothing that only protects the guest from itself, or
// wakes it while it does nothing, is on: a guest is one tenant's, and its
// processor may be emulated.
//
// Of the security modules only those stay that a program can use by itself.
// reboot=t and panic=-1 end the VM when the guest ends; the 8042 and the other
// serial ports are not probed for.
const cmdline = "console=ttyS0 quiet loglevel=4 reboot=t panic=-1 mitigations=off init_on_alloc=0 " +
	"psi=0 nosoftlockup noautogroup audit=0 lsm=landlock,yama tsc=reliable no_timer_check " +
	"8250.nr_uarts=1 i8042.noaux i8042.nokbd i8042.nopnp random.trust_cpu=on cryptomgr.notests"

// VM is what of a VM's configuration is one sandbox's own.
type VM struct {
	Overlay string // path of the writable disk
	RAM     string // path of the RAM file of a cold boot, of the template's memory size
	Serial  string // path of the serial console's log; empty: the console is off
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

// EditRestoreConfig edits the config.json of a template's stored state for one
// sandbox: its own disk and console, the template's RAM mapped privately, and
// the template's files where they are now.
func (t Template) EditRestoreConfig(raw []byte, vm VM) ([]byte, error) {
	edit, err := vmm.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("stored configuration: %w", err)
	}
	// A private mapping: the template's RAM is read, and never written.
	if err := edit.SetZone(zoneID, t.RAM, false); err != nil {
		return nil, fmt.Errorf("stored configuration: %w", err)
	}
	for i, layer := range t.Layers {
		if err := edit.SetDiskPath(layerID(i), layer); err != nil {
			return nil, fmt.Errorf("stored configuration: %w", err)
		}
	}
	if err := edit.SetDiskPath(overlayID, vm.Overlay); err != nil {
		return nil, fmt.Errorf("stored configuration: %w", err)
	}
	if err := edit.SetNetTap(netID, tapName); err != nil {
		return nil, fmt.Errorf("stored configuration: %w", err)
	}
	if vm.Serial != "" {
		edit.SetSerialFile(vm.Serial)
	}
	return edit.Bytes()
}

// configFile is the part of a stored state that is edited; all others are used
// as they are.
const configFile = "config.json"

// WriteRestore fills dir with what vm.restore reads: the edited configuration,
// and links to the rest.
func (t Template) WriteRestore(dir string, vm VM) error {
	raw, err := os.ReadFile(filepath.Join(t.SnapshotDir, configFile))
	if err != nil {
		return fmt.Errorf("%w: template %s: %w", ErrCorrupt, t.Name, err)
	}
	raw, err = t.EditRestoreConfig(raw, vm)
	if err != nil {
		return fmt.Errorf("%w: template %s: %w", ErrCorrupt, t.Name, err)
	}
	entries, err := os.ReadDir(t.SnapshotDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == configFile {
			continue
		}
		if err := os.Symlink(filepath.Join(t.SnapshotDir, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, configFile), raw, 0o644)
}
