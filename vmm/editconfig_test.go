package vmm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sampleConfig = `{
 "cpus":{"boot_vcpus":1,"max_vcpus":1,"topology":{"packages":1}},
 "memory":{"size":0,"zones":[{"id":"ram","size":536870912,"file":"/a","shared":true,"future_field":18446744073709551615}]},
 "disks":[{"id":"root","path":"/r","readonly":true},{"id":"overlay","path":"/o"}],
 "net":[{"id":"net","tap":"tap0","mac":"52:54:00:be:47:02","host_mac":"52:54:00:be:47:01"}],
 "serial":{"mode":"Off","file":null},
 "new_in_a_later_version":[1,2.5,{"x":null}]
}`

func TestConfigEditKeepsWhatItDoesNotKnow(t *testing.T) {
	e, err := ParseConfig([]byte(sampleConfig))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		e.SetZone("ram", "/b", false), e.SetDiskPath("overlay", "/p"), e.SetNetTap("net", "tap1"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	e.SetSerialFile("/s")
	raw, err := e.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	want := `{
 "cpus":{"boot_vcpus":1,"max_vcpus":1,"topology":{"packages":1}},
 "memory":{"size":0,"zones":[{"id":"ram","size":536870912,"file":"/b","shared":false,"future_field":18446744073709551615}]},
 "disks":[{"id":"root","path":"/r","readonly":true},{"id":"overlay","path":"/p"}],
 "net":[{"id":"net","tap":"tap1","mac":"52:54:00:be:47:02"}],
 "serial":{"mode":"File","file":"/s"},
 "new_in_a_later_version":[1,2.5,{"x":null}]
}`
	if diff := cmp.Diff(normal(t, want), normal(t, string(raw))); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	again, err := OpenConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := again.Config()
	if err != nil || cfg.Memory.Zones[0].File != "/b" || cfg.Net[0].Tap != "tap1" {
		t.Errorf("typed: %+v, %v", cfg, err)
	}
}

// normal decodes with numbers as they are written.
func normal(t *testing.T, raw string) map[string]any {
	t.Helper()
	e, err := ParseConfig([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(e.doc)
	if err != nil {
		t.Fatal(err)
	}
	e, err = ParseConfig(out)
	if err != nil {
		t.Fatal(err)
	}
	return e.doc
}

func TestConfigEditNamesWhatIsMissing(t *testing.T) {
	e, err := ParseConfig([]byte(`{"memory":{"size":1},"disks":[7,{"id":5}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"zone": e.SetZone("ram", "/b", false), "disk": e.SetDiskPath("overlay", "/p"), "net": e.SetNetTap("net", "tap1"),
	} {
		if err == nil {
			t.Errorf("a %s that is not there was set", name)
		}
	}
	for _, raw := range []string{"", "null", "[]", "7", "{"} {
		if _, err := ParseConfig([]byte(raw)); err == nil {
			t.Errorf("%q is taken for a config", raw)
		}
	}
	if _, err := OpenConfig(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a config that is not there was opened")
	}
}
