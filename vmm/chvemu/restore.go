package chvemu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// restoreRequest is RestoreConfig in vmm/src/config.rs.
type restoreRequest struct {
	url      string
	prefault bool
	onDemand bool
	resume   bool
}

func parseRestore(raw []byte) (restoreRequest, error) {
	r, o := parseObject(raw)
	q := restoreRequest{
		url:      o.stringReq("source_url"),
		prefault: o.boolOr("prefault", false),
		onDemand: o.variantOr("memory_restore_mode", "Copy", "Copy", "OnDemand") == "OnDemand",
		resume:   o.boolOr("resume", false),
	}
	_, _ = o.listOpt("net_fds") // for devices by descriptor, which are refused
	return q, r.err
}

// restore makes a VM from a snapshot (vm_restore). Its configuration is read
// from the snapshot's config.json as it is now, which may name another file for
// the RAM, other images and another tap than the machine had that was saved.
func (v *VMM) restore(raw []byte) error {
	q, err := parseRestore(raw)
	if err != nil {
		return badJSON(err)
	}
	if v.vm != nil || v.config != nil {
		return errAlreadyCreated
	}
	dir, f := urlPath(q.url)
	if f != nil {
		return fail(f, "Cannot restore VM")
	}
	cfg, f := readSavedConfig(filepath.Join(dir, configFile))
	if f != nil {
		return f
	}
	if q.onDemand && q.prefault {
		return fail(failf("'prefault' cannot be combined with 'memory_restore_mode=ondemand'"), "Failed to validate config")
	}
	if f := v.restoreFrom(dir, cfg, q); f != nil {
		v.log.Error("cannot restore the VM", "error", f)
		_ = v.delete() // a restore that fails leaves no VM
		return f
	}
	if q.resume {
		if err := v.resume(); err != nil {
			_ = v.delete()
			return err
		}
	}
	return nil
}

func readSavedConfig(path string) (*vmConfig, *fault) {
	const receive = "Failed to receive migratable component snapshot"
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fail(err, "Cannot restore VM", receive, fmt.Sprintf("Error opening VM config snapshot file %s", quoted(path)))
	}
	cfg, refused, err := parseConfig(raw)
	if err != nil {
		return nil, fail(err, "Cannot restore VM", receive, "Error deserialising VM config snapshot")
	}
	if refused != nil {
		return nil, fail(refused, "Cannot restore VM")
	}
	return cfg, nil
}

func readSavedState(path string) (*savedState, *fault) {
	const receive = "Failed to receive migratable component snapshot"
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fail(err, "Cannot restore VM", receive, fmt.Sprintf("Error opening VM state snapshot file %s", quoted(path)))
	}
	var s savedState
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fail(err, "Cannot restore VM", receive, "Error deserialising VM state snapshot")
	}
	return &s, nil
}

func (v *VMM) restoreFrom(dir string, cfg *vmConfig, q restoreRequest) *fault {
	state, f := readSavedState(filepath.Join(dir, stateFile))
	if f != nil {
		return f
	}
	if f := state.fits(cfg, v.accel); f != nil {
		return fail(f, "Cannot restore VM")
	}
	v.config = cfg
	if f := v.openConsoles(); f != nil {
		return f
	}
	mem, f := state.memory(dir, cfg.Memory, q)
	if f != nil {
		return fail(f, "Memory manager error")
	}
	if _, f := cfg.validate(); f != nil {
		return fail(f, "Failed to validate config")
	}
	machine := &vm{state: stateCreated, mem: mem, devices: state.Devices, names: state.Names}
	if f := machine.match(cfg); f != nil {
		return fail(f, "Cannot restore VM")
	}
	p := &prepared{vm: machine}
	defer p.close()
	p.line.base(cfg, mem, v.accel)
	p.line.add("-S", "-incoming", "defer")
	p.line.serial(cfg.Serial, v.serial)
	images, f := p.addDevices(cfg)
	if f != nil {
		return fail(f, "Error from device manager")
	}
	if f := openInitramfs(cfg.Payload); f != nil {
		return f
	}
	v.events.event("vm", "restoring")
	for i, image := range images {
		if f := lockDisk(image, &cfg.Disks[i]); f != nil {
			return fail(f, "Error locking disk images: Another instance likely holds a lock")
		}
	}
	v.vm = machine
	if f := v.launch(p); f != nil {
		return f
	}
	machine.state = statePaused
	if machine.m.version != state.QEMU {
		return fail(failf("the snapshot was made by QEMU %s, and this is QEMU %s", state.QEMU, machine.m.version), "Cannot restore VM")
	}
	if err := machine.m.load(state.Device); err != nil {
		return fail(machine.m.explain(err), "Cannot restore VM")
	}
	v.events.event("vm", "restored")
	return nil
}

