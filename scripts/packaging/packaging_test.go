package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

type pack struct {
	Name     string
	Contents []struct {
		Src, Dst, Type string
		Expand         bool
		FileInfo       struct{ Mode uint32 } `yaml:"file_info"`
	}
	Scripts map[string]string
}

// A package has what its unit names, and its scripts are scripts.
func TestPackagesAreWhole(t *testing.T) {
	const root = "../.."
	files, err := filepath.Glob("*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatalf("packages: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var p pack
			if err := yaml.Unmarshal(raw, &p); err != nil {
				t.Fatal(err)
			}
			if p.Name+".yaml" != file {
				t.Errorf("its name is %q", p.Name)
			}
			has := map[string]string{} // type by destination
			unit := ""
			for _, c := range p.Contents {
				has[c.Dst] = c.Type + "."
				if strings.Contains(c.Src, "$") != c.Expand {
					t.Errorf("%s: src %q, expand %v", c.Dst, c.Src, c.Expand)
				}
				if c.Expand {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, c.Src)); err != nil {
					t.Error(err)
				}
				if strings.HasSuffix(c.Src, ".service") {
					unit = c.Src
				}
				if raw, err := os.ReadFile(filepath.Join(root, c.Src)); c.Type == "config|noreplace" && !strings.Contains(string(raw), "\nBERTH_LOG_FORMAT=json\n") {
					t.Errorf("%s sets no log format: logs are JSON (%v)", c.Dst, err)
				}
				if c.Type == "config|noreplace" && c.FileInfo.Mode != 0o600 {
					t.Errorf("%s has the mode %o: it holds secrets", c.Dst, c.FileInfo.Mode)
				}
			}
			for when, script := range p.Scripts {
				if out, err := exec.Command("sh", "-n", filepath.Join(root, script)).CombinedOutput(); err != nil {
					t.Errorf("%s: %v: %s", when, err, out)
				}
			}
			if unit == "" {
				return // the client
			}
			if len(p.Scripts) != 3 {
				t.Errorf("scripts: %v", p.Scripts)
			}
			raw, err = os.ReadFile(filepath.Join(root, unit))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(raw)) {
				key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
				value = strings.Fields(value + " -")[0]
				switch key {
				case "ExecStart":
					if has[value] == "" {
						t.Errorf("%s starts %s, which is not in the package", unit, value)
					}
				case "EnvironmentFile":
					if has[value] != "config|noreplace." {
						t.Errorf("%s reads %s, which is no configuration file of the package", unit, value)
					}
				case "Documentation":
					if has[strings.TrimPrefix(value, "file:")] == "" {
						t.Errorf("%s names %s, which is not in the package", unit, value)
					}
				}
			}
		})
	}
}

// A unit's settings are here by section and key; what is set several times is joined.
func readUnit(t *testing.T, name string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../systemd/" + name)
	if err != nil {
		t.Fatal(err)
	}
	out, section := map[string]string{}, ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
			continue
		}
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			key = section + "." + key
			out[key] = strings.TrimSpace(out[key] + " " + value)
		}
	}
	return out
}

// Whatever a daemon lacks at a boot, an address, the time or room on a disk, may take
// longer to come than the few starts that systemd tries by default.
func TestADaemonIsStartedUntilItStarts(t *testing.T) {
	for _, name := range []string{"berth-controlplane.service", "berth-router.service", "berth-hostd.service"} {
		unit := readUnit(t, name)
		if unit["Service.Restart"] != "always" || unit["Unit.StartLimitIntervalSec"] != "0" {
			t.Errorf("%s: Restart=%s, StartLimitIntervalSec=%q in [Unit]", name, unit["Service.Restart"], unit["Unit.StartLimitIntervalSec"])
		}
		// /proc/stat and /proc/sys have the boot's time and the longest queue of a
		// listener, which the runtime and the metrics of a process read.
		if unit["Service.ProcSubset"] != "" {
			t.Errorf("%s has ProcSubset=%s", name, unit["Service.ProcSubset"])
		}
	}
}

// Stores and data directories may be mounts, also of other machines.
func TestAHostWaitsForItsMounts(t *testing.T) {
	after := strings.Fields(readUnit(t, "berth-hostd.service")["Unit.After"])
	if !slices.Contains(after, "remote-fs.target") { // which is after local-fs.target
		t.Errorf("it starts after %q", after)
	}
}
