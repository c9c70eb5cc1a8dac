package chvemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-cloud/berth/vmm"
)

// restore makes a VM from a snapshot (vm_restore). Its configuration is read
// from the snapshot's config.json as it is now, which may name another file for
// the RAM, other images and another tap than the machine had that was saved.
func (v *VMM) restore(cfg vmm.RestoreConfig) error {
	switch cfg.MemoryRestoreMode {
	case "", vmm.MemoryRestoreCopy, vmm.MemoryRestoreOnDemand:
	default:
		return badRequest{fmt.Errorf("unknown restore mode %q", cfg.MemoryRestoreMode)}
	}
	if v.config != nil {
		return errAlreadyCreated
	}
	if err := v.restoreFrom(cfg); err != nil {
		_ = v.delete() // a restore that fails leaves no VM
		return fmt.Errorf("cannot restore VM: %w", err)
	}
	if cfg.Resume {
		if err := v.resume(); err != nil {
			_ = v.delete()
			return err
		}
	}
	return nil
}

func (v *VMM) restoreFrom(r vmm.RestoreConfig) error {
	if r.Prefault || r.MemoryRestoreMode == vmm.MemoryRestoreOnDemand {
		return unsupported("prefault and on-demand restore: RAM is mapped, and read as it is used")
	}
	dir, err := snapshotDir(r.SourceURL)
	if err != nil {
		return err
	}
	cfg, err := readSavedConfig(filepath.Join(dir, vmm.FileConfig))
	if err != nil {
		return err
	}
	state, err := readSavedState(filepath.Join(dir, vmm.FileState))
	if err != nil {
		return err
	}
	if err := state.fits(cfg, v.accel); err != nil {
		return err
	}
	v.config = cfg
	if err := v.openConsoles(); err != nil {
		return err
	}
	mem, err := state.memory(dir, cfg.Memory)
	if err != nil {
		return fmt.Errorf("memory manager error: %w", err)
	}
	if err := validate(cfg); err != nil {
		return fmt.Errorf("failed to validate config: %w", err)
	}
	p, err := v.prepare(cfg, mem, state.Devices)
	if err != nil {
		return err
	}
	defer p.close()
	p.line.add("-S", "-incoming", "defer")
	v.events.event("vm", "restoring")
	m, err := v.launch(p)
	if err != nil {
		return err
	}
	if err := state.loadInto(m); err != nil {
		m.kill()
		return err
	}
	v.vm = &vm{state: vmm.StatePaused, m: m, mem: mem, devices: state.Devices}
	v.watch(m)
	v.events.event("vm", "restored")
	return nil
}

func readSavedConfig(path string) (*vmm.VMConfig, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("error opening VM config snapshot file: %w", err)
	}
	var cfg vmm.VMConfig
	if err := decode(raw, &cfg); err != nil {
		return nil, fmt.Errorf("error deserialising VM config snapshot: %w", err)
	}
	return &cfg, checkConfig(&cfg)
}

func readSavedState(path string) (*savedState, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("error opening VM state snapshot file: %w", err)
	}
	var s savedState
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("error deserialising VM state snapshot: %w", err)
	}
	return &s, nil
}

// fits says whether a state can be restored at all, by the engine that made it
// and by what of the machine cannot be changed.
func (s *savedState) fits(cfg *vmm.VMConfig, accel string) error {
	size := memorySize(cfg.Memory)
	switch {
	case s.Engine != engineName:
		return fmt.Errorf("the snapshot was made by another engine than %s", engineName)
	case s.Format != stateFormat:
		return fmt.Errorf("the snapshot has format %d, and this %s reads format %d", s.Format, engineName, stateFormat)
	case s.Machine != machineType:
		return fmt.Errorf("the snapshot was made on machine type %s, and this is %s", s.Machine, machineType)
	case s.Accel != accel:
		return fmt.Errorf("the snapshot was made with acceleration %s, and this is %s", s.Accel, accel)
	case s.VCPUs != cfg.CPUs.BootVCPUs:
		return fmt.Errorf("the saved machine has %d CPUs, and its config.json %d", s.VCPUs, cfg.CPUs.BootVCPUs)
	case s.RAM != size:
		return fmt.Errorf("the saved machine has %d bytes of RAM, and its config.json %d", s.RAM, size)
	case s.Zone != zoneID(cfg):
		return fmt.Errorf("the saved machine has memory zone %q, and its config.json %q", s.Zone, zoneID(cfg))
	case s.Serial != (cfg.Serial.Mode != vmm.ConsoleOff):
		return errors.New("the serial port was added or removed in config.json")
	}
	return s.fitsDevices(cfg)
}

// fitsDevices compares the configured devices with the saved machine's: a device
// can change what is behind it, but not come or go.
func (s *savedState) fitsDevices(cfg *vmm.VMConfig) error {
	has, wants := []string{}, []string{kindRNG + " __rng"}
	for _, d := range s.Devices {
		has = append(has, d.Kind+" "+d.ID)
	}
	for _, d := range cfg.Disks {
		wants = append(wants, kindDisk+" "+d.ID)
	}
	for _, n := range cfg.Net {
		wants = append(wants, kindNet+" "+n.ID)
	}
	slices.Sort(has)
	slices.Sort(wants)
	if !slices.Equal(has, wants) {
		return fmt.Errorf("the saved machine has devices %q, and its config.json %q", has, wants)
	}
	return nil
}

// memory says what the restored RAM is. What the snapshot holds itself is mapped
// privately, so that restoring reads none of it and leaves it as it is.
func (s *savedState) memory(dir string, c vmm.MemoryConfig) (ram, error) {
	mem, err := bootMemory(c)
	if err != nil || !s.Memory {
		return mem, err
	}
	if mem.shared {
		return mem, unsupported("a restore of " + vmm.FileMemory + " into a shared file")
	}
	mem.path = filepath.Join(dir, vmm.FileMemory)
	return mem, checkRAMFile(mem)
}

// loadInto brings a machine that was started to wait for it into the state.
func (s *savedState) loadInto(m *machine) error {
	if m.version != s.QEMU {
		return fmt.Errorf("the snapshot was made by QEMU %s, and this is QEMU %s", s.QEMU, m.version)
	}
	if err := m.load(s.Device); err != nil {
		return m.explain(err)
	}
	return nil
}
