package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefinitionIsRead(t *testing.T) {
	got, err := parseDefinition([]byte(`
name: web
from: base
run:
  - apt-get update
  - |
    echo several
    echo lines
files:
  /etc/motd: "hello\n"
programs: {/usr/lib/berth/guestpg: guestpg}
env: {PORT: "8080"}
start: exec python3 -m http.server $PORT
ready: {port: 8080, cmd: test -e /ready}
memory_mb: 1024
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Definition{
		Name: "web", From: "base", Run: []string{"apt-get update", "echo several\necho lines\n"},
		Files: map[string]string{"/etc/motd": "hello\n"}, Env: map[string]string{"PORT": "8080"},
		Programs: map[string]string{"/usr/lib/berth/guestpg": "guestpg"},
		Start:    "exec python3 -m http.server $PORT",
		Ready:    &Ready{Port: 8080, Cmd: "test -e /ready", TimeoutSeconds: 60},
		MemoryMB: 1024, // the others are base's
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsNotSaidIsInherited(t *testing.T) {
	parent := Definition{
		CPU: 2, MemoryMB: 1024, DiskMB: 4096, Start: "serve", Ready: &Ready{Port: 80, TimeoutSeconds: 9},
		Env:      map[string]string{"A": "parent", "B": "parent"},
		Programs: map[string]string{"/in/its/layer": "guestpg"},
	}
	env := map[string]string{"A": "own", "B": "parent"}
	own := &Ready{Cmd: "true", TimeoutSeconds: 1}
	for name, c := range map[string]struct{ child, want Definition }{
		"everything": {
			Definition{Env: map[string]string{"A": "own"}},
			Definition{CPU: 2, MemoryMB: 1024, DiskMB: 4096, Start: "serve", Ready: parent.Ready, Env: env},
		},
		"but its sizes": {
			Definition{CPU: 1, MemoryMB: 256, DiskMB: 512},
			Definition{CPU: 1, MemoryMB: 256, DiskMB: 512, Start: "serve", Ready: parent.Ready, Env: parent.Env},
		},
		"but its readiness": {
			Definition{CPU: 1, MemoryMB: 256, DiskMB: 512, Ready: own},
			Definition{CPU: 1, MemoryMB: 256, DiskMB: 512, Start: "serve", Ready: own, Env: parent.Env},
		},
		"but its start command, whose readiness is another": {
			Definition{CPU: 1, MemoryMB: 256, DiskMB: 512, Start: "other"},
			Definition{CPU: 1, MemoryMB: 256, DiskMB: 512, Start: "other", Env: parent.Env},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.child.inherit(parent)
			if diff := cmp.Diff(c.want, c.child); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDefinitionMayBeJSON(t *testing.T) {
	got, err := parseDefinition([]byte(`{"name": "web", "from": "base", "cpu": 2}`))
	if err != nil || got.Name != "web" || got.CPU != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestWrongDefinitionsAreRefusedByField(t *testing.T) {
	for name, c := range map[string]struct{ yaml, says string }{
		"empty":                   {"", "empty"},
		"no mapping":              {"- a", "cannot unmarshal"},
		"unknown field":           {"name: a\nfrom: base\ncpus: 2", "cpus"},
		"unknown field inside":    {"name: a\nfrom: base\nready: {prot: 1}", "prot"},
		"wrong type":              {"name: a\nfrom: base\ncpu: two", "two"},
		"two documents":           {"name: a\nfrom: base\n---\nname: b\nfrom: base", "more than one document"},
		"no name":                 {"from: base", `name ""`},
		"name with a slash":       {"name: a/b\nfrom: base", `"a/b"`},
		"name with dots first":    {"name: ..\nfrom: base", `".."`},
		"name in capitals":        {"name: Base\nfrom: base", `"Base"`},
		"name with a NUL":         {"name: \"a\\0\"\nfrom: base", `\x00`},
		"neither from nor boot":   {"name: a", "exactly one"},
		"both from and boot":      {"name: a\nfrom: base\nbootstrap: {suite: bookworm}", "exactly one"},
		"from itself":             {"name: a\nfrom: a", "from itself"},
		"from a path":             {"name: a\nfrom: ../b", `"../b"`},
		"from an image of none":   {"name: a\nfrom: 'ghcr.io/A B'", "from: invalid image reference"},
		"suite with an option":    {"name: a\nbootstrap: {suite: --help}", "--help"},
		"package with an option":  {"name: a\nbootstrap: {suite: bookworm, packages: [-o]}", `"-o"`},
		"package with a comma":    {"name: a\nbootstrap: {suite: bookworm, packages: ['a,b']}", `"a,b"`},
		"empty step":              {"name: a\nfrom: base\nrun: ['']", "run[0]"},
		"relative file":           {"name: a\nfrom: base\nfiles: {a: b}", `"a"`},
		"file with dots":          {"name: a\nfrom: base\nfiles: {/a/../b: b}", `"/a/../b"`},
		"program at no path":      {"name: a\nfrom: base\nprograms: {a: guestpg}", `"a"`},
		"program of a directory":  {"name: a\nfrom: base\nprograms: {/a: ../../etc/shadow}", `"../../etc/shadow"`},
		"program above all":       {"name: a\nfrom: base\nprograms: {/a: ..}", `".."`},
		"program without a name":  {"name: a\nfrom: base\nprograms: {/a: ''}", `""`},
		"program over a file":     {"name: a\nfrom: base\nfiles: {/a: b}\nprograms: {/a: guestpg}", "in files as well"},
		"variable with a dash":    {"name: a\nfrom: base\nenv: {A-B: c}", "A-B"},
		"negative cpu":            {"name: a\nfrom: base\ncpu: -1", "cpu is -1"},
		"little memory":           {"name: a\nfrom: base\nmemory_mb: 8", "memory_mb is 8"},
		"large disk":              {"name: a\nfrom: base\ndisk_mb: 99999999", "disk_mb is 99999999"},
		"ready for nothing":       {"name: a\nfrom: base\nready: {timeout_seconds: 3}", "neither port nor cmd"},
		"port out of range":       {"name: a\nfrom: base\nready: {port: 70000}", "ready.port is 70000"},
		"endless wait":            {"name: a\nfrom: base\nready: {port: 1, timeout_seconds: 99999}", "timeout_seconds is 99999"},
		"an alias that is a bomb": {"name: &a [x,x]\nfrom: base\nrun: [*a]", "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseDefinition([]byte(c.yaml))
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}

func TestEveryFaultIsNamedAtOnce(t *testing.T) {
	_, err := parseDefinition([]byte("name: A\nfrom: base\ncpu: -1\nmemory_mb: 1"))
	for _, want := range []string{"name", "cpu", "memory_mb"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestTemplatesOfTheProjectAreRight(t *testing.T) {
	all, err := ReadDefinitions("../../templates")
	if err != nil {
		t.Fatal(err)
	}
	var base *Definition
	for i := range all {
		if all[i].Name == "base" {
			base = &all[i]
		}
	}
	if base == nil || base.CPU != 1 || base.MemoryMB != 512 || base.Bootstrap == nil {
		t.Fatalf("got %+v", all)
	}
}

func TestTemplateInADirectoryOfAnotherNameIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", DefinitionFile), []byte("name: b\nfrom: base"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDefinitions(dir); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func FuzzParseDefinition(f *testing.F) {
	raw, err := os.ReadFile("../../templates/base/template.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte("name: a\nfrom: base\nready: {port: 1}"))
	f.Add([]byte(`{"name":"a","from":"b","files":{"/x":"y"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := parseDefinition(raw)
		if err != nil {
			return
		}
		if err := d.Validate(); err != nil {
			t.Errorf("parsed, and then refused: %v", err)
		}
		if strings.ContainsAny(d.Name, "/\x00\n") || d.Name == ".." {
			t.Errorf("name %q", d.Name)
		}
	})
}

func TestTemplatesMadeFromEachOtherAreRefused(t *testing.T) {
	write := func(t *testing.T, from map[string]string) string {
		t.Helper()
		dir := t.TempDir()
		for name, from := range from {
			if err := errors.Join(
				os.Mkdir(filepath.Join(dir, name), 0o755),
				os.WriteFile(filepath.Join(dir, name, DefinitionFile), []byte("name: "+name+"\nfrom: "+from+"\n"), 0o644),
			); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	_, err := ReadDefinitions(write(t, map[string]string{"a": "c", "b": "a", "c": "b", "d": "a"}))
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "a is made from c is made from b is made from a") {
		t.Errorf("three in a ring: %v", err)
	}
	all, err := ReadDefinitions(write(t, map[string]string{"a": "elsewhere", "b": "a", "c": "b", "d": "a"}))
	if err != nil || len(all) != 4 {
		t.Errorf("four in a tree: %d, %v", len(all), err)
	}
}
