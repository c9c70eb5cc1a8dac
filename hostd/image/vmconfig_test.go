package image

import (
	"bytes"
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
	var got bytes.Buffer
	if err := json.Indent(&got, edited, "", "  "); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/config-edited.json")
	if diff := cmp.Diff(string(want), got.String()+"\n"); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// A config.json is written by a VMM that its guest may have taken over, or comes
// from a store that others write to. No path outside the VM that it names is used,
// because the daemon would open it as root.
func TestNothingThatAStoredConfigurationNamesIsTaken(t *testing.T) {
	raw, err := os.ReadFile("testdata/config.json")
	if err != nil {
		t.Fatal(err)
	}
	const evil = "/etc/shadow"
	for name, change := range map[string]func(doc map[string]any){
		"devices":       func(doc map[string]any) { doc["devices"] = []any{map[string]any{"path": evil}} },
		"user devices":  func(doc map[string]any) { doc["user_devices"] = []any{map[string]any{"socket": evil}} },
		"a file system": func(doc map[string]any) { doc["fs"] = []any{map[string]any{"tag": "t", "socket": evil}} },
		"pmem":          func(doc map[string]any) { doc["pmem"] = []any{map[string]any{"file": evil}} },
		"vsock":         func(doc map[string]any) { doc["vsock"] = map[string]any{"cid": 3, "socket": evil} },
		"a TPM":         func(doc map[string]any) { doc["tpm"] = map[string]any{"socket": evil} },
		"a platform":    func(doc map[string]any) { doc["platform"] = map[string]any{"oem_strings": []any{evil}} },
		"a console":     func(doc map[string]any) { doc["console"] = map[string]any{"mode": "File", "file": evil} },
		"a debug console": func(doc map[string]any) {
			doc["debug_console"] = map[string]any{"mode": "File", "file": evil, "iobase": 233}
		},
		"a serial socket": func(doc map[string]any) { doc["serial"] = map[string]any{"mode": "Socket", "socket": evil} },
		"entropy":         func(doc map[string]any) { doc["rng"] = map[string]any{"src": evil} },
		"a firmware":      func(doc map[string]any) { doc["payload"].(map[string]any)["firmware"] = evil },
		"a vhost socket": func(doc map[string]any) {
			disk := doc["disks"].([]any)[2].(map[string]any)
			disk["vhost_user"], disk["vhost_socket"] = true, evil
		},
		"a descriptor": func(doc map[string]any) {
			doc["net"].([]any)[0].(map[string]any)["fds"] = []any{3}
		},
		"landlock rules": func(doc map[string]any) {
			doc["landlock_enable"], doc["landlock_rules"] = true, []any{map[string]any{"path": evil, "access": "rw"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			plain, err := testTemplate().EditRestoreConfig(raw, VM{Overlay: "/box/overlay"})
			if err != nil {
				t.Fatal(err)
			}
			got, err := testTemplate().EditRestoreConfig(changed(t, raw, change), VM{Overlay: "/box/overlay"})
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%v\n%s", err, cmp.Diff(string(plain), string(got)))
			}
		})
	}
	for name, change := range map[string]func(doc map[string]any){
		"another disk": func(doc map[string]any) {
			doc["disks"] = append(doc["disks"].([]any), map[string]any{"id": "x", "path": evil, "image_type": "Raw"})
		},
		"the overlay twice": func(doc map[string]any) {
			doc["disks"] = append(doc["disks"].([]any), map[string]any{"id": "overlay", "path": evil, "image_type": "Raw"})
		},
		"a layer to write to": func(doc map[string]any) { doc["disks"].([]any)[0].(map[string]any)["readonly"] = false },
		"a disk with backing files": func(doc map[string]any) {
			doc["disks"].([]any)[2].(map[string]any)["image_type"] = "Qcow2"
		},
		"another zone": func(doc map[string]any) {
			m := doc["memory"].(map[string]any)
			m["zones"] = append(m["zones"].([]any), map[string]any{"id": "x", "size": 1 << 30, "file": evil})
		},
		"more memory": func(doc map[string]any) {
			doc["memory"].(map[string]any)["zones"].([]any)[0].(map[string]any)["size"] = 1 << 40
		},
		"more CPUs": func(doc map[string]any) { doc["cpus"].(map[string]any)["max_vcpus"] = 64 },
		"another link": func(doc map[string]any) {
			doc["net"] = append(doc["net"].([]any), map[string]any{"id": "n", "tap": "eth0"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := testTemplate().EditRestoreConfig(changed(t, raw, change), VM{Overlay: "/box/overlay"}); err == nil {
				t.Errorf("taken: %s", got)
			}
		})
	}
}

func changed(t *testing.T, raw []byte, change func(doc map[string]any)) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	change(doc)
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
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
		if _, err := testTemplate().EditRestoreConfig([]byte(from), VM{Overlay: "/box/overlay"}); err == nil {
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
	if err := tpl.WriteRestore(t.TempDir(), VM{Overlay: "/box/overlay"}); !errors.Is(err, ErrCorrupt) {
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
		if err := tpl.WriteRestore(t.TempDir(), VM{Overlay: "/box/overlay"}); err != nil {
			t.Fatal(err)
		}
		if err := spoil(tpl.RAM); err != nil {
			t.Fatal(err)
		}
		if err := tpl.WriteRestore(t.TempDir(), VM{Overlay: "/box/overlay"}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The saved state of a sandbox has its own memory, and the disks that were plugged
// in.
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
		"config.json": plugged, "state.json": "{}", "capture.json": "{}", "overlay.img": "disk",
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
	if err := tpl.WriteRestoreFrom(t.TempDir(), state, vm); errors.Is(err, vmm.ErrDamaged) {
		t.Errorf("what is not there to be attached damages the state: %v", err)
	}
}

// A state that is not whole is told from what may be tried again.
func TestASavedStateThatIsNotWhole(t *testing.T) {
	for name, damage := range map[string]func(file func(string) string) error{
		"no configuration": func(file func(string) string) error { return os.Remove(file("config.json")) },
		"no state":         func(file func(string) string) error { return os.Remove(file("state.json")) },
		"no memory":        func(file func(string) string) error { return os.Remove(file("memory-ranges")) },
		"half a state":     func(file func(string) string) error { return os.WriteFile(file("state.json"), []byte(`{"a":`), 0o600) },
		"half the memory":  func(file func(string) string) error { return os.Truncate(file("memory-ranges"), 1<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			state, tpl := t.TempDir(), testTemplate()
			file := func(name string) string { return filepath.Join(state, name) }
			raw, err := os.ReadFile("testdata/config.json")
			if err == nil {
				err = errors.Join(os.WriteFile(file("config.json"), raw, 0o600), os.WriteFile(file("state.json"), []byte("{}"), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			writeRAM(t, file("memory-ranges"), tpl.MemoryMB)
			vm := VM{Overlay: "/box/overlay", RAM: file("memory-ranges")}
			if err := tpl.WriteRestoreFrom(t.TempDir(), state, vm); err != nil {
				t.Fatal(err)
			}
			if err := damage(file); err != nil {
				t.Fatal(err)
			}
			if err := tpl.WriteRestoreFrom(t.TempDir(), state, vm); !errors.Is(err, vmm.ErrDamaged) {
				t.Errorf("%v, want ErrDamaged", err)
			}
		})
	}
}
