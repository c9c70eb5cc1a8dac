package chvemu

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// pciInfo is PciDeviceInfo in vmm/src/lib.rs.
type pciInfo struct {
	ID  string `json:"id"`
	BDF string `json:"bdf"`
}

// addDisk adds a disk to the definition, or plugs it into the running machine
// (vm_add_disk). The answer is nil in the first case.
func (v *VMM) addDisk(raw []byte) (*pciInfo, error) {
	r, o := parseObject(raw)
	u := &refusals{}
	disk := readDisk(o, u)
	if r.err != nil {
		return nil, badJSON(r.err)
	}
	if v.config == nil {
		return nil, errNotCreated
	}
	if u.fault != nil {
		return nil, u.fault
	}
	wanted := v.config.clone()
	wanted.Disks = append(wanted.Disks, disk)
	if _, f := wanted.validate(); f != nil {
		return nil, fail(f, "Failed to validate config")
	}
	if v.vm == nil {
		v.config = wanted
		return nil, nil
	}
	if v.vm.m == nil {
		return nil, errNotRunning
	}
	info, f := v.plugDisk(disk)
	if f != nil {
		return nil, fail(f, "Error from device manager")
	}
	return info, nil
}

func (v *VMM) plugDisk(disk diskConfig) (*pciInfo, *fault) {
	if disk.ID != nil {
		if strings.HasPrefix(*disk.ID, "__") {
			return nil, failf("Invalid identifier: %s", *disk.ID)
		}
		if v.vm.deviceByID(*disk.ID) != nil {
			return nil, failf("Invalid identifier as it is not unique: %s", *disk.ID)
		}
	}
	ids, f := v.config.validate()
	if f != nil {
		return nil, f
	}
	slot := v.vm.freeSlot()
	if slot == 0 {
		return nil, errNoSlot
	}
	id := v.vm.nameDevice(disk.ID, "_disk", ids)
	disk.ID = &id
	if disk.RateLimitGroup != nil {
		disk.limits = groupID(v.config.RateLimitGroups, *disk.RateLimitGroup)
	}
	image, f := openDisk(&disk)
	if f != nil {
		return nil, f
	}
	defer image.Close()
	if f := lockDisk(image, &disk); f != nil {
		return nil, f
	}
	d := device{ID: id, Kind: "disk", Slot: slot}
	if err := v.vm.m.plug(d, &disk, image); err != nil {
		v.vm.m.unplug(d, &disk)
		return nil, fail(v.vm.m.explain(err), "Cannot create virtio-blk device")
	}
	v.vm.devices = append(v.vm.devices, d)
	v.config = v.config.clone()
	v.config.Disks = append(v.config.Disks, disk)
	return &pciInfo{ID: id, BDF: d.bdf()}, nil
}

// plug makes the parts of a disk in QEMU, from the image up.
func (m *machine) plug(d device, disk *diskConfig, image *os.File) error {
	err := m.command("add-fd", map[string]any{"fdset-id": d.Slot}, nil, image)
	if err != nil {
		return err
	}
	for _, o := range diskObjects(d, disk) {
		if err := m.command("object-add", o, nil); err != nil {
			return err
		}
	}
	for _, o := range diskNodes(d, disk, fmt.Sprintf("/dev/fdset/%d", d.Slot)) {
		if err := m.command("blockdev-add", o, nil); err != nil {
			return err
		}
	}
	return m.command("device_add", diskDevice(d, disk), nil)
}

// unplug takes away what is below a disk's device, from the top down. Parts that
// are not there are no error: it also clears up after half a plug.
func (m *machine) unplug(d device, disk *diskConfig) {
	nodes := diskNodes(d, disk, "")
	for _, o := range slices.Backward(nodes) {
		_ = m.command("blockdev-del", map[string]any{"node-name": o["node-name"]}, nil)
	}
	for _, o := range diskObjects(d, disk) {
		_ = m.command("object-del", map[string]any{"id": o["id"]}, nil)
	}
	// With the last descriptor goes the lock on the image.
	_ = m.command("remove-fd", map[string]any{"fdset-id": d.Slot}, nil)
}

// removeDevice takes a device out of the definition, or asks the guest to let go
// of it (vm_remove_device). It is gone when deviceRemoved is called.
func (v *VMM) removeDevice(raw []byte) error {
	r, o := parseObject(raw)
	id := o.stringReq("id")
	if r.err != nil {
		return badJSON(r.err)
	}
	if v.vm == nil {
		if v.config == nil {
			return errNotCreated
		}
		if !v.dropFromConfig(id) {
			return failf("No device with id %s to remove", quoted(id))
		}
		return nil
	}
	d := v.vm.deviceByID(id)
	if d == nil || v.vm.m == nil {
		return fail(failf("Failed to find device corresponding to the given identifier: %s", id), "Error from device manager")
	}
	if d.Kind == "rng" {
		return fail(failf("Not allowed to remove this type of device from the VM: virtio-rng"), "Error from device manager")
	}
	if d.Kind == "net" {
		return fail(unsupported("removing network devices"), "Error from device manager")
	}
	i := v.config.disk(id)
	if i < 0 {
		return fail(failf("Failed to find device corresponding to the given identifier: %s", id), "Error from device manager")
	}
	disk := v.config.Disks[i]
	if err := v.vm.m.command("device_del", map[string]string{"id": d.qdev()}, nil); err != nil {
		return fail(v.vm.m.explain(err), "Error from device manager")
	}
	if v.vm.going == nil {
		v.vm.going = map[int]diskConfig{}
	}
	v.vm.going[d.Slot] = disk
	v.dropFromConfig(id)
	return nil
}

