package chvemu

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// prepared is a machine about to be started: its command line, and the files to
// be closed once QEMU has them.
type prepared struct {
	line    commandLine
	vm      *vm
	cleanup []*os.File
}

func (p *prepared) close() {
	for _, f := range p.cleanup {
		f.Close()
	}
}

// start makes the machine of the configuration and runs it. The checks come in
// the order of Vm::new and Vm::boot in vmm/src/vm.rs, which decides what of
// several faults is reported.
func (v *VMM) start() *fault {
	cfg := v.config
	mem, f := bootMemory(cfg.Memory)
	if f != nil {
		return fail(f, "Memory manager error")
	}
	ids, f := cfg.validate()
	if f != nil {
		return fail(f, "Failed to validate config")
	}
	// The devices are named and their images opened on a copy, so that a failed
	// start leaves the definition as it was.
	cfg = cfg.clone()
	machine := &vm{state: stateCreated, mem: mem}
	machine.place(cfg, ids)
	p := &prepared{vm: machine}
	defer p.close()
	p.line.base(cfg, mem, v.accel)
	p.line.serial(cfg.Serial, v.serial)
	images, f := p.addDevices(cfg)
	if f != nil {
		return fail(f, "Error from device manager")
	}
	if f := openInitramfs(cfg.Payload); f != nil {
		return f
	}
	v.config = cfg

	// From here on a VM exists, even if it does not get to run.
	v.vm = machine
	for i, image := range images {
		if f := lockDisk(image, &cfg.Disks[i]); f != nil {
			return fail(f, "Error locking disk images: Another instance likely holds a lock")
		}
	}
	if f := loadPayload(cfg.Payload, mem); f != nil {
		return f
	}
	p.line.payload(cfg.Payload, v.accel)
	return v.launch(p)
}

// launch starts QEMU and keeps watch over it. The guest runs unless the command
// line says otherwise.
func (v *VMM) launch(p *prepared) *fault {
	s := spec{line: p.line, keep: v.lock, removed: func(m *machine, qdev string) {
		v.watchers.Go(func() { v.deviceRemoved(m, qdev) })
	}}
	if p.vm.mem.path != "" && !p.vm.mem.shared {
		s.private = p.vm.mem.path
	}
	m, err := startMachine(background(), v.log, s)
	if err != nil {
		return fail(err, "Error initializing VM")
	}
	p.vm.m = m
	p.vm.state = stateRunning
	v.watch(m)
	return nil
}

// bootMemory turns the memory's configuration into what is behind it
// (MemoryManager::new in vmm/src/memory_manager.rs).
func bootMemory(c memoryConfig) (ram, *fault) {
	zone := zoneConfig{Size: c.Size, Shared: c.Shared, Prefault: c.Prefault, Reserve: c.Reserve}
	switch {
	case c.Size == 0 && len(c.Zones) == 0:
		return ram{}, failf("No memory zones found")
	case c.Size == 0:
		zone = c.Zones[0]
	case c.Zones != nil:
		return ram{}, failf("Memory configuration is not valid")
	}
	return zoneMemory(zone)
}

func zoneMemory(z zoneConfig) (ram, *fault) {
	const page = 4096
	if z.Size%page != 0 {
		return ram{}, failf("Memory size is misaligned with default page size or its hugepage size")
	}
	if z.Size == 0 {
		return ram{}, failf("Memory configuration is not valid")
	}
	mem := ram{size: z.Size, prefault: z.Prefault, reserve: z.Reserve}
	if z.File == nil {
		// Shared memory without a file is for other processes to map, which
		// there are none of here: it is as private as the rest.
		return mem, nil
	}
	mem.path, mem.shared = *z.File, z.Shared
	return mem, checkZoneFile(mem)
}

// checkZoneFile refuses what Cloud Hypervisor's mapping would: a file that is not
// there, a directory, or one that cannot be opened (memory_zone_get_align_size
// and open_backing_file in vmm/src/memory_manager.rs). One that is too short is
// mapped all the same, and noticed when the payload is loaded.
func checkZoneFile(mem ram) *fault {
	st, err := os.Stat(mem.path)
	if err != nil {
		return fail(err, "Failed to stat filesystem")
	}
	if st.IsDir() {
		return failf("Using a directory as a backing file for memory is not supported")
	}
	flags := os.O_RDONLY
	if mem.shared {
		flags = os.O_RDWR
	}
	f, err := os.OpenFile(mem.path, flags, 0)
	if err != nil {
		return fail(err, "Failed to create shared file")
	}
	f.Close()
	return nil
}

// checkZoneSize refuses a file that is too short for RAM that is restored: QEMU
// would make it longer, and a guest on Cloud Hypervisor would die of it later.
func checkZoneSize(mem ram) *fault {
	st, err := os.Stat(mem.path)
	if err != nil {
		return fail(err, "Failed to stat filesystem")
	}
	if uint64(st.Size()) < mem.size {
		return failf("%s has %d bytes, and the RAM %d", quoted(mem.path), st.Size(), mem.size)
	}
	return nil
}

