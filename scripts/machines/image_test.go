package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The machines' Debian comes from where the host's packages come from, and its files can
// be read by its users whatever the umask of whoever makes it.
func TestTheImageIsMadeFromTheHostsSources(t *testing.T) {
	tools, seen := t.TempDir(), t.TempDir()
	script := "#!/bin/sh\ncat >" + seen + "/sources\nprintf '%s\\n' \"$@\" >" + seen + "/args\numask >" + seen + "/umask\necho no mirror >&2\nexit 7\n"
	if err := os.WriteFile(filepath.Join(tools, "mmdebstrap"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	const sources = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
	err := makeImage(t.Context(), "../..", filepath.Join(t.TempDir(), "machines"), []byte(sources), []string{`Acquire::http::Proxy "http://proxy.example:3128"`})
	if err == nil {
		t.Fatal("an image was made without mmdebstrap")
	}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(seen, name))
		if err != nil {
			t.Error(err)
		}
		return string(raw)
	}
	if got := read("sources"); got != sources {
		t.Errorf("mmdebstrap was given the sources %q", got)
	}
	if got := strings.TrimSpace(read("umask")); got != "0022" && got != "022" {
		t.Errorf("it ran with the umask %s", got)
	}
	args := strings.Split(strings.TrimSpace(read("args")), "\n")
	last := args[max(0, len(args)-3):]
	if last[0] != "bookworm" || !strings.HasSuffix(last[1], "/root.part.tar") || last[2] != "-" {
		t.Errorf("its last arguments are %q", last)
	}
	if !strings.Contains(read("args"), "--aptopt=Acquire::http::Proxy \"http://proxy.example:3128\"\n") {
		t.Errorf("the proxy is not in %q", args)
	}
}
