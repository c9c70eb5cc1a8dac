package chvemu

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const fullConfig = `{
 "cpus":{"boot_vcpus":2,"max_vcpus":4},
 "memory":{"size":0,"zones":[{"id":"ram","size":536870912,"file":"/ram","shared":true}]},
 "payload":{"kernel":"/vmlinux","initramfs":"/initramfs","cmdline":"console=ttyS0"},
 "rate_limit_groups":[{"id":"slow","rate_limiter_config":{"bandwidth":{"size":1000,"refill_time":100}}}],
 "disks":[{"id":"root","path":"/root.img","readonly":true,"image_type":"Raw"},
          {"path":"/overlay.img","image_type":"Raw","rate_limit_group":"slow","serial":"s"}],
 "net":[{"id":"net","tap":"tap0","mac":"52:54:00:BE:47:02","mtu":1400}],
 "serial":{"mode":"File","file":"/serial"},
 "console":{"mode":"Off"}
}`

func mustParse(t *testing.T, raw string) *vmConfig {
	t.Helper()
	cfg, refused, err := parseConfig([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if refused != nil {
		t.Fatal(refused)
	}
	return cfg
}

// What is printed is read again as the same, which a snapshot depends on.
func TestConfigRoundTrip(t *testing.T) {
	cfg := mustParse(t, fullConfig)
	if _, f := cfg.validate(); f != nil {
		t.Fatal(f)
	}
	first, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(mustParse(t, string(first)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(first), string(second)); diff != "" {
		t.Errorf("printed and read again (-want +got):\n%s", diff)
	}
	if cfg.Net[0].MAC != "52:54:00:be:47:02" || cfg.Disks[1].ID != nil || !cfg.Disks[1].Sparse || cfg.CPUs.MaxPhysBits != 46 {
		t.Errorf("read %+v", cfg)
	}
	if a, b := mustParse(t, `{"console":{"mode":"Off"},"net":[{"tap":"t"}]}`), mustParse(t, `{"console":{"mode":"Off"},"net":[{"tap":"t"}]}`); a.Net[0].MAC == b.Net[0].MAC {
		t.Error("two devices without a MAC address got the same")
	}
}

// chvemu refuses what it lacks; nothing is taken silently.
func TestConfigRefusesWhatItLacks(t *testing.T) {
	base := func(extra string) string { return `{"console":{"mode":"Off"},` + extra + `}` }
	cases := map[string]string{
		"console mode Tty":       `{}`,
		"serial mode Socket":     base(`"serial":{"mode":"Socket","socket":"/s"}`),
		"serial mode Pty":        base(`"serial":{"mode":"Pty"}`),
		"debug_console":          base(`"debug_console":{"mode":"File","file":"/x"}`),
		"vsock":                  base(`"vsock":{"cid":3,"socket":"/s"}`),
		"balloon":                base(`"balloon":{"size":1}`),
		"fs":                     base(`"fs":[]`),
		"platform":               base(`"platform":{}`),
		"pvpanic":                base(`"pvpanic":true`),
		"watchdog":               base(`"watchdog":true`),
		"landlock_enable":        base(`"landlock_enable":true`),
		"cpu topology":           base(`"cpus":{"boot_vcpus":1,"max_vcpus":1,"topology":{}}`),
		"amx":                    base(`"cpus":{"boot_vcpus":1,"max_vcpus":1,"features":{"amx":true}}`),
		"memory hotplug_size":    base(`"memory":{"size":1,"hotplug_size":2}`),
		"hugepages":              base(`"memory":{"size":1,"hugepages":true}`),
		"mergeable memory":       base(`"memory":{"size":1,"mergeable":true}`),
		"more than one memory":   base(`"memory":{"size":0,"zones":[{"id":"a","size":1},{"id":"b","size":1}]}`),
		"host_numa_node":         base(`"memory":{"size":0,"zones":[{"id":"a","size":1,"host_numa_node":0}]}`),
		"payload firmware":       base(`"payload":{"firmware":"/f"}`),
		"image_type Unknown":     base(`"disks":[{"path":"/x"}]`),
		"image_type Qcow2":       base(`"disks":[{"path":"/x","image_type":"Qcow2"}]`),
		"vhost_user disks":       base(`"disks":[{"path":"/x","image_type":"Raw","vhost_user":true}]`),
		"iommu":                  base(`"disks":[{"path":"/x","image_type":"Raw","iommu":true}]`),
		"pci_device_id":          base(`"disks":[{"path":"/x","image_type":"Raw","pci_device_id":7}]`),
		"one_time_burst":         base(`"disks":[{"path":"/x","image_type":"Raw","rate_limiter_config":{"ops":{"size":1,"refill_time":1,"one_time_burst":1}}}]`),
		"a rate limiter":         base(`"net":[{"tap":"t","rate_limiter_config":{}}]`),
		"the tap's address":      base(`"net":[{"tap":"t","ip":"10.0.0.1","mask":"255.0.0.0"}]`),
		"without a tap's name":   base(`"net":[{}]`),
		"pair of network queues": base(`"net":[{"tap":"t","num_queues":4}]`),
		"queue_size other":       base(`"net":[{"tap":"t","queue_size":512}]`),
	}
	for want, raw := range cases {
		_, refused, err := parseConfig([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if refused == nil || !strings.Contains(refused.Error(), want) {
			t.Errorf("%s: refused with %v", want, refused)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(fullConfig))
	f.Add([]byte(`{"net":[{"mac":null}],"disks":[{"num_queues":1e3}]}`))
	f.Add([]byte(`{"memory":{"size":18446744073709551616}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		cfg, refused, err := parseConfig(raw)
		if err != nil || refused != nil {
			return
		}
		_, _ = cfg.validate()
		first, err := json.Marshal(cfg)
		if err != nil {
			t.Fatal(err)
		}
		again, refused, err := parseConfig(first)
		if err != nil || refused != nil {
			t.Fatalf("what was printed is not read: %v %v\n%s", err, refused, first)
		}
		second, err := json.Marshal(again)
		if err != nil || string(first) != string(second) {
			t.Fatalf("printed and read again:\n%s\n%s\n%v", first, second, err)
		}
	})
}
