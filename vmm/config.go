package vmm

// The types below are the parts of Cloud Hypervisor v53.0's VmConfig that Berth
// uses (vmm/src/vm_config.rs, vmm/src/api/openapi/cloud-hypervisor.yaml), with
// the names and the meaning of an absent field as there. Fields of a config.json
// that are not here are kept by EditConfig.

// VMConfig defines a VM.
type VMConfig struct {
	CPUs            CPUsConfig             `json:"cpus"`
	Memory          MemoryConfig           `json:"memory"`
	Payload         *PayloadConfig         `json:"payload,omitempty"`
	RateLimitGroups []RateLimitGroupConfig `json:"rate_limit_groups,omitempty"`
	Disks           []DiskConfig           `json:"disks,omitempty"`
	Net             []NetConfig            `json:"net,omitempty"`
	RNG             *RNGConfig             `json:"rng,omitempty"`
	Balloon         *BalloonConfig         `json:"balloon,omitempty"`
	Serial          *ConsoleConfig         `json:"serial,omitempty"`
	Console         *ConsoleConfig         `json:"console,omitempty"`
	Vsock           *VsockConfig           `json:"vsock,omitempty"`
	PVPanic         bool                   `json:"pvpanic,omitempty"`
	Watchdog        bool                   `json:"watchdog,omitempty"`
	LandlockEnable  bool                   `json:"landlock_enable,omitempty"`
}

// CPUsConfig counts the virtual processors.
type CPUsConfig struct {
	BootVCPUs uint32 `json:"boot_vcpus"`
	MaxVCPUs  uint32 `json:"max_vcpus"`
}

// MemoryConfig is the guest's RAM: either Size, or Zones with Size zero.
type MemoryConfig struct {
	Size          uint64       `json:"size"`
	Mergeable     bool         `json:"mergeable,omitempty"`
	HotplugMethod string       `json:"hotplug_method,omitempty"`
	HotplugSize   *uint64      `json:"hotplug_size,omitempty"`
	Shared        bool         `json:"shared,omitempty"`
	Hugepages     bool         `json:"hugepages,omitempty"`
	HugepageSize  *uint64      `json:"hugepage_size,omitempty"`
	Prefault      bool         `json:"prefault,omitempty"`
	Reserve       bool         `json:"reserve,omitempty"`
	Zones         []MemoryZone `json:"zones,omitempty"`
	// THP is true when absent.
	THP *bool `json:"thp,omitempty"`
}

// MemoryZone is a part of the RAM with a backing of its own.
type MemoryZone struct {
	ID   string `json:"id"`
	Size uint64 `json:"size"`
	// File backs the zone; empty means anonymous memory.
	File string `json:"file,omitempty"`
	// Shared maps File so that the guest's writes reach it; otherwise they are
	// private to the VM.
	Shared       bool    `json:"shared"`
	Hugepages    bool    `json:"hugepages,omitempty"`
	HugepageSize *uint64 `json:"hugepage_size,omitempty"`
	HostNUMANode *uint32 `json:"host_numa_node,omitempty"`
	HotplugSize  *uint64 `json:"hotplug_size,omitempty"`
	Prefault     bool    `json:"prefault,omitempty"`
	Reserve      bool    `json:"reserve,omitempty"`
	Mergeable    bool    `json:"mergeable,omitempty"`
}

// PayloadConfig is what the VM boots: a PVH vmlinux, or a firmware.
type PayloadConfig struct {
	Firmware  string `json:"firmware,omitempty"`
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
	Direct     bool   `json:"direct,omitempty"`
	NumQueues  int    `json:"num_queues,omitempty"`
	QueueSize  uint16 `json:"queue_size,omitempty"`
	// RateLimitGroup names one of VMConfig.RateLimitGroups.
	RateLimitGroup    string             `json:"rate_limit_group,omitempty"`
	RateLimiterConfig *RateLimiterConfig `json:"rate_limiter_config,omitempty"`
	Serial            string             `json:"serial,omitempty"`
	BackingFiles      bool               `json:"backing_files,omitempty"`
	// Sparse is true when absent: discards punch holes.
	Sparse          *bool  `json:"sparse,omitempty"`
	ImageType       string `json:"image_type,omitempty"`
	LockGranularity string `json:"lock_granularity,omitempty"`
}

// NetConfig is a virtio network device on a tap that exists.
type NetConfig struct {
	ID         string `json:"id,omitempty"`
	PCISegment uint16 `json:"pci_segment,omitempty"`
	Tap        string `json:"tap,omitempty"`
	IP         string `json:"ip,omitempty"`
	Mask       string `json:"mask,omitempty"`
	MAC        string `json:"mac,omitempty"`
	HostMAC    string `json:"host_mac,omitempty"`
	MTU        uint16 `json:"mtu,omitempty"`
	NumQueues  int    `json:"num_queues,omitempty"`
	QueueSize  uint16 `json:"queue_size,omitempty"`

	RateLimiterConfig *RateLimiterConfig `json:"rate_limiter_config,omitempty"`
	// The offloads are on when absent.
	OffloadTSO  *bool `json:"offload_tso,omitempty"`
	OffloadUFO  *bool `json:"offload_ufo,omitempty"`
	OffloadCsum *bool `json:"offload_csum,omitempty"`
}

// RNGConfig is the guest's entropy source.
type RNGConfig struct {
	Src string `json:"src"`
}

// BalloonConfig is a memory balloon; sizes are in bytes.
type BalloonConfig struct {
	Size              uint64 `json:"size"`
	DeflateOnOOM      bool   `json:"deflate_on_oom,omitempty"`
	FreePageReporting bool   `json:"free_page_reporting,omitempty"`
}

// Modes of a console.
const (
	ConsoleOff    = "Off"
	ConsoleNull   = "Null"
	ConsoleTTY    = "Tty"
	ConsolePTY    = "Pty"
	ConsoleFile   = "File"
	ConsoleSocket = "Socket"
)

// ConsoleConfig is the serial port or the virtio console.
type ConsoleConfig struct {
	Mode   string `json:"mode"`
	File   string `json:"file,omitempty"`
	Socket string `json:"socket,omitempty"`
}

// VsockConfig is a virtio socket device.
type VsockConfig struct {
	CID    uint32 `json:"cid"`
	Socket string `json:"socket"`
	ID     string `json:"id,omitempty"`
}

// RateLimitGroupConfig is a limit that several disks share.
type RateLimitGroupConfig struct {
	ID                string            `json:"id"`
	RateLimiterConfig RateLimiterConfig `json:"rate_limiter_config"`
}

// RateLimiterConfig bounds a device's bytes and operations.
type RateLimiterConfig struct {
	Bandwidth *TokenBucket `json:"bandwidth,omitempty"`
	Ops       *TokenBucket `json:"ops,omitempty"`
}

// TokenBucket refills Size tokens in RefillTime milliseconds.
type TokenBucket struct {
	Size         uint64  `json:"size"`
	OneTimeBurst *uint64 `json:"one_time_burst,omitempty"`
	RefillTime   uint64  `json:"refill_time"`
}
