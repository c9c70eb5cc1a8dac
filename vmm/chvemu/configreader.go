package chvemu

import (
	"crypto/rand"
	"fmt"
	"net"
)

var consoleModes = []string{"Off", "Pty", "Tty", "File", "Socket", "Null"}

// parseConfig reads a VmConfig. The first error is about its JSON (answered with
// 400, as serde's errors are); refused is about what chvemu lacks (500).
func parseConfig(raw []byte) (cfg *vmConfig, refused *fault, err error) {
	r, o := parseObject(raw)
	if r.err != nil {
		return nil, nil, r.err
	}
	u := &refusals{}
	cfg = readConfig(o, u)
	return cfg, u.fault, r.err
}

// refusals collects the first thing that is asked for and not supported.
type refusals struct{ fault *fault }

func (u *refusals) when(bad bool, format string, args ...any) {
	if bad && u.fault == nil {
		u.fault = unsupported(fmt.Sprintf(format, args...))
	}
}

func readConfig(o object, u *refusals) *vmConfig {
	c := &vmConfig{
		CPUs:           readCPUs(o, u),
		Memory:         readMemory(o, u),
		Payload:        readPayload(o, u),
		RNG:            rngConfig{Src: "/dev/urandom"},
		DebugConsole:   readDebugConsole(o, u),
		PVPanic:        o.boolOr("pvpanic", false),
		IOMMU:          o.boolOr("iommu", false),
		Watchdog:       o.boolOr("watchdog", false),
		LandlockEnable: o.boolOr("landlock_enable", false),
	}
	u.when(c.PVPanic, "pvpanic")
	u.when(c.IOMMU, "iommu")
	u.when(c.Watchdog, "watchdog")
	u.when(c.LandlockEnable, "landlock_enable")
	for _, key := range []string{
		"balloon", "generic_vhost_user", "fs", "pmem", "devices", "user_devices", "vdpa", "vsock",
		"pvmemcontrol", "numa", "rtc", "pci_segments", "platform", "tpm", "landlock_rules", "ivshmem",
	} {
		u.when(o.present(key), "%s", key)
	}
	if list, ok := o.listOpt("rate_limit_groups"); ok {
		for _, g := range list {
			c.RateLimitGroups = append(c.RateLimitGroups, readRateLimitGroup(g, u))
		}
	}
	if list, ok := o.listOpt("disks"); ok {
		for _, d := range list {
			c.Disks = append(c.Disks, readDisk(d, u))
		}
	}
	if list, ok := o.listOpt("net"); ok {
		for _, n := range list {
			c.Net = append(c.Net, readNet(n, u))
		}
	}
	if rng, ok := o.object("rng"); ok {
		c.RNG = rngConfig{Src: rng.stringReq("src")}
		c.RNG.ID, c.RNG.PCISegment = readPCI(rng, u)
	}
	c.Serial = consoleConfig{Mode: "Null"}
	if s, ok := o.object("serial"); ok {
		c.Serial = readConsole(s)
	}
	u.when(c.Serial.Mode != "Off" && c.Serial.Mode != "Null" && c.Serial.Mode != "File", "serial mode %s", c.Serial.Mode)
	c.Console = virtioConsoleConfig{consoleConfig: consoleConfig{Mode: "Tty"}}
	if s, ok := o.object("console"); ok {
		c.Console.consoleConfig = readConsole(s)
		_, c.Console.PCISegment = readPCI(s, u)
	}
	u.when(c.Console.Mode != "Off", "console mode %s (the default is Tty; Off is supported)", c.Console.Mode)
	return c
}

func readCPUs(o object, u *refusals) cpusConfig {
	c := cpusConfig{BootVCPUs: 1, MaxVCPUs: 1, MaxPhysBits: 46, Nested: true, CoreScheduling: "Vm", Profile: "Host"}
	k, ok := o.object("cpus")
	if !ok {
		return c
	}
	c.BootVCPUs = uint32(k.uintReq("boot_vcpus", maxU32))
	c.MaxVCPUs = uint32(k.uintReq("max_vcpus", maxU32))
	c.KVMHyperV = k.boolOr("kvm_hyperv", false)
	c.MaxPhysBits = uint8(k.uintOr("max_phys_bits", 46, maxU8))
	c.Nested = k.boolOr("nested", true)
	c.CoreScheduling = k.variantOr("core_scheduling", "Vm", "Vm", "Vcpu", "Off")
	if f, ok := k.object("features"); ok {
		c.Features.AMX = f.boolOr("amx", false)
	}
	if _, ok := k.get("profile"); ok {
		c.Profile = k.stringReq("profile")
	}
	u.when(c.KVMHyperV, "kvm_hyperv")
	u.when(c.Features.AMX, "amx")
	u.when(c.Profile != "Host", "cpu profile %s", c.Profile)
	u.when(k.present("topology"), "cpu topology")
	u.when(k.present("affinity"), "cpu affinity")
	return c
}

