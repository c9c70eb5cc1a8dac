package chvemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cloud/berth/vmm"
)

// stateFormat is the version of state.json, and of the machine that it is the
// state of: 2 has a CPU without five-level page tables, and a network device
// that does not have its guest announce itself; 3 a CPU without enhanced rep
// movsb, and a guest that was told its counter's frequency; 4 a guest
// whose kernel does not use CMPXCHG16B.
const stateFormat = 4

// savedState is state.json: the machine without its RAM, and what must be the
// same for it to be restored.
type savedState struct {
	Engine  string `json:"engine"`
	Format  int    `json:"format"`
	QEMU    string `json:"qemu"`
	Machine string `json:"machine"`
	Accel   string `json:"accel"`

	VCPUs   uint32   `json:"vcpus"`
	RAM     uint64   `json:"ram"`
	Zone    string   `json:"zone"`
	Serial  bool     `json:"serial"`
	Devices []device `json:"devices"`
	// Memory says that RAM is in memory-ranges. Otherwise it is the zone's file.
	Memory bool `json:"memory"`

	// Device is a migration stream of QEMU's without RAM.
	Device []byte `json:"device_state"`
}

const engineName = vmm.KindChvemu

// snapshotDir turns the URL of a snapshot into its directory (url_to_path).
func snapshotDir(url string) (string, error) {
	path, ok := strings.CutPrefix(url, "file://")
	if !ok {
		return "", fmt.Errorf("could not extract path from URL: %s", url)
	}
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return "", fmt.Errorf("destination is not a directory: %s", path)
	}
	return path, nil
}

// snapshot saves a paused VM (vm_snapshot).
func (v *VMM) snapshot(cfg vmm.SnapshotConfig) error {
	if v.vm == nil {
		return errNotRunning
	}
	v.events.event("vm", "snapshotting")
	if v.vm.state != vmm.StatePaused {
		return errors.New("cannot snapshot VM: trying to snapshot while VM is running")
	}
	for _, d := range v.vm.devices {
		if d.leaving {
			return fmt.Errorf("cannot snapshot VM: the guest has not let go of device %s yet", d.ID)
		}
	}
	v.events.event("vm", "snapshotted")
	dir, err := snapshotDir(cfg.DestinationURL)
	if err == nil {
		err = v.send(dir)
	}
	if err != nil {
		return fmt.Errorf("cannot send VM snapshot: %w", err)
	}
	return nil
}

// send writes the three files. None of them may be there before: a snapshot is
// never written over another (create_new in Transportable for Vm).
func (v *VMM) send(dir string) error {
	config, err := json.Marshal(v.config)
	if err != nil {
		return err
	}
	if err := writeNew(filepath.Join(dir, vmm.FileConfig), config); err != nil {
		return fmt.Errorf("error creating VM config snapshot file: %w", err)
	}
	saved, err := v.save(dir)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	if err := writeNew(filepath.Join(dir, vmm.FileState), raw); err != nil {
		return fmt.Errorf("error creating VM state snapshot file: %w", err)
	}
	return nil
}

func createNew(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func writeNew(path string, raw []byte) error {
	f, err := createNew(path)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Close())
}

// save returns the state, and writes memory-ranges where RAM is not a shared
// file.
func (v *VMM) save(dir string) (*savedState, error) {
	m, mem := v.vm.m, v.vm.mem
	device, err := m.saveDevices()
	if err != nil {
		return nil, m.explain(err)
	}
	s := &savedState{
		Engine: engineName, Format: stateFormat, QEMU: m.version, Machine: machineType, Accel: v.accel,
		VCPUs: v.config.CPUs.BootVCPUs, RAM: mem.size, Zone: zoneID(v.config),
		Serial: v.config.Serial.Mode != vmm.ConsoleOff, Devices: v.vm.devices,
		Memory: !mem.shared, Device: device,
	}
	if !s.Memory {
		return s, nil
	}
	image, err := createNew(filepath.Join(dir, vmm.FileMemory))
	if err != nil {
		return nil, fmt.Errorf("error creating memory snapshot file: %w", err)
	}
	err = saveRAM(m.cmd.Process.Pid, mem.size, m.private, image)
	return s, errors.Join(err, image.Close())
}

// zoneID names the zone of RAM, if it is one.
func zoneID(c *vmm.VMConfig) string {
	if len(c.Memory.Zones) == 0 {
		return ""
	}
	return c.Memory.Zones[0].ID
}