// fits says whether a state can be restored at all, by the engine that made it
// and by what of the machine cannot be changed.
func (s *savedState) fits(cfg *vmConfig, accel string) *fault {
	zone := ""
	if len(cfg.Memory.Zones) > 0 {
		zone = cfg.Memory.Zones[0].ID
	}
	switch {
	case s.Engine != engineName:
		return failf("the snapshot was made by another engine than %s", engineName)
	case s.Format != stateFormat:
		return failf("the snapshot has format %d, and this %s reads format %d", s.Format, engineName, stateFormat)
	case s.Machine != machineType:
		return failf("the snapshot was made on machine type %s, and this is %s", s.Machine, machineType)
	case s.Accel != accel:
		return failf("the snapshot was made with acceleration %s, and this is %s", s.Accel, accel)
	case s.VCPUs != cfg.CPUs.BootVCPUs:
		return failf("the saved machine has %d CPUs, and its config.json %d", s.VCPUs, cfg.CPUs.BootVCPUs)
	case s.RAM != cfg.Memory.total() || s.RAM == 0:
		return failf("the saved machine has %d bytes of RAM, and its config.json %d", s.RAM, cfg.Memory.total())
	case s.Zone != zone:
		return failf("the saved machine has memory zone %q, and its config.json %q", s.Zone, zone)
	case s.Serial != (cfg.Serial.Mode != "Off"):
		return failf("the serial port was added or removed in config.json")
	}
	return nil
}

// memory says what the restored RAM is. What the snapshot holds itself is mapped
// privately, so that restoring reads none of it and leaves it as it is; only
// where RAM is to be a shared file is it copied there first.
func (s *savedState) memory(dir string, c memoryConfig, q restoreRequest) (ram, *fault) {
	mem, f := bootMemory(c)
	if f != nil {
		return ram{}, f
	}
	mem.prefault = q.prefault
	if mem.path != "" {
		if f := checkZoneSize(mem); f != nil {
			return ram{}, f
		}
	}
	if !s.Memory {
		return mem, nil
	}
	if q.onDemand && mem.path != "" {
		// Only anonymous memory can be registered (restore_by_uffd in
		// vmm/src/memory_manager.rs). On a tmpfs it takes a file too, and the guest
		// does not survive it.
		return ram{}, fail(unix.EINVAL, "On-demand restore failed", "Failed to register region")
	}
	saved := ram{size: mem.size, path: filepath.Join(dir, memoryFile), prefault: q.prefault, reserve: mem.reserve}
	if _, err := os.Stat(saved.path); err != nil {
		return ram{}, fail(err, "Error opening snapshot file")
	}
	if f := checkZoneFile(saved); f != nil {
		return ram{}, fail(f, "Error reading from snapshot file")
	}
	if f := checkZoneSize(saved); f != nil {
		return ram{}, fail(f, "Error reading from snapshot file")
	}
	if !mem.shared {
		return saved, nil
	}
	if err := fillFile(mem.path, saved.path, int64(mem.size)); err != nil {
		return ram{}, fail(err, "Error copying snapshot into region")
	}
	return mem, nil
}

func fillFile(dst, src string, size int64) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	return cloneSparse(out, in, size)
}

// match finds each configured device in the saved machine, and the other way
// round: a device can change what is behind it, but not come or go.
func (m *vm) match(cfg *vmConfig) *fault {
	left := map[string]string{}
	rngs := 0
	for _, d := range m.devices {
		if d.Slot < firstSlot || d.Slot > lastSlot {
			return failf("the saved machine has device %s in slot %d", d.ID, d.Slot)
		}
		if d.Kind == "rng" {
			rngs++
		} else {
			left[d.ID] = d.Kind
		}
	}
	if rngs != 1 {
		return failf("the saved machine has %d entropy devices", rngs)
	}
	take := func(id *string, kind string) *fault {
		if id == nil || left[*id] != kind {
			name := "without an id"
			if id != nil {
				name = quoted(*id)
			}
			return failf("the saved machine has no %s %s", kind, name)
		}
		delete(left, *id)
		return nil
	}
	for _, d := range cfg.Disks {
		if f := take(d.ID, "disk"); f != nil {
			return f
		}
	}
	for _, n := range cfg.Net {
		if f := take(n.ID, "net"); f != nil {
			return f
		}
	}
	for id, kind := range left {
		return failf("config.json lacks the saved machine's %s %s", kind, quoted(id))
	}
	return nil
}