func readMemory(o object, u *refusals) memoryConfig {
	c := memoryConfig{Size: 512 << 20, HotplugMethod: "Acpi", THP: true}
	m, ok := o.object("memory")
	if !ok {
		return c
	}
	c.Size = m.uintReq("size", maxU64)
	c.Mergeable = m.boolOr("mergeable", false)
	c.HotplugMethod = m.variantOr("hotplug_method", "Acpi", "Acpi", "VirtioMem")
	c.Shared = m.boolOr("shared", false)
	c.Hugepages = m.boolOr("hugepages", false)
	c.Prefault = m.boolOr("prefault", false)
	c.Reserve = m.boolOr("reserve", false)
	c.THP = m.boolOr("thp", true)
	if list, ok := m.listOpt("zones"); ok {
		c.Zones = []zoneConfig{}
		for _, z := range list {
			c.Zones = append(c.Zones, readZone(z, u))
		}
	}
	for _, key := range []string{"hotplug_size", "hotplugged_size", "hugepage_size"} {
		_ = m.uintOpt(key, maxU64)
		u.when(m.present(key), "memory %s", key)
	}
	u.when(c.Hugepages, "hugepages")
	u.when(c.Mergeable, "mergeable memory")
	u.when(len(c.Zones) > 1, "more than one memory zone")
	return c
}

func readZone(z object, u *refusals) zoneConfig {
	c := zoneConfig{
		ID:        z.stringReq("id"),
		Size:      z.uintReq("size", maxU64),
		File:      z.stringOpt("file"),
		Shared:    z.boolOr("shared", false),
		Hugepages: z.boolOr("hugepages", false),
		Prefault:  z.boolOr("prefault", false),
		Reserve:   z.boolOr("reserve", false),
		Mergeable: z.boolOr("mergeable", false),
	}
	for _, key := range []string{"hotplug_size", "hotplugged_size", "hugepage_size", "host_numa_node"} {
		_ = z.uintOpt(key, maxU64)
		u.when(z.present(key), "memory zone %s", key)
	}
	u.when(c.Hugepages, "hugepages")
	u.when(c.Mergeable, "mergeable memory")
	return c
}

func readPayload(o object, u *refusals) *payloadConfig {
	p, ok := o.objectOpt("payload")
	if !ok {
		return nil
	}
	c := &payloadConfig{
		Firmware:  p.stringOpt("firmware"),
		Kernel:    p.stringOpt("kernel"),
		Cmdline:   p.stringOpt("cmdline"),
		Initramfs: p.stringOpt("initramfs"),
	}
	u.when(c.Firmware != nil && c.Kernel == nil, "payload firmware")
	for _, key := range []string{"igvm", "host_data", "fw_cfg_config"} {
		u.when(p.present(key), "payload %s", key)
	}
	return c
}

func readDebugConsole(o object, u *refusals) debugConsoleConfig {
	port := uint16(0xe9)
	c := debugConsoleConfig{Mode: "Off", IOBase: &port}
	if d, ok := o.object("debug_console"); ok {
		if _, ok := d.require("mode"); ok {
			c.Mode = d.variantOr("mode", "", consoleModes...)
		}
		c.IOBase = nil
		if v := d.uintOpt("iobase", maxU16); v != nil {
			p := uint16(*v)
			c.IOBase = &p
		}
	}
	u.when(c.Mode != "Off", "debug_console")
	return c
}

func readConsole(s object) consoleConfig {
	c := consoleConfig{File: s.stringOpt("file")}
	_ = s.stringOpt("socket")
	if _, ok := s.require("mode"); ok {
		c.Mode = s.variantOr("mode", "", consoleModes...)
	}
	return c
}

func readRateLimitGroup(g object, u *refusals) rateLimitGroupConfig {
	c := rateLimitGroupConfig{}
	if _, ok := g.get("id"); ok {
		c.ID = g.stringReq("id")
	}
	if l, ok := g.object("rate_limiter_config"); ok {
		c.RateLimiterConfig = readRateLimiter(l, u)
	}
	return c
}

