package chvemu

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/vmm"
)

// Whatever a path or an identifier holds, it is one value of one option.
func TestDiskArgumentsNeedNoEscaping(t *testing.T) {
	d := device{ID: `_disk,0="x"`, Kind: kindDisk, Slot: 5}
	cfg := &vmm.DiskConfig{ID: d.ID, Path: `/a,b="c"`, Serial: "s,t", ReadOnly: true, NumQueues: 1, QueueSize: 128}
	var line commandLine
	line.disk(d, cfg, os.Stdin)
	want := []string{
		"-add-fd", "fd=3,set=5",
		"-blockdev", `{"cache":{"direct":false,"no-flush":false},"discard":"ignore","driver":"raw","file":{"cache":{"direct":false,"no-flush":false},"discard":"ignore","driver":"file","filename":"/dev/fdset/5","locking":"off","read-only":true},"node-name":"blk5","read-only":true}`,
		"-device", `{"addr":"0x5","bus":"pci.0","disable-legacy":"on","discard":false,"drive":"blk5","driver":"virtio-blk-pci","id":"dev5","num-queues":1,"queue-size":128,"rerror":"report","serial":"s,t","werror":"report","write-zeroes":false}`,
	}
	if diff := cmp.Diff(want, line.args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestSlots(t *testing.T) {
	cfg := &vmm.VMConfig{Disks: []vmm.DiskConfig{{ID: "root"}, {}}, Net: []vmm.NetConfig{{}}}
	devices, err := place(cfg)
	want := []device{{"root", kindDisk, 2, false}, {"_disk3", kindDisk, 3, false}, {"_net4", kindNet, 4, false}, {"__rng", kindRNG, 5, false}}
	if err != nil || !slices.Equal(devices, want) || cfg.Disks[1].ID != "_disk3" || cfg.Net[0].ID != "_net4" {
		t.Errorf("devices %v, %v", devices, err)
	}
	for slot := firstSlot + len(devices); slot <= lastSlot; slot++ {
		if got := freeSlot(devices); got != slot {
			t.Fatalf("slot %d, want %d", got, slot)
		}
		devices = append(devices, device{Slot: slot})
	}
	if got := freeSlot(devices); got != 0 {
		t.Errorf("slot %d of a full bus", got)
	}
	if got := devices[8].bdf(); got != "0000:00:0a.0" {
		t.Errorf("address %s", got)
	}
	if _, err := place(&vmm.VMConfig{Disks: make([]vmm.DiskConfig, 30)}); err == nil {
		t.Error("more devices than slots have places")
	}
}

func TestAccelerator(t *testing.T) {
	for setting, want := range map[string]string{"": accelTCG, "tcg": accelTCG, "kvm": accelKVM, "xen": ""} {
		if got, err := accelerator(setting); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %s, %v", setting, got, err)
		}
	}
}

func TestOptions(t *testing.T) {
	good := map[string]options{
		"--api-socket path=/s --event-monitor path=/e -v": {apiSocket: "/s", eventMonitor: "/e", verbose: true},
		"--api-socket=path=/s":                            {apiSocket: "/s"},
		"--version":                                       {version: true},
	}
	for line, want := range good {
		if got, err := parseOptions(strings.Fields(line)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{
		"", "-v", "--nothing", "--api-socket", "--api-socket fd=3", "--api-socket path=", "--api-socket path=/s --event-monitor /e", "--api-socket path=/s file",
	} {
		if got, err := parseOptions(strings.Fields(line)); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
	var out strings.Builder
	if code := Main([]string{"--help"}, &out, &out); code != 0 || !strings.Contains(out.String(), "Usage") {
		t.Errorf("help: code %d, %s", code, out.String())
	}
}