// openInitramfs looks whether the initramfs can be opened, which Vm::new in
// vmm/src/vm.rs does at a boot, a reboot and a restore alike.
func openInitramfs(p *payloadConfig) *fault {
	if p.Initramfs == nil {
		return nil
	}
	f, err := os.Open(*p.Initramfs)
	if err != nil {
		return fail(err, "Cannot open initramfs file")
	}
	f.Close()
	return nil
}

// loadPayload looks whether the kernel can be opened, and whether there is RAM
// behind the place of the initramfs, which is its end (load_payload and
// load_initramfs in vmm/src/vm.rs). A restore does neither.
func loadPayload(p *payloadConfig, mem ram) *fault {
	kernel, err := os.Open(*p.Kernel)
	if err != nil {
		return fail(err, "Cannot open kernel file")
	}
	kernel.Close()
	if mem.path == "" {
		return nil
	}
	st, err := os.Stat(mem.path)
	if err == nil && uint64(st.Size()) < mem.size {
		err = unix.EFAULT
	}
	if err != nil {
		return fail(err, "Cannot read initramfs into guest memory")
	}
	return nil
}

// place gives each device a name, where it has none, and a slot, in the order of
// make_virtio_devices in vmm/src/device_manager.rs.
func (m *vm) place(cfg *vmConfig, ids map[string]bool) {
	for i := range cfg.Disks {
		id := m.nameDevice(cfg.Disks[i].ID, "_disk", ids)
		cfg.Disks[i].ID = &id
		m.devices = append(m.devices, device{ID: id, Kind: "disk", Slot: m.freeSlot()})
	}
	for i := range cfg.Net {
		id := m.nameDevice(cfg.Net[i].ID, "_net", ids)
		cfg.Net[i].ID = &id
		m.devices = append(m.devices, device{ID: id, Kind: "net", Slot: m.freeSlot()})
	}
	rng := "__rng"
	if cfg.RNG.ID != nil {
		rng = *cfg.RNG.ID
	}
	m.devices = append(m.devices, device{ID: rng, Kind: "rng", Slot: m.freeSlot()})
}

// nameDevice makes up a name where there is none (next_device_name).
func (m *vm) nameDevice(id *string, prefix string, ids map[string]bool) string {
	if id != nil {
		return *id
	}
	for {
		name := fmt.Sprintf("%s%d", prefix, m.names)
		m.names++
		if !ids[name] && m.deviceByID(name) == nil {
			return name
		}
	}
}

// freeSlot returns the lowest free slot, or 0 when all are taken.
func (m *vm) freeSlot() int {
	used := map[int]bool{}
	for _, d := range m.devices {
		used[d.Slot] = true
	}
	for slot := firstSlot; slot <= lastSlot; slot++ {
		if !used[slot] {
			return slot
		}
	}
	return 0
}

func (m *vm) deviceByID(id string) *device {
	for i := range m.devices {
		if m.devices[i].ID == id {
			return &m.devices[i]
		}
	}
	return nil
}

// addDevices opens what the devices use and puts them on the command line. It
// returns the images in the order of the disks.
func (p *prepared) addDevices(cfg *vmConfig) ([]*os.File, *fault) {
	p.line.limiterGroups(cfg.RateLimitGroups)
	var images []*os.File
	for i := range cfg.Disks {
		d := &cfg.Disks[i]
		dev := p.vm.deviceByID(*d.ID)
		if dev.Slot == 0 {
			return nil, errNoSlot
		}
		image, f := openDisk(d)
		if f != nil {
			return nil, f
		}
		p.cleanup = append(p.cleanup, image)
		images = append(images, image)
		if d.RateLimitGroup != nil {
			d.limits = groupID(cfg.RateLimitGroups, *d.RateLimitGroup)
		}
		p.line.disk(*dev, d, image)
	}
	for i := range cfg.Net {
		n := &cfg.Net[i]
		dev := p.vm.deviceByID(*n.ID)
		if dev.Slot == 0 {
			return nil, errNoSlot
		}
		tap, f := openTap(n)
		if f != nil {
			return nil, fail(f, "Cannot create virtio-net device", "Failed to open taps")
		}
		p.cleanup = append(p.cleanup, tap)
		p.vm.noteTap(n)
		p.line.net(*dev, n, tap)
	}
	rng := p.vm.devices[slices.IndexFunc(p.vm.devices, func(d device) bool { return d.Kind == "rng" })]
	if rng.Slot == 0 {
		return nil, errNoSlot
	}
	source, err := os.Open(cfg.RNG.Src)
	if err != nil {
		return nil, fail(err, "Cannot create virtio-rng device")
	}
	source.Close()
	p.line.rng(rng, cfg.RNG)
	return images, nil
}

var errNoSlot = fail(failf("No PCI device slot available"), "Failed to find an available PCI device ID")

// noteTap remembers what a tap has counted so far: it outlives machines.
func (m *vm) noteTap(n *netConfig) {
	sent, received, err := linkCounters(*n.Tap)
	if err != nil {
		return // its counters will be those of the tap's whole life
	}
	if m.taps == nil {
		m.taps = map[string]tapBase{}
	}
	m.taps[*n.ID] = tapBase{sent: sent, received: received}
}
