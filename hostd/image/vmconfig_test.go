package image

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/vmm"
)

func testTemplate() Template {
	return Template{
		Name: "base", CPU: 2, MemoryMB: 512, DiskMB: 10240,
		Kernel: "/store/vmlinux", Initramfs: "/store/initramfs.cpio",
		Layers: []string{"/store/root", "/store/step"}, RAM: "/store/ram",
	}
}

// writeRAM makes a RAM file of the right size.
func writeRAM(t *testing.T, path string, mb int) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, int64(mb)<<20)); err != nil {
		t.Fatal(err)
	}
}

func TestColdBootConfiguration(t *testing.T) {
	got := testTemplate().VMConfig(VM{Overlay: "/box/overlay", RAM: "/box/ram", Serial: "/box/serial.log"})
	want := vmm.VMConfig{
		CPUs:   vmm.CPUsConfig{BootVCPUs: 2, MaxVCPUs: 2},
		Memory: vmm.MemoryConfig{Zones: []vmm.MemoryZone{{ID: "ram", Size: 512 << 20, File: "/box/ram", Shared: true}}},
		Payload: &vmm.PayloadConfig{
			Kernel: "/store/vmlinux", Initramfs: "/store/initramfs.cpio", Cmdline: cmdline + " berth.lower=2",
		},
		Disks: []vmm.DiskConfig{
			{ID: "layer0", Path: "/store/root", ReadOnly: true, ImageType: "Raw"},
			{ID: "layer1", Path: "/store/step", ReadOnly: true, ImageType: "Raw"},
			{ID: "overlay", Path: "/box/overlay", ImageType: "Raw"},
		},
		Net:     []vmm.NetConfig{{ID: "net0", Tap: "tap0", MAC: "52:54:00:be:47:02"}},
		RNG:     &vmm.RNGConfig{Src: "/dev/urandom"},
		Serial:  &vmm.ConsoleConfig{Mode: "File", File: "/box/serial.log"},
		Console: &vmm.ConsoleConfig{Mode: "Off"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConsoleIsOffWithoutALog(t *testing.T) {
	if got := testTemplate().VMConfig(VM{}); got.Serial.Mode != vmm.ConsoleOff {
		t.Errorf("got %+v", got.Serial)
	}
}

// TestRestoreConfigurationIsEdited edits a config.json with every field that
// Cloud Hypervisor v53.0 writes (vmm/src/vm_config.rs).
func TestRestoreConfigurationIsEdited(t *testing.T) {
	raw, err := os.ReadFile("testdata/config.json")
	if err != nil {
		t.Fatal(err)
	}
	edited, err := testTemplate().EditRestoreConfig(raw, VM{Overlay: "/box/overlay", Serial: "/box/serial.log"})
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	for from, to := range map[string]*map[string]any{string(raw): &want, string(edited): &got} {
		if err := json.Unmarshal([]byte(from), to); err != nil {
			t.Fatal(err)
		}
	}
	zone := want["memory"].(map[string]any)["zones"].([]any)[0].(map[string]any)
	zone["file"], zone["shared"] = "/store/ram", false
	payload := want["payload"].(map[string]any)
	payload["kernel"], payload["initramfs"] = "/store/vmlinux", "/store/initramfs.cpio"
	disks := want["disks"].([]any)
	disks[0].(map[string]any)["path"] = "/store/root"
	disks[1].(map[string]any)["path"] = "/store/step"
	disks[2].(map[string]any)["path"] = "/box/overlay"
	delete(want["net"].([]any)[0].(map[string]any), "host_mac")
	want["serial"] = map[string]any{"mode": "File", "file": "/box/serial.log"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestConfigurationOfAnotherShapeIsRefused(t *testing.T) {
	raw, err := os.ReadFile("testdata/config.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{
		"no JSON":    "{",
		"no zone":    strings.Replace(string(raw), `"id":"ram"`, `"id":"mem0"`, 1),
		"no layer":   strings.Replace(string(raw), `"id":"layer1"`, `"id":"_disk1"`, 1),
		"no overlay": strings.Replace(string(raw), `"id":"overlay"`, `"id":"_disk2"`, 1),
		"no payload": strings.Replace(string(raw), `"payload":`, `"load":`, 1),
		"no network": strings.Replace(string(raw), `"id":"net0"`, `"id":"_net1"`, 1),
	} {
		if _, err := testTemplate().EditRestoreConfig([]byte(from), VM{}); err == nil {
			t.Errorf("%s: edited", name)
		}
	}
}

func TestRestoreDirectory(t *testing.T) {
	raw, err := os.ReadFile("testdata/config.json")
	if err != nil {
		t.Fatal(err)
	}
	tpl := testTemplate()
	tpl.SnapshotDir = t.TempDir()
	tpl.RAM = filepath.Join(t.TempDir(), "ram")
	writeRAM(t, tpl.RAM, tpl.MemoryMB)
	for name, content := range map[string]string{"config.json": string(raw), "state.json": "state", "memory-ranges": "ranges"} {
		if err := os.WriteFile(filepath.Join(tpl.SnapshotDir, name), []byte(content), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := tpl.WriteRestore(dir, VM{Overlay: "/box/overlay"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"state.json": "state", "memory-ranges": "ranges"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil || !strings.Contains(string(got), "/box/overlay") {
		t.Errorf("config.json: %s, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(tpl.SnapshotDir, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(tpl.SnapshotDir, "config.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tpl.SnapshotDir, "config.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := tpl.WriteRestore(t.TempDir(), VM{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged configuration: %v", err)
	}
	for name, spoil := range map[string]func(string) error{
		"a RAM file that is cut off": func(path string) error { return os.Truncate(path, 1<<20) },
		"no RAM file":                os.Remove,
	} {
		if err := os.WriteFile(filepath.Join(tpl.SnapshotDir, "config.json"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
		writeRAM(t, tpl.RAM, tpl.MemoryMB)
		if err := tpl.WriteRestore(t.TempDir(), VM{}); err != nil {
			t.Fatal(err)
		}
		if err := spoil(tpl.RAM); err != nil {
			t.Fatal(err)
		}
		if err := tpl.WriteRestore(t.TempDir(), VM{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A state that a sandbox was saved in brings its own memory, and the disks that
// were plugged in.
func TestRestoreDirectoryOfASavedState(t *testing.T) {
	raw, err := os.ReadFile("testdata/config.json")
	if err != nil {
		t.Fatal(err)
	}
	plugged := strings.Replace(string(raw), `"disks":[`, `"disks":[{"id":"vol-1","path":"/old","serial":"vol-1","image_type":"Raw"},`, 1)
	if plugged == string(raw) {
		t.Fatal("the example has no disks")
	}
	state, tpl := t.TempDir(), testTemplate()
	for name, content := range map[string]string{
		"config.json": plugged, "state.json": "state", "capture.json": "{}", "overlay.img": "disk",
	} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(content), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	writeRAM(t, filepath.Join(state, "memory-ranges"), tpl.MemoryMB)
	dir := t.TempDir()
	vm := VM{Overlay: "/box/overlay", RAM: state + "/memory-ranges", Disks: map[string]string{"vol-1": "/volumes/vol-1"}}
	if err := tpl.WriteRestoreFrom(dir, state, vm); err != nil {
		t.Fatal(err)
	}
	var got vmm.VMConfig
	edited, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err == nil {
		err = json.Unmarshal(edited, &got)
	}
	if err != nil {
		t.Fatal(err)
	}
	if z := got.Memory.Zones[0]; z.File != vm.RAM || z.Shared {
		t.Errorf("zone = %+v", z)
	}
	if d := got.Disks[0]; d.Path != "/volumes/vol-1" || d.Serial != "vol-1" {
		t.Errorf("plugged disk = %+v", d)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("%d entries, %v; want the three of a snapshot", len(entries), err)
	}
	vm.Disks = map[string]string{"vol-2": "/volumes/vol-2"}
	if err := tpl.WriteRestoreFrom(t.TempDir(), state, vm); err == nil {
		t.Error("a disk that the state does not have was taken")
	}
	if err := tpl.WriteRestoreFrom(t.TempDir(), t.TempDir(), vm); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no state: %v", err)
	}
}