// readRateLimiter reads the one type that refuses fields it does not know
// (RateLimiterConfig in virtio-devices/src/lib.rs).
func readRateLimiter(l object, u *refusals) rateLimiterConfig {
	for key := range l.m {
		if key != "bandwidth" && key != "ops" {
			l.r.failf("unknown field `%s`, expected `bandwidth` or `ops`", l.name(key))
		}
	}
	bucket := func(key string) *tokenBucket {
		b, ok := l.objectOpt(key)
		if !ok {
			return nil
		}
		t := &tokenBucket{
			Size:         b.uintReq("size", maxU64),
			OneTimeBurst: b.uintOpt("one_time_burst", maxU64),
			RefillTime:   b.uintReq("refill_time", maxU64),
		}
		u.when(t.OneTimeBurst != nil && *t.OneTimeBurst != 0, "a one_time_burst")
		return t
	}
	return rateLimiterConfig{Bandwidth: bucket("bandwidth"), Ops: bucket("ops")}
}

func readDisk(d object, u *refusals) diskConfig {
	c := diskConfig{
		Path:            d.stringOpt("path"),
		ReadOnly:        d.boolOr("readonly", false),
		Direct:          d.boolOr("direct", false),
		NumQueues:       d.uintOr("num_queues", 1, maxU64),
		QueueSize:       uint16(d.uintOr("queue_size", 128, maxU16)),
		VhostUser:       d.boolOr("vhost_user", false),
		RateLimitGroup:  d.stringOpt("rate_limit_group"),
		DisableIOUring:  d.boolOr("disable_io_uring", false),
		DisableAIO:      d.boolOr("disable_aio", false),
		Serial:          d.stringOpt("serial"),
		BackingFiles:    d.boolOr("backing_files", false),
		Sparse:          d.boolOr("sparse", true),
		ImageType:       d.variantOr("image_type", "Unknown", "FixedVhd", "Qcow2", "Raw", "Vhdx", "Unknown"),
		LockGranularity: d.variantOr("lock_granularity", "ByteRange", "ByteRange", "Full"),
	}
	c.ID, c.PCISegment = readPCI(d, u)
	if l, ok := d.objectOpt("rate_limiter_config"); ok {
		v := readRateLimiter(l, u)
		c.RateLimiterConfig = &v
	}
	_ = d.stringOpt("vhost_socket")
	u.when(c.VhostUser || d.present("vhost_socket"), "vhost_user disks")
	u.when(d.present("queue_affinity"), "queue_affinity")
	u.when(c.ImageType != "Raw", "disk image_type %s (Raw is supported, and must be said)", c.ImageType)
	u.when(c.QueueSize > 1024, "a disk queue_size above 1024")
	return c
}

func readNet(n object, u *refusals) netConfig {
	c := netConfig{
		Tap:         n.stringOpt("tap"),
		NumQueues:   n.uintOr("num_queues", 2, maxU64),
		QueueSize:   uint16(n.uintOr("queue_size", 256, maxU16)),
		VhostUser:   n.boolOr("vhost_user", false),
		VhostMode:   n.variantOr("vhost_mode", "Client", "Client", "Server"),
		OffloadTSO:  n.boolOr("offload_tso", true),
		OffloadUFO:  n.boolOr("offload_ufo", true),
		OffloadCsum: n.boolOr("offload_csum", true),
	}
	c.ID, c.PCISegment = readPCI(n, u)
	if _, ok := n.get("mac"); ok {
		c.MAC = n.mac("mac")
	} else {
		c.MAC = randomMAC()
	}
	if n.present("host_mac") {
		m := n.mac("host_mac")
		c.HostMAC = &m
	}
	if v := n.uintOpt("mtu", maxU16); v != nil {
		m := uint16(*v)
		c.MTU = &m
	}
	u.when(c.Tap == nil, "a network device without a tap's name")
	u.when(c.VhostUser || n.present("vhost_socket"), "vhost_user network devices")
	u.when(n.present("fds"), "network devices by file descriptor")
	u.when(n.present("ip") || n.present("mask"), "setting the tap's address")
	u.when(n.present("rate_limiter_config"), "a rate limiter on a network device")
	u.when(c.NumQueues > 2, "more than one pair of network queues")
	u.when(c.QueueSize != 256, "a network queue_size other than 256")
	return c
}

// readPCI reads the fields that every PCI device has (PciDeviceCommonConfig).
func readPCI(o object, u *refusals) (id *string, segment uint16) {
	id = o.stringOpt("id")
	segment = uint16(o.uintOr("pci_segment", 0, maxU16))
	u.when(o.boolOr("iommu", false), "iommu")
	_ = o.uintOpt("pci_device_id", maxU8)
	u.when(o.present("pci_device_id"), "pci_device_id")
	return id, segment
}

// randomMAC makes a locally administered unicast address, as
// MacAddr::local_random in net_util/src/mac.rs does.
func randomMAC() string {
	var hw [6]byte
	_, _ = rand.Read(hw[:])
	hw[0] = hw[0]&^1 | 2
	return net.HardwareAddr(hw[:]).String()
}
