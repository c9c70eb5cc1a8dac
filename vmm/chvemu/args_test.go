package chvemu

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever a path or an identifier holds, it is one value of one option.
func TestDiskArgumentsNeedNoEscaping(t *testing.T) {
	id, path, serial := `_disk,0="x"`, `/a,b="c"`, "s,t"
	d := device{ID: id, Kind: "disk", Slot: 5}
	cfg := &diskConfig{ID: &id, Path: &path, Serial: &serial, ReadOnly: true, NumQueues: 1, QueueSize: 128, Sparse: true}
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

func TestRateLimits(t *testing.T) {
	id := "d"
	d := device{ID: id, Kind: "disk", Slot: 4}
	own := &diskConfig{ID: &id, RateLimiterConfig: &rateLimiterConfig{Bandwidth: &tokenBucket{Size: 1 << 20, RefillTime: 100}, Ops: &tokenBucket{Size: 0, RefillTime: 100}}}
	objects := diskObjects(d, own)
	if len(objects) != 1 {
		t.Fatalf("%d limiters, want 1", len(objects))
	}
	raw, err := json.Marshal(objects[0])
	if err != nil || string(raw) != `{"id":"limits-blk4","limits":{"bps-total":10485760},"qom-type":"throttle-group"}` {
		t.Errorf("limiter %s, %v", raw, err)
	}
	if top := topNode(d, own); top != "thr4" || diskDevice(d, own)["drive"] != "thr4" || len(diskNodes(d, own, "/x")) != 2 {
		t.Errorf("the limiter is not between the disk and its image: %s", top)
	}
	shared := &diskConfig{ID: &id, limits: "limits0"}
	if len(diskObjects(d, shared)) != 0 || diskNodes(d, shared, "/x")[1]["throttle-group"] != "limits0" {
		t.Error("a shared limiter is not used")
	}
}

func TestSlots(t *testing.T) {
	m := &vm{}
	for slot := firstSlot; slot <= lastSlot; slot++ {
		if got := m.freeSlot(); got != slot {
			t.Fatalf("slot %d, want %d", got, slot)
		}
		m.devices = append(m.devices, device{ID: slotAddr(device{Slot: slot}), Slot: slot})
	}
	if got := m.freeSlot(); got != 0 {
		t.Errorf("slot %d of a full bus", got)
	}
	if got := m.devices[8].bdf(); got != "0000:00:0a.0" {
		t.Errorf("address %s", got)
	}
	ids := map[string]bool{"_disk0": true}
	if a, b := m.nameDevice(nil, "_disk", ids), m.nameDevice(nil, "_disk", ids); a != "_disk1" || b != "_disk2" {
		t.Errorf("names %s, %s", a, b)
	}
}

func TestAccelerator(t *testing.T) {
	dir := t.TempDir()
	with, without := filepath.Join(dir, "with"), filepath.Join(dir, "without")
	for path, flags := range map[string]string{with: "vmx", without: "sse"} {
		if err := os.WriteFile(path, []byte("flags\t: "+flags+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ setting, cpuinfo, want, err string }{
		{"", with, accelTCG, ""},
		{"tcg", with, accelTCG, ""},
		{"auto", without, accelTCG, ""},
		{"kvm", without, "", "neither vmx nor svm"},
		{"xen", with, "", "it may be tcg, kvm or auto"},
	} {
		got, err := accelerator(c.setting, c.cpuinfo)
		if got != c.want || (c.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %s, %v", c.setting, got, err)
		}
	}
}

func TestOptions(t *testing.T) {
	good := map[string]options{
		"--api-socket path=/s --event-monitor path=/e -v": {apiSocket: "/s", eventMonitor: "/e", verbosity: 1},
		"--api-socket=/s -vv --log-file /l -v":            {apiSocket: "/s", logFile: "/l", verbosity: 3},
		"--api-socket path=/s --seccomp false":            {apiSocket: "/s"},
		"-V":                                              {version: true},
		"--help":                                          {help: true},
	}
	for line, want := range good {
		if got, err := parseOptions(strings.Fields(line)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{
		"", "--nothing", "--api-socket", "--api-socket fd=3", "--event-monitor /e", "--api-socket path=", "--seccomp maybe", "file", "-x",
	} {
		if got, err := parseOptions(strings.Fields(line)); err == nil {
			t.Errorf("%q: %+v", line, got)
		}
	}
}
