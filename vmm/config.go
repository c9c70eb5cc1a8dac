package vmm

// The types below are the parts of Cloud Hypervisor v53.0's VmConfig that Berth
// uses (vmm/src/vm_config.rs, vmm/src/api/openapi/cloud-hypervisor.yaml), with
// the names and the meaning of an absent field as there. Fields of a config.json
// that are not here are kept by EditConfig.

// VMConfig defines a VM.
type VMConfig struct {
	CPUs    CPUsConfig     `json:"cpus"`
	Memory  MemoryConfig   `json:"memory"`
	Payload *PayloadConfig `json:"payload,omitempty"`
	Disks   []DiskConfig   `json:"disks,omitempty"`
	Net     []NetConfig    `json:"net,omitempty"`
	RNG     *RNGConfig     `json:"rng,omitempty"`
	Serial  *ConsoleConfig `json:"serial,omitempty"`
	Console *ConsoleConfig `json:"console,omitempty"`
}

// CPUsConfig counts the virtual processors.
type CPUsConfig struct {
	BootVCPUs uint32 `json:"boot_vcpus"`
	MaxVCPUs  uint32 `json:"max_vcpus"`
}

// MemoryConfig is the guest's RAM: either Size, or Zones with Size zero.
type MemoryConfig struct {
	Size  uint64       `json:"size"`
	Zones []MemoryZone `json:"zones,omitempty"`
}

// MemoryZone is a part of the RAM with a backing of its own.
type MemoryZone struct {
	ID   string `json:"id"`
	Size uint64 `json:"size"`
	// File backs the zone; empty means anonymous memory.
	File string `json:"file,omitempty"`
	// Shared maps File so that the guest's writes reach it; otherwise they are
	// private to the VM.
	Shared bool `json:"shared"`
}

// PayloadConfig is what the VM boots: a PVH vmlinux.
type PayloadConfig struct {
	Kernel    string `json:"kernel,omitempty"`
	Cmdline   string `json:"cmdline,omitempty"`
	Initramfs string `json:"initramfs,omitempty"`
}

// ImageRaw is the image type of every disk here. Saying it keeps the VMM from
// guessing the type from bytes that the guest wrote.
const ImageRaw = "Raw"

// DiskConfig is a virtio block device.
type DiskConfig struct {
	// ID names the device; the VMM makes one up when it is empty.
	ID         string `json:"id,omitempty"`
	PCISegment uint16 `json:"pci_segment,omitempty"`
	Path       string `json:"path,omitempty"`
	ReadOnly   bool   `json:"readonly,omitempty"`
	NumQueues  int    `json:"num_queues,omitempty"`
	QueueSize  uint16 `json:"queue_size,omitempty"`
	Serial     string `json:"serial,omitempty"`
	ImageType  string `json:"image_type,omitempty"`
}

// NetConfig is a virtio network device on a tap that exists.
type NetConfig struct {
	ID  string `json:"id,omitempty"`
	Tap string `json:"tap,omitempty"`
	MAC string `json:"mac,omitempty"`
	// HostMAC is the tap's own address; the VMM fills it in.
	HostMAC string `json:"host_mac,omitempty"`
	MTU     uint16 `json:"mtu,omitempty"`
}

// RNGConfig is the guest's entropy source.
type RNGConfig struct {
	Src string `json:"src"`
}

// Modes of a console.
const (
	ConsoleOff  = "Off"
	ConsoleFile = "File"
)

// ConsoleConfig is the serial port or the virtio console.
type ConsoleConfig struct {
	Mode string `json:"mode"`
	File string `json:"file,omitempty"`
}
