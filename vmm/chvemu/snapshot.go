package chvemu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/vmm/chvemu/migstream"
)

// Files of a snapshot (vmm/src/migration/mod.rs, vmm/src/memory_manager.rs).
const (
	configFile = "config.json"
	stateFile  = "state.json"
	memoryFile = "memory-ranges"
)

// stateFormat is the version of state.json.
const stateFormat = 1

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

	// Device is QEMU's migration stream without RAM.
	Device []byte `json:"device_state"`

	// ram is memory-ranges, held open for another snapshot of the same pause.
	ram *os.File
}

const engineName = "chvemu"

// dropSaved forgets what was saved of a pause that is over.
func (m *vm) dropSaved() {
	if m.saved != nil && m.saved.ram != nil {
		m.saved.ram.Close()
	}
	m.saved = nil
}

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
	if err := v.save(dir); err != nil {
		return err
	}
	raw, err := json.Marshal(v.vm.saved)
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

// save fills vm.saved, and memory-ranges where RAM is not a shared file. QEMU
// saves a machine once a pause; a second snapshot of the same pause is copied
// from the first, which nothing can have changed since.
func (v *VMM) save(dir string) error {
	inline := !(v.vm.mem.path != "" && v.vm.mem.shared)
	var image *os.File
	if inline {
		f, err := createNew(filepath.Join(dir, memoryFile), fmt.Sprintf("Error creating memory snapshot file %s", quoted(filepath.Join(dir, memoryFile))))
		if err != nil {
			return err
		}
		image = f
	}
	if s := v.vm.saved; s != nil {
		if image == nil {
			return nil
		}
		defer image.Close()
		if err := image.Truncate(int64(s.RAM)); err != nil {
			return err
		}
		return migstream.CopySparse(image, s.ram, int64(s.RAM))
	}
	device, err := v.vm.extract(image)
	if err != nil {
		if image != nil {
			image.Close()
		}
		return err
	}
	zone := ""
	if len(v.config.Memory.Zones) > 0 {
		zone = v.config.Memory.Zones[0].ID
	}
	v.vm.saved = &savedState{
		Engine: engineName, Format: stateFormat, QEMU: v.vm.m.version, Machine: machineType, Accel: v.accel,
		VCPUs: v.config.CPUs.BootVCPUs, RAM: v.vm.mem.size, Zone: zone,
		Serial: v.config.Serial.Mode != "Off", Devices: v.vm.devices, Names: v.vm.names,
		Memory: inline, Device: device, ram: image,
	}
	return nil
}

// extract lets QEMU write the machine's state and takes RAM out of it into an
// image, or expects none in it when there is no image.
func (m *vm) extract(image *os.File) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The larger the pipe, the fewer times the two processes wait for each
	// other. A refusal leaves it as it is.
	_, _ = unix.FcntlInt(r.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	var pages migstream.Pages
	var img *migstream.Image
	if image != nil {
		if img, err = migstream.NewImage(image, m.mem.size); err != nil {
			w.Close()
			return nil, err
		}
		pages = img
	}
	var device bytes.Buffer
	device.Grow(512 << 10)
	split := make(chan error, 1)
	go func() {
		err := migstream.Split(r, &device, migstream.Block{ID: ramBlock, Size: m.mem.size}, pages)
		if err == nil && img != nil {
			err = img.Flush()
		}
		if err != nil {
			_, _ = io.Copy(io.Discard, r) // QEMU must not be left waiting for a reader
		}
		split <- err
	}()
	merr := m.m.migrate(w)
	err = <-split
	if err := errors.Join(merr, err); err != nil {
		return nil, m.m.explain(err)
	}
	return device.Bytes(), nil
}

// migrate writes the machine's state to a file, which it closes.
func (m *machine) migrate(w *os.File) error {
	err := m.prepareMigration()
	if err == nil {
		err = m.command("getfd", map[string]string{"fdname": "state"}, nil, w)
	}
	// Whatever happens, the reader must see the end of the stream.
	w.Close()
	if err != nil {
		return err
	}
	if err := m.command("migrate", map[string]string{"uri": "fd:state"}, nil); err != nil {
		return err
	}
	return m.awaitMigration()
}

// prepareMigration sets what both directions need: RAM that is a shared file
// stays where it is, nothing is slowed down, and the end is told by an event.
func (m *machine) prepareMigration() error {
	select { // of an earlier attempt
	case <-m.migrated:
	default:
	}
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	if err := m.command("migrate-set-capabilities", map[string][]capability{"capabilities": {
		{"x-ignore-shared", true}, {"events", true},
	}}, nil); err != nil {
		return err
	}
	return m.command("migrate-set-parameters", map[string]uint64{"max-bandwidth": 1 << 40}, nil)
}

func (m *machine) awaitMigration() error {
	select {
	case status := <-m.migrated:
		if status == "completed" {
			return nil
		}
		var info struct {
			Error string `json:"error-desc"`
		}
		_ = m.command("query-migrate", nil, &info) // only for its words
		return fmt.Errorf("QEMU: migration %s: %s", status, info.Error)
	case <-m.done:
		return errors.New("QEMU ended")
	}
}
