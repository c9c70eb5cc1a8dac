package chvemu

import (
	"fmt"
	"os"
	"slices"

	"github.com/berth-cloud/berth/vmm"
)

// addDisk adds a disk to the definition, or plugs it into the running machine
// (vm_add_disk). The answer is nil in the first case.
func (v *VMM) addDisk(disk vmm.DiskConfig) (any, error) {
	if err := checkDisk(&disk); err != nil {
		return nil, badRequest{err}
	}
	if v.config == nil {
		return nil, errNotCreated
	}
	wanted := clone(v.config)
	wanted.Disks = append(wanted.Disks, disk)
	if err := validate(wanted); err != nil {
		return nil, fmt.Errorf("failed to validate config: %w", err)
	}
	if v.vm == nil {
		v.config = wanted
		return nil, nil
	}
	d, err := v.plugDisk(&wanted.Disks[len(wanted.Disks)-1])
	if err != nil {
		return nil, fmt.Errorf("error from device manager: %w", err)
	}
	v.vm.devices = append(v.vm.devices, d)
	v.config = wanted
	return vmm.PCIDevice{ID: d.ID, BDF: d.bdf()}, nil
}

func (v *VMM) plugDisk(disk *vmm.DiskConfig) (device, error) {
	d := device{Kind: kindDisk, Slot: freeSlot(v.vm.devices)}
	if d.Slot == 0 {
		return d, errNoSlot
	}
	if disk.ID == "" {
		disk.ID = d.defaultID()
	}
	d.ID = disk.ID
	if find(v.vm.devices, d.ID) != nil {
		return d, fmt.Errorf("invalid identifier as it is not unique: %s", d.ID)
	}
	image, err := openDisk(disk)
	if err != nil {
		return d, err
	}
	defer image.Close()
	if err := lockDisk(image, disk); err != nil {
		return d, err
	}
	if err := v.vm.m.plug(d, disk, image); err != nil {
		v.vm.m.unplug(d)
		return d, fmt.Errorf("cannot create virtio-blk device: %w", v.vm.m.explain(err))
	}
	return d, nil
}

// plug makes the parts of a disk in QEMU, from the image up.
func (m *machine) plug(d device, disk *vmm.DiskConfig, image *os.File) error {
	err := m.command("add-fd", map[string]any{"fdset-id": d.Slot}, nil, image)
	if err != nil {
		return err
	}
	if err := m.command("blockdev-add", diskNode(d, disk, fmt.Sprintf("/dev/fdset/%d", d.Slot)), nil); err != nil {
		return err
	}
	return m.command("device_add", diskDevice(d, disk), nil)
}

// unplug takes away what is below a disk's device, from the top down. Parts that
// are not there are no error: it also clears up after half a plug.
func (m *machine) unplug(d device) {
	_ = m.command("blockdev-del", map[string]string{"node-name": d.node()}, nil)
	// With the last descriptor goes the lock on the image.
	_ = m.command("remove-fd", map[string]int{"fdset-id": d.Slot}, nil)
}

type removal struct {
	ID string `json:"id"`
}

// removeDevice removes a disk from the definition, or asks the guest to release it
// (vm_remove_device). deviceRemoved is called when the guest has.
func (v *VMM) removeDevice(r removal) error {
	if v.config == nil {
		return errNotCreated
	}
	i := diskIndex(v.config, r.ID)
	if v.vm == nil && i < 0 {
		return fmt.Errorf("no device with id %q to remove", r.ID)
	}
	if v.vm != nil {
		d := find(v.vm.devices, r.ID)
		if d == nil || d.leaving {
			return fmt.Errorf("error from device manager: %w", errNoDevice(r.ID))
		}
		if i < 0 {
			return unsupported("removing a device that is no disk")
		}
		if err := v.vm.m.command("device_del", map[string]string{"id": d.qdev()}, nil); err != nil {
			return fmt.Errorf("error from device manager: %w", v.vm.m.explain(err))
		}
		d.leaving = true
	}
	v.config = clone(v.config)
	v.config.Disks = slices.Delete(v.config.Disks, i, i+1)
	return nil
}

func errNoDevice(id string) error {
	return fmt.Errorf("failed to find device corresponding to the given identifier: %s", id)
}

// deviceRemoved completes removeDevice when the guest has released the device
// (eject_device in vmm/src/device_manager.rs).
func (v *VMM) deviceRemoved(m *machine, qdev string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.vm == nil || v.vm.m != m {
		return
	}
	i := slices.IndexFunc(v.vm.devices, func(d device) bool { return d.leaving && d.qdev() == qdev })
	if i < 0 {
		return
	}
	d := v.vm.devices[i]
	m.unplug(d)
	v.vm.devices = slices.Delete(v.vm.devices, i, i+1)
	v.events.event("vm", "device-removed", "id", d.ID, "bdf", d.bdf())
}
