package box

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestLastWords(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "vmm.log")
	if err := os.WriteFile(log, []byte(strings.Repeat("x", 5000)+"\nqemu: it is over\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastWords(log); len(got) > maxLastWords || !strings.HasSuffix(got, "qemu: it is over") {
		t.Errorf("%q", got)
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe, filepath.Join(dir, "none"), dir} {
		if got := lastWords(path); got != "" {
			t.Errorf("%s: %q", path, got)
		}
	}
}
