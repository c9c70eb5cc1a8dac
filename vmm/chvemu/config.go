package chvemu

// The types below print as Cloud Hypervisor v53.0 prints its VmConfig
// (vmm/src/vm_config.rs): every field with its default filled in, and optional
// ones left out. They hold what chvemu supports; the rest is refused when a
// configuration is read.

type vmConfig struct {
	CPUs            cpusConfig             `json:"cpus"`
	Memory          memoryConfig           `json:"memory"`
	Payload         *payloadConfig         `json:"payload,omitempty"`
	RateLimitGroups []rateLimitGroupConfig `json:"rate_limit_groups,omitempty"`
	Disks           []diskConfig           `json:"disks,omitempty"`
	Net             []netConfig            `json:"net,omitempty"`
	RNG             rngConfig              `json:"rng"`
	Serial          consoleConfig          `json:"serial"`
	Console         virtioConsoleConfig    `json:"console"`
	DebugConsole    debugConsoleConfig     `json:"debug_console"`
	PVPanic         bool                   `json:"pvpanic"`
	IOMMU           bool                   `json:"iommu"`
	Watchdog        bool                   `json:"watchdog"`
	LandlockEnable  bool                   `json:"landlock_enable"`
}

type cpusConfig struct {
	BootVCPUs      uint32      `json:"boot_vcpus"`
	MaxVCPUs       uint32      `json:"max_vcpus"`
	KVMHyperV      bool        `json:"kvm_hyperv"`
	MaxPhysBits    uint8       `json:"max_phys_bits"`
	Features       cpuFeatures `json:"features"`
	Nested         bool        `json:"nested"`
	CoreScheduling string      `json:"core_scheduling"`
	Profile        string      `json:"profile"`
}

type cpuFeatures struct {
	AMX bool `json:"amx"`
}

type memoryConfig struct {
	Size          uint64       `json:"size"`
	Mergeable     bool         `json:"mergeable"`
	HotplugMethod string       `json:"hotplug_method"`
	Shared        bool         `json:"shared"`
	Hugepages     bool         `json:"hugepages"`
	Prefault      bool         `json:"prefault"`
	Reserve       bool         `json:"reserve"`
	Zones         []zoneConfig `json:"zones,omitempty"`
	THP           bool         `json:"thp"`
}

type zoneConfig struct {
	ID        string  `json:"id"`
	Size      uint64  `json:"size"`
	File      *string `json:"file,omitempty"`
	Shared    bool    `json:"shared"`
	Hugepages bool    `json:"hugepages"`
	Prefault  bool    `json:"prefault"`
	Reserve   bool    `json:"reserve"`
	Mergeable bool    `json:"mergeable"`
}

// total is the size of the guest's RAM in bytes.
func (m memoryConfig) total() uint64 {
	sum := m.Size
	for _, z := range m.Zones {
		sum += z.Size
	}
	return sum
}

type payloadConfig struct {
	Firmware  *string `json:"firmware,omitempty"`
	Kernel    *string `json:"kernel,omitempty"`
	Cmdline   *string `json:"cmdline,omitempty"`
	Initramfs *string `json:"initramfs,omitempty"`
}

type rateLimitGroupConfig struct {
	ID                string            `json:"id"`
	RateLimiterConfig rateLimiterConfig `json:"rate_limiter_config"`
}

type rateLimiterConfig struct {
	Bandwidth *tokenBucket `json:"bandwidth"`
	Ops       *tokenBucket `json:"ops"`
}

type tokenBucket struct {
	Size         uint64  `json:"size"`
	OneTimeBurst *uint64 `json:"one_time_burst"`
	RefillTime   uint64  `json:"refill_time"`
}

type diskConfig struct {
	ID                *string            `json:"id,omitempty"`
	PCISegment        uint16             `json:"pci_segment"`
	Path              *string            `json:"path,omitempty"`
	ReadOnly          bool               `json:"readonly"`
	Direct            bool               `json:"direct"`
	NumQueues         uint64             `json:"num_queues"`
	QueueSize         uint16             `json:"queue_size"`
	VhostUser         bool               `json:"vhost_user"`
	RateLimitGroup    *string            `json:"rate_limit_group,omitempty"`
	RateLimiterConfig *rateLimiterConfig `json:"rate_limiter_config,omitempty"`
	DisableIOUring    bool               `json:"disable_io_uring"`
	DisableAIO        bool               `json:"disable_aio"`
	Serial            *string            `json:"serial,omitempty"`
	BackingFiles      bool               `json:"backing_files"`
	Sparse            bool               `json:"sparse"`
	ImageType         string             `json:"image_type"`
	LockGranularity   string             `json:"lock_granularity"`

	// limits is QEMU's name of the limiter that RateLimitGroup means.
	limits string
}

type netConfig struct {
	ID          *string `json:"id,omitempty"`
	PCISegment  uint16  `json:"pci_segment"`
	Tap         *string `json:"tap,omitempty"`
	MAC         string  `json:"mac"`
	HostMAC     *string `json:"host_mac,omitempty"`
	MTU         *uint16 `json:"mtu,omitempty"`
	NumQueues   uint64  `json:"num_queues"`
	QueueSize   uint16  `json:"queue_size"`
	VhostUser   bool    `json:"vhost_user"`
	VhostMode   string  `json:"vhost_mode"`
	OffloadTSO  bool    `json:"offload_tso"`
	OffloadUFO  bool    `json:"offload_ufo"`
	OffloadCsum bool    `json:"offload_csum"`
}

type rngConfig struct {
	ID         *string `json:"id,omitempty"`
	PCISegment uint16  `json:"pci_segment"`
	Src        string  `json:"src"`
}

type consoleConfig struct {
	File *string `json:"file,omitempty"`
	Mode string  `json:"mode"`
}

type virtioConsoleConfig struct {
	consoleConfig
	PCISegment uint16 `json:"pci_segment"`
}

type debugConsoleConfig struct {
	Mode   string  `json:"mode"`
	IOBase *uint16 `json:"iobase,omitempty"`
}

// clone returns a copy that shares no list with the original. What is pointed to
// is never changed in place.
func (c *vmConfig) clone() *vmConfig {
	d := *c
	d.Memory.Zones = append([]zoneConfig(nil), c.Memory.Zones...)
	d.RateLimitGroups = append([]rateLimitGroupConfig(nil), c.RateLimitGroups...)
	d.Disks = append([]diskConfig(nil), c.Disks...)
	d.Net = append([]netConfig(nil), c.Net...)
	return &d
}

// disk returns the index of the disk with an id, or -1.
func (c *vmConfig) disk(id string) int {
	for i, d := range c.Disks {
		if d.ID != nil && *d.ID == id {
			return i
		}
	}
	return -1
}

// net returns the index of the network device with an id, or -1.
func (c *vmConfig) net(id string) int {
	for i, n := range c.Net {
		if n.ID != nil && *n.ID == id {
			return i
		}
	}
	return -1
}
