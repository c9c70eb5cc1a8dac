package chvemu

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/vmm"
)

const fullConfig = `{
 "cpus":{"boot_vcpus":2,"max_vcpus":4},
 "memory":{"size":0,"zones":[{"id":"ram","size":536870912,"file":"/ram","shared":true}]},
 "payload":{"kernel":"/vmlinux","initramfs":"/initramfs","cmdline":"console=ttyS0"},
 "disks":[{"id":"root","path":"/root.img","readonly":true,"image_type":"Raw"},
          {"path":"/overlay.img","image_type":"Raw","serial":"s"}],
 "net":[{"id":"net","tap":"tap0","mac":"52:54:00:BE:47:02"}],
 "rng":{"src":"/dev/urandom"},
 "serial":{"mode":"File","file":"/serial"},
 "console":{"mode":"Off"}
}`

func readConfig(raw string) (*vmm.VMConfig, error) {
	var cfg vmm.VMConfig
	if err := decode([]byte(raw), &cfg); err != nil {
		return nil, err
	}
	return &cfg, checkConfig(&cfg)
}

func mustRead(t *testing.T, raw string) *vmm.VMConfig {
	t.Helper()
	cfg, err := readConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// What is printed is read again as the same, which a snapshot depends on.
func TestConfigRoundTrip(t *testing.T) {
	cfg := mustRead(t, fullConfig)
	if err := validate(cfg); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cfg, mustRead(t, string(raw))); diff != "" {
		t.Errorf("printed and read again (-want +got):\n%s", diff)
	}
	if d := cfg.Disks[1]; cfg.Net[0].MAC != "52:54:00:be:47:02" || d.NumQueues != 1 || d.QueueSize != 128 {
		t.Errorf("read %+v", cfg)
	}
}

