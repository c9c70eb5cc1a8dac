package vmm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestParseVersion(t *testing.T) {
	cases := map[string]Engine{
		"cloud-hypervisor v53.0\nMigration Protocol Versions: 1\n":               {Kind: KindCloudHypervisor, Version: "v53.0"},
		"chvemu v53.0\nQEMU Version: 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\n": {Kind: KindChvemu, Version: "v53.0+qemu-7.2.22"},
		"chvemu v53.0\nQEMU Version: 7.2.22 (Debian)\nState Format: 2\n":         {Kind: KindChvemu, Version: "v53.0+qemu-7.2.22.state-2"},
		"chvemu v53.0\nsome other line\nQEMU Version: 10.0.2\n":                  {Kind: KindChvemu, Version: "v53.0+qemu-10.0.2"},
	}
	for out, want := range cases {
		if got, err := parseVersion([]byte(out)); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", out, got, err, want)
		}
	}
	for _, out := range []string{"", "firecracker v1.0", "cloud-hypervisor", "cloud-hypervisor v53.0 extra"} {
		if e, err := parseVersion([]byte(out)); err == nil {
			t.Errorf("%q is taken for %+v", out, e)
		}
	}
}

func TestHardwareVirtualization(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		text string
		want bool
	}{
		"intel": {"processor\t: 0\nflags\t\t: fpu vmx sse\n", true},
		"amd":   {"flags\t\t: fpu svm\n", true},
		"none":  {"flags\t\t: fpu svme vmxx\nmodel name\t: vmx svm\n", false},
		"empty": {"", false},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hardwareVirtualization(path); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
	if hardwareVirtualization(filepath.Join(dir, "missing")) {
		t.Error("a machine without cpuinfo has hardware virtualization")
	}
}

// program writes a shell script that prints a version.
func program(t *testing.T, dir, name, version string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+version+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDetect(t *testing.T) {
	dir := t.TempDir()
	ch := program(t, dir, "cloud-hypervisor", "cloud-hypervisor v53.0")
	emu := program(t, dir, "chvemu", "chvemu v53.0")
	other := program(t, dir, "other", "other v1")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))

	t.Run("by path", func(t *testing.T) {
		e, err := Detect(t.Context(), ch)
		if err != nil || e.Path != ch || e.Kind != KindCloudHypervisor {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("by environment", func(t *testing.T) {
		t.Setenv(EnvVMM, emu)
		e, err := Detect(t.Context(), "")
		if err != nil || e.Path != emu || e.Kind != KindChvemu {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("not there", func(t *testing.T) {
		if _, err := Detect(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, ErrNoEngine) {
			t.Errorf("got %v, want ErrNoEngine", err)
		}
	})
	t.Run("not a VMM", func(t *testing.T) {
		if e, err := Detect(t.Context(), other); err == nil {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("by the processor", func(t *testing.T) {
		info := filepath.Join(dir, "cpuinfo")
		for flags, want := range map[string]string{"vmx": ch, "sse": emu} {
			if err := os.WriteFile(info, []byte("flags\t: "+flags+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := autodetect(info); err != nil || got != want {
				t.Errorf("with %s: %s, %v, want %s", flags, got, err, want)
			}
		}
		t.Setenv("PATH", t.TempDir())
		if p, err := autodetect(info); !errors.Is(err, ErrNoEngine) {
			t.Errorf("with nothing on PATH: %s, %v", p, err)
		}
	})
}
