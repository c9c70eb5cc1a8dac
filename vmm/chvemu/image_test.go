package chvemu

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/vmm"
)

// A guest can write to its disk what Cloud Hypervisor takes for another type of image.
func TestAnImageOfAnotherTypeIsRefused(t *testing.T) {
	const size = 8192
	footer := make([]byte, 64)
	copy(footer, "conectix")
	copy(footer[12:], []byte{0, 1, 0, 0})
	copy(footer[16:], bytes.Repeat([]byte{0xff}, 8))
	footer[63] = 2
	dynamic := bytes.Clone(footer)
	dynamic[63] = 3
	for name, c := range map[string]struct {
		at    int
		bytes []byte
		want  string // empty: it is opened
	}{
		"raw":                 {0, []byte("data"), ""},
		"qcow2":               {0, []byte("QFI\xfb"), "detected = qcow2"},
		"vhdx":                {0, []byte("vhdxfile"), "detected = vhdx"},
		"fixed vhd":           {size - 512, footer, "detected = vhd"},
		"dynamic vhd":         {size - 512, dynamic, ""},
		"a footer in between": {size - 1024, footer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			raw := make([]byte, size)
			copy(raw[c.at:], c.bytes)
			path := filepath.Join(t.TempDir(), "image")
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := openDisk(&vmm.DiskConfig{Path: path, ImageType: vmm.ImageRaw})
			if err == nil {
				f.Close()
			}
			if got := err != nil; got != (c.want != "") || got && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
