package chvemu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Files of a snapshot (vmm/src/migration/mod.rs, vmm/src/memory_manager.rs).
const (
	configFile = "config.json"
	stateFile  = "state.json"
	memoryFile = "memory-ranges"
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
	Names   int      `json:"names"`
	// Memory says that RAM is in memory-ranges. Otherwise it is the zone's file.
	Memory bool `json:"memory"`

	// Device is a migration stream of QEMU's without RAM.
	Device []byte `json:"device_state"`
}

const engineName = "chvemu"

// urlPath turns the URL of a snapshot into its directory (url_to_path).
func urlPath(url string) (string, *fault) {
	const send = "Failed to send migratable component snapshot"
	path, ok := strings.CutPrefix(url, "file://")
	if !ok {
		return "", fail(failf("Could not extract path from URL: %s", url), send)
	}
	st, err := os.Stat(path)
	if err != nil || !st.IsDir() {
		return "", fail(failf("Destination is not a directory: %s", quoted(path)), send)
	}
	return path, nil
}

// snapshot saves a paused VM (vm_snapshot).
func (v *VMM) snapshot(raw []byte) error {
	r, o := parseObject(raw)
	url := o.stringReq("destination_url")
	if r.err != nil {
		return badJSON(r.err)
	}
	if v.vm == nil {
		return errNotRunning
	}
	v.events.event("vm", "snapshotting")
	if v.vm.state != statePaused {
		return fail(failf("Trying to snapshot while VM is running"), "Cannot snapshot VM", "Failed to snapshot migratable component")
	}
	if d := v.leaving(); d != "" {
		return fail(failf("the guest has not let go of device %s yet", d), "Cannot snapshot VM", "Failed to snapshot migratable component")
	}
	v.events.event("vm", "snapshotted")
	dir, f := urlPath(url)
	if f != nil {
		return fail(f, "Cannot send VM snapshot")
	}
	if err := v.send(dir); err != nil {
		return fail(err, "Cannot send VM snapshot", "Failed to send migratable component snapshot")
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
	if err := writeNew(filepath.Join(dir, configFile), config, "Error creating VM config snapshot file"); err != nil {
		return err
	}
	state, err := createNew(filepath.Join(dir, stateFile), "Error creating VM state snapshot file")
	if err != nil {
		return err
	}
	defer state.Close()
	saved, err := v.save(dir)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	if _, err := state.Write(raw); err != nil {
		return fail(err, "Error writing VM state snapshot")
	}
	return state.Close()
}

func createNew(path, message string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fail(err, message)
	}
	return f, nil
}

func writeNew(path string, raw []byte, message string) error {
	f, err := createNew(path, message)
	if err != nil {
		return err
	}
	if _, err := f.Write(raw); err != nil {
		f.Close()
		return fail(err, "Error writing VM config snapshot")
	}
	return f.Close()
}

// save returns the state, and writes memory-ranges where RAM is not a shared
// file.
func (v *VMM) save(dir string) (*savedState, error) {
	device, err := v.vm.m.saveDevices()
	if err != nil {
		return nil, v.vm.m.explain(err)
	}
	s := &savedState{
		Engine: engineName, Format: stateFormat, QEMU: v.vm.m.version, Machine: machineType, Accel: v.accel,
		VCPUs: v.config.CPUs.BootVCPUs, RAM: v.vm.mem.size,
		Serial: v.config.Serial.Mode != "Off", Devices: v.vm.devices, Names: v.vm.names,
		Memory: !v.vm.mem.shared, Device: device,
	}
	if len(v.config.Memory.Zones) > 0 {
		s.Zone = v.config.Memory.Zones[0].ID
	}
	if !s.Memory {
		return s, nil
	}
	path := filepath.Join(dir, memoryFile)
	image, err := createNew(path, fmt.Sprintf("Error creating memory snapshot file %s", quoted(path)))
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := saveRAM(v.vm.m.cmd.Process.Pid, v.vm.mem.size, v.vm.m.private, image); err != nil {
		return nil, err
	}
	return s, image.Close()
}
