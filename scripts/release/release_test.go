package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestABillOfMaterials(t *testing.T) {
	info := &debug.BuildInfo{
		GoVersion: "go1.26.8", Path: "example.com/m/cmd/p", Main: debug.Module{Path: "example.com/m", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.com/Z", Version: "v1.0.0", Sum: "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
			{Path: "example.com/m/api", Version: "v0.0.0", Replace: &debug.Module{Path: "./api", Version: "(devel)"}},
			{Path: "example.com/a", Version: "v2.0.0+incompatible"},
		},
		Settings: []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "-ldflags", Value: "-s"}},
	}
	when := time.Unix(1_700_000_000, 0).UTC()
	raw, err := sbom(info, "p", "v1.2.3", when)
	if err != nil {
		t.Fatal(err)
	}
	var got bill
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	var refs []string
	for _, c := range got.Components {
		refs = append(refs, c.Ref)
	}
	const want = "pkg:golang/example.com/a@v2.0.0+incompatible pkg:golang/example.com/m/api@v1.2.3 pkg:golang/example.com/z@v1.0.0 pkg:golang/std@1.26.8"
	if strings.Join(refs, " ") != want {
		t.Errorf("components %s", refs)
	}
	if h := got.Components[2].Hashes; len(h) != 1 || h[0].Content != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("hashes %v", h)
	}
	if got.Metadata.Timestamp != "2023-11-14T22:13:20Z" || got.Metadata.Component.Ref != "pkg:golang/example.com/m@v1.2.3#cmd/p" || len(got.Metadata.Properties) != 1 {
		t.Errorf("metadata %+v", got.Metadata)
	}
	info.Deps[0].Sum = "h1:!"
	if _, err := sbom(info, "p", "v1.2.3", when); err == nil {
		t.Error("a sum that is none")
	}
}

// smallProgram is a Go program. This one itself would take a minute to compress.
func smallProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", "m", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -tags=nomsgpack", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "m"))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A release is the same bytes again, and sha256sum accepts its list.
func TestAReleaseIsReproducible(t *testing.T) {
	raw := smallProgram(t)
	t.Chdir("../..") // LICENSE
	build := t.TempDir()
	for _, program := range []string{"berth", "hostd"} {
		path := filepath.Join(build, "linux-amd64", program)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, raw, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	made := func() string {
		to := t.TempDir()
		for _, name := range []string{"x.deb", "SHA256SUMS.sig"} {
			if err := os.WriteFile(filepath.Join(to, name), []byte(name), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := finish(options{build: build, to: to, version: "v1.2.3", when: time.Unix(1_700_000_000, 0).UTC(), extra: []string{"scripts/install.sh"}}); err != nil {
			t.Fatal(err)
		}
		return to
	}
	a, b := made(), made()
	list, err := os.ReadFile(filepath.Join(a, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(list)) {
		names = append(names, strings.TrimSpace(line[66:]))
	}
	if got := strings.Join(names, " "); got != "berth_linux_amd64.cdx.json berth_linux_amd64.tar.gz hostd_linux_amd64.cdx.json install.sh x.deb" {
		t.Errorf("it lists %s", got)
	}
	check := exec.Command("sha256sum", "--check", "--strict", sumsFile)
	check.Dir = a
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	again, err := os.ReadFile(filepath.Join(b, sumsFile))
	if err != nil || !bytes.Equal(list, again) {
		t.Errorf("another time it is\n%s%v, not\n%s", again, err, list)
	}
	if err := finish(options{build: t.TempDir(), to: a, version: "v1"}); err == nil {
		t.Error("a release of nothing")
	}
	if err := finish(options{build: build, to: a}); err == nil {
		t.Error("a release without a version")
	}
}
