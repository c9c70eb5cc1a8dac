package chvemu

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/vmm"
)

// machineType is the board. The i440fx has what Cloud Hypervisor's has: one PCI
// bus, each slot of which takes a device at any time by ACPI. The version in its
// name keeps the guest's view and the saved state the same under a newer QEMU.
const machineType = "pc-i440fx-7.2"

// ramBlock is the name of the guest's RAM in QEMU.
const ramBlock = "ram0"

// Slots of the PCI bus that are free for devices. The board has the first two.
const (
	firstSlot = 2
	lastSlot  = 31
)

// ram says what is behind the guest's RAM.
type ram struct {
	size uint64
	// path of the file; empty means anonymous memory.
	path   string
	shared bool
}

// device is one PCI device of the guest and the slot it sits in.
type device struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	Slot int    `json:"slot"`

	// leaving says that the guest was asked to release it.
	leaving bool
}

// Kinds of device.
const (
	kindDisk = "disk"
	kindNet  = "net"
	kindRNG  = "rng"
)

// defaultID is the name of a device without one (next_device_name).
func (d device) defaultID() string { return fmt.Sprintf("_%s%d", d.Kind, d.Slot) }

func (d device) bdf() string { return fmt.Sprintf("0000:00:%02x.0", d.Slot) }

// Names that QEMU knows a device's parts by. Identifiers of the configuration
// may hold characters that QEMU's may not.
func (d device) qdev() string { return fmt.Sprintf("dev%d", d.Slot) }
func (d device) node() string { return fmt.Sprintf("blk%d", d.Slot) }

// pci is the device in QEMU, without what is its kind's own.
func (d device) pci(driver string) map[string]any {
	return map[string]any{
		"driver": driver, "id": d.qdev(), "bus": "pci.0", "addr": fmt.Sprintf("%#x", d.Slot), "disable-legacy": "on",
	}
}

// commandLine collects QEMU's arguments and the files that go with them.
type commandLine struct {
	args  []string
	files []*os.File
}

func (c *commandLine) add(args ...string) { c.args = append(c.args, args...) }

// json adds an option whose value is a JSON object: no path or identifier in it
// needs escaping.
func (c *commandLine) json(option string, value map[string]any) {
	raw, err := json.Marshal(value)
	if err != nil {
		panic(err) // maps of strings, numbers and maps marshal
	}
	c.add(option, string(raw))
}

// file passes a file on and returns its descriptor's number in QEMU.
func (c *commandLine) file(f *os.File) string {
	c.files = append(c.files, f)
	return strconv.Itoa(2 + len(c.files)) // after the standard three
}

// fdset passes a file on so that QEMU opens it by the path that is returned.
func (c *commandLine) fdset(f *os.File, set int) string {
	c.add("-add-fd", fmt.Sprintf("fd=%s,set=%d", c.file(f), set))
	return fmt.Sprintf("/dev/fdset/%d", set)
}

// The size of the cache of translated code, in MB, is a part of the machine's RAM.
const (
	translationsPart = 16
	minTranslations  = 32
	maxTranslations  = 256
)