func (v *VMM) dropFromConfig(id string) bool {
	c := v.config.clone()
	disk, net := c.disk(id), c.net(id)
	if disk >= 0 {
		c.Disks = slices.Delete(c.Disks, disk, disk+1)
	}
	if net >= 0 {
		c.Net = slices.Delete(c.Net, net, net+1)
	}
	v.config = c
	return disk >= 0 || net >= 0
}

// leaving returns the id of a device that the guest has been asked to let go of
// and has not yet.
func (v *VMM) leaving() string {
	for _, d := range v.vm.devices {
		if _, ok := v.vm.going[d.Slot]; ok {
			return d.ID
		}
	}
	return ""
}

// deviceRemoved finishes what removeDevice began, when the guest has let go
// (eject_device in vmm/src/device_manager.rs).
func (v *VMM) deviceRemoved(m *machine, qdev string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.vm == nil || v.vm.m != m {
		return
	}
	i := slices.IndexFunc(v.vm.devices, func(d device) bool { return d.qdev() == qdev })
	if i < 0 {
		return
	}
	d := v.vm.devices[i]
	disk, ok := v.vm.going[d.Slot]
	if !ok {
		return
	}
	m.unplug(d, &disk)
	delete(v.vm.going, d.Slot)
	v.vm.devices = slices.Delete(v.vm.devices, i, i+1)
	v.events.event("vm", "device-removed", "id", d.ID, "bdf", d.bdf())
}

// resizeDisk sets the size of a disk's image and tells the guest
// (vm_resize_disk).
func (v *VMM) resizeDisk(raw []byte) error {
	r, o := parseObject(raw)
	id, size := o.stringReq("id"), o.uintReq("desired_size", maxU64)
	if r.err != nil {
		return badJSON(r.err)
	}
	if v.config == nil {
		return errNotCreated
	}
	if v.vm == nil || v.vm.m == nil {
		return failf("Failed resizing a disk image")
	}
	d, i := v.vm.deviceByID(id), v.config.disk(id)
	if d == nil || i < 0 {
		return fail(failf("Failed to find device corresponding to the given identifier: %s", id), "Error from device manager")
	}
	const sector = 512
	if size%sector != 0 || size > 1<<62 {
		return fail(failf("The requested size is not a multiple of the sector size"), "Error from device manager", "Disk resize error")
	}
	err := v.vm.m.command("block_resize", map[string]any{"node-name": topNode(*d, &v.config.Disks[i]), "size": size}, nil)
	if err != nil {
		return fail(v.vm.m.explain(err), "Error from device manager", "Disk resize error")
	}
	return nil
}

// counters returns what each device has counted (vm_counters). QEMU keeps no
// lowest and highest latency of a disk, so those are left out.
func (v *VMM) counters() (map[string]map[string]uint64, error) {
	if v.vm == nil || v.vm.m == nil {
		return nil, errNotRunning
	}
	var stats []struct {
		QDev  string `json:"qdev"`
		Stats struct {
			ReadBytes  uint64 `json:"rd_bytes"`
			WriteBytes uint64 `json:"wr_bytes"`
			ReadOps    uint64 `json:"rd_operations"`
			WriteOps   uint64 `json:"wr_operations"`
			ReadTime   uint64 `json:"rd_total_time_ns"`
			WriteTime  uint64 `json:"wr_total_time_ns"`
		} `json:"stats"`
	}
	if err := v.vm.m.command("query-blockstats", nil, &stats); err != nil {
		return nil, v.vm.m.explain(err)
	}
	out := map[string]map[string]uint64{}
	for _, s := range stats {
		i := slices.IndexFunc(v.vm.devices, func(d device) bool { return strings.Contains(s.QDev, "/"+d.qdev()+"/") })
		if i < 0 {
			continue
		}
		out[v.vm.devices[i].ID] = map[string]uint64{
			"read_bytes": s.Stats.ReadBytes, "write_bytes": s.Stats.WriteBytes,
			"read_ops": s.Stats.ReadOps, "write_ops": s.Stats.WriteOps,
			"read_latency_avg":  micros(s.Stats.ReadTime, s.Stats.ReadOps),
			"write_latency_avg": micros(s.Stats.WriteTime, s.Stats.WriteOps),
		}
	}
	for _, n := range v.config.Net {
		sent, received, err := linkCounters(*n.Tap)
		if err != nil {
			continue // the tap was taken away under us
		}
		base := v.vm.taps[*n.ID]
		out[*n.ID] = map[string]uint64{
			"tx_bytes": sent.bytes - base.sent.bytes, "tx_frames": sent.frames - base.sent.frames,
			"rx_bytes": received.bytes - base.received.bytes, "rx_frames": received.frames - base.received.frames,
		}
	}
	return out, nil
}

func micros(ns, ops uint64) uint64 {
	if ops == 0 {
		return 0
	}
	return ns / ops / 1000
}