// Snapshots of state format 4 have a config.json with every field of Cloud
// Hypervisor's.
func TestConfigOfAnOlderSnapshot(t *testing.T) {
	const printed = `{"cpus":{"boot_vcpus":1,"max_vcpus":1,"kvm_hyperv":false,"max_phys_bits":46,"features":{"amx":false},"nested":true,"core_scheduling":"Vm","profile":"Host"},"memory":{"size":0,"mergeable":false,"hotplug_method":"Acpi","shared":false,"hugepages":false,"prefault":false,"reserve":false,"zones":[{"id":"ram","size":536870912,"file":"/ram","shared":true,"hugepages":false,"prefault":false,"reserve":false,"mergeable":false}],"thp":true},"payload":{"kernel":"/vmlinux","cmdline":"quiet","initramfs":"/initramfs"},"disks":[{"id":"overlay","pci_segment":0,"path":"/overlay.img","readonly":false,"direct":false,"num_queues":1,"queue_size":128,"vhost_user":false,"disable_io_uring":false,"disable_aio":false,"backing_files":false,"sparse":true,"image_type":"Raw","lock_granularity":"ByteRange"}],"net":[{"id":"net0","pci_segment":0,"tap":"tap0","mac":"52:54:00:be:47:02","host_mac":"52:54:00:be:47:01","num_queues":2,"queue_size":256,"vhost_user":false,"vhost_mode":"Client","offload_tso":true,"offload_ufo":true,"offload_csum":true}],"rng":{"pci_segment":0,"src":"/dev/urandom"},"serial":{"file":"/serial","mode":"File"},"console":{"mode":"Off","pci_segment":0},"debug_console":{"mode":"Off","iobase":233},"pvpanic":false,"iommu":false,"watchdog":false,"landlock_enable":false}`
	want := &vmm.VMConfig{
		CPUs:    vmm.CPUsConfig{BootVCPUs: 1, MaxVCPUs: 1},
		Memory:  vmm.MemoryConfig{Zones: []vmm.MemoryZone{{ID: "ram", Size: 512 << 20, File: "/ram", Shared: true}}},
		Payload: &vmm.PayloadConfig{Kernel: "/vmlinux", Initramfs: "/initramfs", Cmdline: "quiet"},
		Disks:   []vmm.DiskConfig{{ID: "overlay", Path: "/overlay.img", NumQueues: 1, QueueSize: 128, ImageType: vmm.ImageRaw}},
		Net:     []vmm.NetConfig{{ID: "net0", Tap: "tap0", MAC: "52:54:00:be:47:02", HostMAC: "52:54:00:be:47:01"}},
		RNG:     &vmm.RNGConfig{Src: "/dev/urandom"},
		Serial:  &vmm.ConsoleConfig{Mode: vmm.ConsoleFile, File: "/serial"},
		Console: &vmm.ConsoleConfig{Mode: vmm.ConsoleOff},
	}
	if diff := cmp.Diff(want, mustRead(t, printed)); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

func TestConfigRefused(t *testing.T) {
	for from, to := range map[string]string{
		`"max_vcpus":4`:                `"cores":4`,
		`"size":0,`:                    ``,
		`"mode":"Off"`:                 `"mode":"Tty"`,
		`"file":"/serial"`:             `"socket":"/serial"`,
		`"mode":"File"`:                `"mode":"Socket"`,
		`"path":"/root.img"`:           `"path":null`,
		`"readonly":true`:              `"readonly":1`,
		`"id":"root",`:                 `"num_queues":1e3,`,
		`"image_type":"Raw"},`:         `"image_type":"Qcow2"},`,
		`"52:54:00:BE:47:02"`:          `"52:54:00:BE:47"`,
		`"zones":[`:                    `"zones":[{"id":"a","size":1,"shared":false},`,
		`"cmdline":"console=ttyS0"}`:   `"cmdline":7}`,
		`"net":[`:                      `"net":[null,`,
		`"payload":{`:                  `"payload":[],"load":{`,
		`"rng":{"src":"/dev/urandom"}`: `"rng":{}`,
	} {
		bad := strings.Replace(fullConfig, from, to, 1)
		if bad == fullConfig {
			t.Fatalf("the configuration has no %s", from)
		}
		if cfg, err := readConfig(bad); err == nil {
			t.Errorf("%s in place of %s was read: %+v", to, from, cfg)
		}
	}
	for _, raw := range []string{"", "null", "7", "{", fullConfig + "{}"} {
		if cfg, err := readConfig(raw); err == nil {
			t.Errorf("%q was read: %+v", raw, cfg)
		}
	}
	mustRead(t, strings.Replace(fullConfig, `"cpus"`, `"nobody":{"knows":null},"cpus"`, 1))
}

func TestValidate(t *testing.T) {
	for want, edit := range map[string]func(*vmm.VMConfig){
		"no kernel":               func(c *vmm.VMConfig) { c.Payload = nil },
		"lower than boot CPUs":    func(c *vmm.VMConfig) { c.CPUs.BootVCPUs = 5 },
		"root is not unique":      func(c *vmm.VMConfig) { c.Net[0].ID = "root" },
		"ram is not unique":       func(c *vmm.VMConfig) { c.Disks[1].ID = "ram" },
		"__x is not invalid":      func(c *vmm.VMConfig) { c.Memory.Zones[0].ID = "__x" },
		"PCI segment id: 1":       func(c *vmm.VMConfig) { c.Disks[0].PCISegment = 1 },
		"queue count (3)":         func(c *vmm.VMConfig) { c.Disks[0].NumQueues = 3 },
		"a power of 2":            func(c *vmm.VMConfig) { c.Disks[0].QueueSize = 100 },
		"greater than 2":          func(c *vmm.VMConfig) { c.Disks[0].QueueSize = 2 },
		"serial length (21)":      func(c *vmm.VMConfig) { c.Disks[0].Serial = strings.Repeat("x", 21) },
		"MTU":                     func(c *vmm.VMConfig) { c.Net[0].MTU = 1500 },
		"without a tap and a MAC": func(c *vmm.VMConfig) { c.Net[0].Tap = "" },
		"a MAC address":           func(c *vmm.VMConfig) { c.Net[0].MAC = "" },
	} {
		cfg := mustRead(t, fullConfig)
		edit(cfg)
		if err := validate(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(fullConfig))
	f.Add([]byte(`{"net":[{"mac":null}],"disks":[{"num_queues":1e3}]}`))
	f.Add([]byte(`{"memory":{"size":18446744073709551616}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		cfg, err := readConfig(string(raw))
		if err != nil {
			return
		}
		_ = validate(cfg)
		first, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		again, err := readConfig(string(first))
		if err != nil {
			t.Fatalf("what was printed is not read: %v\n%s", err, first)
		}
		second, err := json.Marshal(again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("printed and read again:\n%s\n%s\n%v", first, second, err)
		}
	})
}