// base adds what does not depend on the devices.
func (c *commandLine) base(cfg *vmm.VMConfig, mem ram, accel string) {
	c.add("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
	c.add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	c.add("-M", machineType+",memory-backend="+ramBlock+",vmport=off,usb=off,mem-merge=off,dump-guest-core=off")
	// Half of SeaBIOS's time to the kernel, and a quarter of its size in each
	// saved state.
	c.add("-bios", "qboot.rom")
	switch accel {
	case accelKVM:
		c.add("-accel", "kvm", "-cpu", "host")
	default:
		// The translation cache is most of what a machine costs beyond its RAM. Larger
		// machines have larger programs (a compiler in JavaScript): one that does not fit
		// is translated again and again.
		// Without five-level page tables: each cold page costs a walk in software.
		// Without "enhanced rep movsb": kernels clear and copy pages by it where it is
		// there, byte by byte.
		//
		// In a thread of its own each, CPUs of QEMU 7.2 would go on with code that another
		// has changed meanwhile, as TestConformanceTwoCPUsAndAnonymousMemory shows: what is
		// written while it is being translated is missed. Kernels change their own code.
		cacheMB := min(max(minTranslations, mem.size>>20/translationsPart), maxTranslations)
		c.add("-accel", fmt.Sprintf("tcg,thread=single,tb-size=%d", cacheMB), "-cpu", "max,la57=off,erms=off")
	}
	c.add("-smp", fmt.Sprintf("cpus=%d,maxcpus=%d", cfg.CPUs.BootVCPUs, cfg.CPUs.BootVCPUs))
	c.add("-m", fmt.Sprintf("size=%dk", mem.size>>10))
	c.memory(mem)
}

func (c *commandLine) memory(mem ram) {
	o := map[string]any{
		// A file without a name, so that all private RAM is saved the same way.
		"id": ramBlock, "size": mem.size, "qom-type": "memory-backend-memfd", "share": mem.shared,
	}
	if mem.path != "" {
		o["qom-type"], o["mem-path"] = "memory-backend-file", mem.path
	}
	if !mem.shared {
		o["reserve"] = false // QEMU reserves for a shared file in any case
	}
	c.json("-object", o)
}

// payload adds the kernel. A machine that is restored has it in its RAM.
func (c *commandLine) payload(p *vmm.PayloadConfig, accel string) {
	c.add("-kernel", p.Kernel)
	if p.Initramfs != "" {
		c.add("-initrd", p.Initramfs)
	}
	line := p.Cmdline
	if accel == accelTCG {
		line = withoutCX16(withTSC(line, cpuinfoPath))
	}
	if line != "" {
		c.add("-append", line)
	}
}

// withoutCX16 keeps the kernel from using CMPXCHG16B, by which it would allocate
// memory: after it QEMU 7.2 may hold what was in another register for the flags, as
// TestConformanceFlags shows, and the kernel dies of an interrupt that comes before
// the next flags are set. Programs still find the instruction, which some refuse to
// run without. Its number is X86_FEATURE_CX16's in the kernel's cpufeatures.h.
func withoutCX16(line string) string {
	return strings.TrimSpace(line + " clearcpuid=141")
}

// serial adds the serial port, which writes to a file where there is one.
func (c *commandLine) serial(out *os.File) {
	if out == nil {
		c.add("-serial", "none")
		return
	}
	c.add("-chardev", "file,id=serial0,path="+c.fdset(out, serialSet), "-serial", "chardev:serial0")
}

// serialSet is the number of the descriptor set of the serial port's file; those
// of disks are their slots.
const serialSet = 100

func (c *commandLine) rng(d device, cfg *vmm.RNGConfig) {
	name := fmt.Sprintf("rng%d", d.Slot)
	c.json("-object", map[string]any{"qom-type": "rng-random", "id": name, "filename": cfg.Src})
	o := d.pci("virtio-rng-pci")
	o["rng"] = name
	c.json("-device", o)
}

func (c *commandLine) net(d device, cfg *vmm.NetConfig, tap *os.File) {
	name := fmt.Sprintf("net%d", d.Slot)
	c.add("-netdev", fmt.Sprintf("tap,id=%s,fd=%s,vhost=off", name, c.file(tap)))
	o := d.pci("virtio-net-pci")
	o["netdev"], o["mac"], o["romfile"] = name, cfg.MAC, ""
	// Cloud Hypervisor makes a resumed guest announce itself, and so would QEMU. A
	// slot's link needs no announcement, and an emulated guest would answer later
	// for it.
	o["guest_announce"] = false
	c.json("-device", o)
}

func (c *commandLine) disk(d device, cfg *vmm.DiskConfig, image *os.File) {
	c.json("-blockdev", diskNode(d, cfg, c.fdset(image, d.Slot)))
	c.json("-device", diskDevice(d, cfg))
}
