package chvemu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berth-cloud/berth/vmm"
)

// prepared is a machine about to be started: its command line, and the files to
// be closed once QEMU has them.
type prepared struct {
	line    commandLine
	mem     ram
	cleanup []*os.File
}

func (p *prepared) close() {
	for _, f := range p.cleanup {
		f.Close()
	}
}

// start makes the machine of the configuration and runs it. The devices are
// named on a copy, so that a failed start leaves the definition as it was.
func (v *VMM) start() error {
	cfg := clone(v.config)
	devices, err := place(cfg)
	if err != nil {
		return err
	}
	if err := validate(cfg); err != nil {
		return fmt.Errorf("failed to validate config: %w", err)
	}
	mem, err := bootMemory(cfg.Memory)
	if err != nil {
		return fmt.Errorf("memory manager error: %w", err)
	}
	p, err := v.prepare(cfg, mem, devices)
	if err != nil {
		return err
	}
	defer p.close()
	if err := openable(cfg.Payload.Kernel); err != nil {
		return fmt.Errorf("cannot open kernel file: %w", err)
	}
	p.line.payload(cfg.Payload, v.accel)
	m, err := v.launch(p)
	if err != nil {
		return fmt.Errorf("error initializing VM: %w", err)
	}
	v.config = cfg
	v.vm = &vm{state: vmm.StateRunning, m: m, mem: mem, devices: devices}
	v.watch(m)
	return nil
}

// prepare opens and locks what a machine uses and puts it on QEMU's command line.
// The caller closes what it returns.
func (v *VMM) prepare(cfg *vmm.VMConfig, mem ram, devices []device) (_ *prepared, err error) {
	p := &prepared{mem: mem}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	p.line.base(cfg, mem, v.accel)
	p.line.serial(v.serial)
	images, err := p.addDevices(cfg, devices)
	if err != nil {
		return nil, fmt.Errorf("error from device manager: %w", err)
	}
	// A restore opens it too (Vm::new in vmm/src/vm.rs).
	if cfg.Payload.Initramfs != "" {
		if err := openable(cfg.Payload.Initramfs); err != nil {
			return nil, fmt.Errorf("cannot open initramfs file: %w", err)
		}
	}
	for i, image := range images {
		if err := lockDisk(image, &cfg.Disks[i]); err != nil {
			return nil, fmt.Errorf("error locking disk images: another instance likely holds a lock: %w", err)
		}
	}
	return p, nil
}

// launch starts QEMU. The guest runs unless the command line says otherwise.
func (v *VMM) launch(p *prepared) (*machine, error) {
	s := spec{line: p.line, keep: v.lock, removed: func(m *machine, qdev string) {
		v.watchers.Go(func() { v.deviceRemoved(m, qdev) })
	}}
	if !p.mem.shared {
		s.private = p.mem.path
	}
	// A request goes on when its client has gone.
	return startMachine(context.Background(), v.log, s)
}

// bootMemory turns the memory's configuration into what is behind it
// (MemoryManager::new in vmm/src/memory_manager.rs).
func bootMemory(c vmm.MemoryConfig) (ram, error) {
	mem := ram{size: c.Size}
	switch {
	case c.Size == 0 && len(c.Zones) == 0:
		return mem, errors.New("no memory zones found")
	case c.Size != 0 && len(c.Zones) != 0:
		return mem, errors.New("memory configuration is not valid: it has both a size and zones")
	case len(c.Zones) != 0:
		mem.size, mem.path = c.Zones[0].Size, c.Zones[0].File
		// Shared memory without a file is for other processes to map. There are none
		// here, so it is mapped privately.
		mem.shared = c.Zones[0].Shared && mem.path != ""
	}
	if mem.size == 0 || mem.size%pageSize != 0 {
		return mem, errors.New("memory size is misaligned with default page size or its hugepage size")
	}
	if mem.path == "" {
		return mem, nil
	}
	return mem, checkRAMFile(mem)
}

// checkRAMFile refuses a file that cannot be the RAM. One that is too short QEMU
// would make longer; a guest on Cloud Hypervisor would die of it.
func checkRAMFile(mem ram) error {
	st, err := os.Stat(mem.path)
	switch {
	case err != nil:
		return fmt.Errorf("failed to stat filesystem: %w", err)
	case st.IsDir():
		return errors.New("using a directory as a backing file for memory is not supported")
	case uint64(st.Size()) < mem.size:
		return fmt.Errorf("%s has %d bytes, and the RAM %d", mem.path, st.Size(), mem.size)
	default:
		return nil
	}
}

// openable checks that a file can be opened.
func openable(path string) error {
	f, err := os.Open(path)
	if err == nil {
		f.Close()
	}
	return err
}

// place gives each device a slot, in the order of make_virtio_devices in
// vmm/src/device_manager.rs, and a name where it has none.
func place(cfg *vmm.VMConfig) ([]device, error) {
	var devices []device
	add := func(id *string, kind string) {
		d := device{Kind: kind, Slot: firstSlot + len(devices)}
		if *id == "" {
			*id = d.defaultID()
		}
		d.ID = *id
		devices = append(devices, d)
	}
	for i := range cfg.Disks {
		add(&cfg.Disks[i].ID, kindDisk)
	}
	for i := range cfg.Net {
		add(&cfg.Net[i].ID, kindNet)
	}
	rng := "__rng"
	add(&rng, kindRNG)
	if devices[len(devices)-1].Slot > lastSlot {
		return nil, errNoSlot
	}
	return devices, nil
}

var errNoSlot = errors.New("no PCI device slot available")

// freeSlot returns the lowest free slot, or 0 when all are taken.
func freeSlot(devices []device) int {
	used := map[int]bool{}
	for _, d := range devices {
		used[d.Slot] = true
	}
	for slot := firstSlot; slot <= lastSlot; slot++ {
		if !used[slot] {
			return slot
		}
	}
	return 0
}

// addDevices opens what the devices use and puts them on the command line. It
// returns the images in the order of the disks.
func (p *prepared) addDevices(cfg *vmm.VMConfig, devices []device) ([]*os.File, error) {
	var images []*os.File
	for i := range cfg.Disks {
		d := &cfg.Disks[i]
		image, err := openDisk(d)
		if err != nil {
			return nil, err
		}
		p.cleanup = append(p.cleanup, image)
		images = append(images, image)
		p.line.disk(*find(devices, d.ID), d, image)
	}
	for i := range cfg.Net {
		n := &cfg.Net[i]
		tap, err := openTap(n)
		if err != nil {
			return nil, err
		}
		p.cleanup = append(p.cleanup, tap)
		p.line.net(*find(devices, n.ID), n, tap)
	}
	for _, d := range devices {
		if d.Kind == kindRNG {
			p.line.rng(d, cfg.RNG)
		}
	}
	return images, nil
}

// find returns the device with an id, or nil.
func find(devices []device, id string) *device {
	for i := range devices {
		if devices[i].ID == id {
			return &devices[i]
		}
	}
	return nil
}
