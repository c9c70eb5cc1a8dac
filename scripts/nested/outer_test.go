package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The outer guest's Debian comes from where the host's packages come from, and its files
// can be read by its users whatever the umask of whoever makes it.
func TestTheOuterGuestIsMadeFromTheHostsSources(t *testing.T) {
	tools, seen := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\ncat >" + seen + "/sources\nprintf '%s\\n' \"$@\" >" + seen + "/args\numask >" + seen + "/umask\necho no mirror >&2\nexit 7\n"
	if err := os.WriteFile(filepath.Join(tools, "mmdebstrap"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	const sources = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
	err := makeOuter(t.Context(), "../..", filepath.Join(t.TempDir(), "nested"), []byte(sources), []string{`Acquire::http::Proxy "http://proxy.example:3128"`})
	if err == nil {
		t.Fatal("a guest was made without mmdebstrap")
	}
	want := map[string]string{"sources": sources, "umask": "0022\n"}
	for name, w := range want {
		if raw, err := os.ReadFile(filepath.Join(seen, name)); err != nil || string(raw) != w && "0"+string(raw) != w {
			t.Errorf("mmdebstrap's %s: %q, %v; want %q", name, raw, err, w)
		}
	}
	raw, err := os.ReadFile(filepath.Join(seen, "args"))
	if err != nil || !strings.Contains(string(raw), "\n--aptopt=Acquire::http::Proxy \"http://proxy.example:3128\"\nbookworm\n") || !strings.HasSuffix(string(raw), "\n-\n") {
		t.Errorf("its arguments: %q, %v", raw, err)
	}
}
