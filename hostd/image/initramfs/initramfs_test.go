package initramfs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/guest/guestapi"
)

func config(t *testing.T, modules bool) Config {
	t.Helper()
	dir := t.TempDir()
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := Config{
		Guestd: put("guestd", "static binary"), Kernel: put("vmlinux", "kernel"), Release: "6.12",
		Spec: guestapi.BootSpec{Template: "base", Env: map[string]string{"B": "2", "A": "1"}, Start: "serve"},
	}
	if modules {
		put("modules/6.12/modules.order", "# order\nb.ko\na.ko\nmissing.ko\n")
		put("modules/6.12/a.ko", "module a")
		put("modules/6.12/b.ko", "module b")
		put("modules/6.12/unlisted.ko", "module")
		put("modules/6.11/modules.order", "old.ko\n")
	}
	return cfg
}

// content lists an archive: directories as "", files with their content.
func content(t *testing.T, raw []byte) (names []string, files map[string]string) {
	t.Helper()
	files = map[string]string{}
	r := cpio.NewReader(bytes.NewReader(raw))
	for {
		entry, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, files
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, entry.Name)
		if entry.Mode.IsRegular() {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			files[entry.Name] = string(data)
		}
	}
}

func TestArchiveHoldsWhatAGuestBootsFrom(t *testing.T) {
	raw, err := Bytes(config(t, true))
	if err != nil {
		t.Fatal(err)
	}
	names, files := content(t, raw)
	want := map[string]string{
		"init":                           "static binary",
		"lib/modules/6.12/modules.order": "# order\nb.ko\na.ko\nmissing.ko\n",
		"lib/modules/6.12/a.ko":          "module a",
		"lib/modules/6.12/b.ko":          "module b",
		"berth.json":                     `{"template":"base","env":{"A":"1","B":"2"},"start":"serve"}`,
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
	// The kernel unpacks in order: a file's directory comes before it.
	seen := map[string]bool{".": true}
	for _, n := range names {
		if !seen[filepath.Dir(n)] {
			t.Errorf("%s comes before its directory", n)
		}
		seen[n] = true
	}
	if !seen["dev/console"] {
		t.Error("no /dev/console: process 1 would have no output")
	}
}

func TestKernelWithEverythingBuiltInNeedsNoModules(t *testing.T) {
	raw, err := Bytes(config(t, false))
	if err != nil {
		t.Fatal(err)
	}
	names, _ := content(t, raw)
	for _, n := range names {
		if strings.HasPrefix(n, "lib") {
			t.Errorf("it holds %s", n)
		}
	}
}

func TestEqualInputsGiveEqualBytes(t *testing.T) {
	a, err := Bytes(config(t, true))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Bytes(config(t, true))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same inputs differ")
	}
}

func TestMissingGuestd(t *testing.T) {
	cfg := config(t, false)
	cfg.Guestd = "/no/such/file"
	if _, err := Bytes(cfg); err == nil || !strings.Contains(err.Error(), "guestd") {
		t.Errorf("got %v", err)
	}
}
