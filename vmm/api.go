package vmm

import (
	"context"
	"net/http"
)

// State is what vm.info says of a VM.
type State string

// The states of a VM. One that is defined but not booted, and one that was shut
// down, is Created; a restored one is Paused.
const (
	StateCreated  State = "Created"
	StateRunning  State = "Running"
	StatePaused   State = "Paused"
	StateShutdown State = "Shutdown"
)

// Pong is the answer of vmm.ping.
type Pong struct {
	BuildVersion string   `json:"build_version"`
	Version      string   `json:"version"`
	PID          int      `json:"pid"`
	Features     []string `json:"features"`
}

// VMInfo is the answer of vm.info.
type VMInfo struct {
	Config VMConfig `json:"config"`
	State  State    `json:"state"`
	// MemoryActualSize is in bytes.
	MemoryActualSize uint64 `json:"memory_actual_size"`
	// DeviceTree is absent until the VM is booted or restored.
	DeviceTree map[string]DeviceNode `json:"device_tree,omitempty"`
}

// DeviceNode is one device of a VM.
type DeviceNode struct {
	ID       string   `json:"id"`
	Parent   string   `json:"parent,omitempty"`
	Children []string `json:"children"`
	PCIBDF   string   `json:"pci_bdf,omitempty"`
}

// PCIDevice says where a hot-plugged device was put.
type PCIDevice struct {
	ID  string `json:"id"`
	BDF string `json:"bdf"`
}

// SnapshotConfig is the request of vm.snapshot.
type SnapshotConfig struct {
	// DestinationURL is file:// and a directory that exists and holds no
	// snapshot. FileURL makes one.
	DestinationURL string `json:"destination_url"`
}

// Ways for a restore to fill the guest's RAM from memory-ranges. Zones that are
// shared files are mapped as they are and need neither.
const (
	MemoryRestoreCopy     = "Copy"
	MemoryRestoreOnDemand = "OnDemand"
)

// RestoreConfig is the request of vm.restore.
type RestoreConfig struct {
	SourceURL string `json:"source_url"`
	Prefault  bool   `json:"prefault,omitempty"`
	// MemoryRestoreMode is MemoryRestoreCopy when empty.
	MemoryRestoreMode string `json:"memory_restore_mode,omitempty"`
	// Resume runs the guest at once; otherwise it is Paused.
	Resume bool `json:"resume,omitempty"`
}

// FileURL returns the URL of a directory in the form that vm.snapshot and
// vm.restore take: the path as it is, without escaping.
func FileURL(dir string) string { return "file://" + dir }

// Ping asks for the VMM's versions and process id.
func (c *Client) Ping(ctx context.Context) (Pong, error) {
	var out Pong
	return out, c.call(ctx, http.MethodGet, "vmm.ping", nil, &out)
}

// Create defines a VM. The VMM checks little of it until Boot.
func (c *Client) Create(ctx context.Context, cfg VMConfig) error {
	return c.call(ctx, http.MethodPut, "vm.create", cfg, nil)
}

// Boot starts the VM that Create defined.
func (c *Client) Boot(ctx context.Context) error { return c.put(ctx, "vm.boot", nil) }

// Info describes the VM. It is an *Error with status 404 when there is none.
func (c *Client) Info(ctx context.Context) (VMInfo, error) {
	var out VMInfo
	return out, c.call(ctx, http.MethodGet, "vm.info", nil, &out)
}

// Pause stops the virtual processors and devices.
func (c *Client) Pause(ctx context.Context) error { return c.put(ctx, "vm.pause", nil) }

// Resume runs a paused VM.
func (c *Client) Resume(ctx context.Context) error { return c.put(ctx, "vm.resume", nil) }

// Snapshot writes config.json, state.json and, for RAM that is not a shared
// file, memory-ranges into a directory. The VM must be paused.
func (c *Client) Snapshot(ctx context.Context, cfg SnapshotConfig) error {
	return c.put(ctx, "vm.snapshot", cfg)
}

// Restore makes a VM from a snapshot. When it fails there is no VM.
func (c *Client) Restore(ctx context.Context, cfg RestoreConfig) error {
	return c.put(ctx, "vm.restore", cfg)
}

// Shutdown cuts the power of the VM; its definition stays.
func (c *Client) Shutdown(ctx context.Context) error { return c.put(ctx, "vm.shutdown", nil) }

// Reboot cuts the power and boots again.
func (c *Client) Reboot(ctx context.Context) error { return c.put(ctx, "vm.reboot", nil) }

// Delete shuts the VM down if it runs and forgets it. No VM is no error.
func (c *Client) Delete(ctx context.Context) error { return c.put(ctx, "vm.delete", nil) }

// PowerButton presses the ACPI power button.
func (c *Client) PowerButton(ctx context.Context) error { return c.put(ctx, "vm.power-button", nil) }

// AddDisk adds a disk. The answer is empty when the VM is not booted yet.
func (c *Client) AddDisk(ctx context.Context, disk DiskConfig) (PCIDevice, error) {
	var out PCIDevice
	return out, c.call(ctx, http.MethodPut, "vm.add-disk", disk, &out)
}

// RemoveDevice asks the guest to let go of a device. It returns before the guest
// has done so.
func (c *Client) RemoveDevice(ctx context.Context, id string) error {
	return c.put(ctx, "vm.remove-device", map[string]string{"id": id})
}

// ShutdownVMM deletes the VM and ends the VMM's process.
func (c *Client) ShutdownVMM(ctx context.Context) error { return c.put(ctx, "vmm.shutdown", nil) }

func (c *Client) put(ctx context.Context, op string, in any) error {
	return c.call(ctx, http.MethodPut, op, in, nil)
}
