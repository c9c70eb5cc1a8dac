package vmm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// savedState is state.json as v53.0 writes it: each component's state is JSON in
// a string (Snapshot and SnapshotData in vm-migration/src/lib.rs,
// MemoryManagerSnapshotData in vmm/src/memory_manager.rs).
func savedState(ranges string) string {
	inner := `{"memory_ranges":{"data":[` + ranges + `]},"guest_ram_mappings":[{"gpa":0,"size":4096,"slot":0,"zone_id":"ram","file_offset":0}],` +
		`"start_of_device_area":18446744073709551615,"boot_ram":8192}`
	quoted, _ := json.Marshal(inner)
	return `{"snapshots":{"cpu-manager":{"snapshots":{},"snapshot_data":{"state":"{\"n\":18446744073709551615}"}},` +
		`"memory-manager":{"snapshots":{},"snapshot_data":{"state":` + string(quoted) + `}}},"snapshot_data":{"state":"{}"}}`
}

func TestDetachMemoryEmptiesTheListOfRanges(t *testing.T) {
	engine := Engine{Kind: KindCloudHypervisor}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(dir, FileState))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	write(FileState, savedState(`{"gpa":0,"length":4096},{"gpa":4294967296,"length":4096}`))
	write(FileMemory, strings.Repeat("x", 8192))
	if err := DetachMemory(engine, dir); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Snapshots map[string]struct {
			Data struct{ State string } `json:"snapshot_data"`
		} `json:"snapshots"`
		Data json.RawMessage `json:"snapshot_data"`
	}
	if err := json.Unmarshal([]byte(read()), &got); err != nil {
		t.Fatal(err)
	}
	memory := got.Snapshots["memory-manager"].Data.State
	if !strings.Contains(memory, `"memory_ranges":{"data":[]}`) {
		t.Errorf("state of the memory: %s", memory)
	}
	// All else is as it was, numbers of 64 bits too.
	for _, want := range []string{`"start_of_device_area":18446744073709551615`, `"zone_id":"ram"`, `"boot_ram":8192`} {
		if !strings.Contains(memory, want) {
			t.Errorf("state of the memory lacks %s: %s", want, memory)
		}
	}
	if cpu := got.Snapshots["cpu-manager"].Data.State; cpu != `{"n":18446744073709551615}` {
		t.Errorf("state of the CPUs: %s", cpu)
	}
	before := read()
	if err := DetachMemory(engine, dir); err != nil || read() != before {
		t.Errorf("a second time: %v", err)
	}
}

func TestDetachMemoryLeavesAloneWhatNeedsNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileState)
	shared := savedState("")
	if err := os.WriteFile(path, []byte(shared), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{KindCloudHypervisor, KindChvemu} {
		if err := DetachMemory(Engine{Kind: kind}, dir); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != shared {
		t.Errorf("state of shared RAM was changed: %s %v", raw, err)
	}
}

// A VMM that was broken out of writes what it likes, and the daemon reads it.
func TestDescriptionsWithoutEndAreRefused(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int64{FileConfig: maxConfig, FileState: maxState} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(size+1), f.Close()); err != nil { // zeros, which take no room
			t.Fatal(err)
		}
	}
	_, config := ReadConfig(dir)
	_, edit := OpenConfig(filepath.Join(dir, FileConfig))
	state := DetachMemory(Engine{Kind: KindCloudHypervisor}, dir)
	for name, err := range map[string]error{"ReadConfig": config, "OpenConfig": edit, "DetachMemory": state} {
		if err == nil || !strings.Contains(err.Error(), "is larger than") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Another layout than the one that was read in the source is refused, not guessed.
func TestDetachMemoryRefuses(t *testing.T) {
	for name, state := range map[string]string{
		"no JSON":         `{`,
		"no parts":        `{"snapshot_data":null}`,
		"no memory":       `{"snapshots":{}}`,
		"no state":        `{"snapshots":{"memory-manager":{"snapshots":{}}}}`,
		"a state as JSON": `{"snapshots":{"memory-manager":{"snapshot_data":{"state":{"memory_ranges":{"data":[]}}}}}}`,
		"another size":    savedState(fmt.Sprintf(`{"gpa":0,"length":%d}`, 1<<30)),
		"no image":        savedState(`{"gpa":0,"length":4096}`),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, FileState), []byte(state), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := DetachMemory(Engine{Kind: KindCloudHypervisor}, dir); err == nil {
				t.Error("it was taken")
			}
			if raw, err := os.ReadFile(filepath.Join(dir, FileState)); err != nil || string(raw) != state {
				t.Errorf("it was changed: %s %v", raw, err)
			}
		})
	}
}
