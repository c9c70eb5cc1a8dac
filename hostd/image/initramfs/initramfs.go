// Package initramfs makes the guest's initial RAM file system: guestd, the
// kernel's modules and the template's boot specification.
package initramfs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/vmm/cpio"
)

// Config is what goes into an initramfs.
type Config struct {
	Guestd  string // path of the static binary
	Kernel  string // path of the vmlinux; its modules lie in modules/<release> beside it
	Release string // of the kernel
	Spec    guestapi.BootSpec
}

// Write writes the archive. Equal inputs give equal bytes: the archive carries
// no times, owners or inode numbers of this machine.
func Write(w io.Writer, cfg Config) error {
	archive := cpio.NewWriter(w)
	var failed error
	dir := func(names ...string) {
		for _, name := range names {
			failed = cmp.Or(failed, archive.Directory(name, 0o755))
		}
	}
	file := func(name string, data []byte, perm uint32) {
		failed = cmp.Or(failed, archive.File(name, perm, data))
	}
	dir("dev", "proc", "sys", "layers", "newroot")
	// The kernel opens it for process 1 before anything can mount /dev.
	failed = cmp.Or(failed, archive.CharDevice("dev/console", 0o600, 5, 1))
	guestd, err := os.ReadFile(cfg.Guestd)
	if err != nil {
		return fmt.Errorf("guestd: %w", err)
	}
	file("init", guestd, 0o755)
	modules, err := readModules(filepath.Join(filepath.Dir(cfg.Kernel), "modules", cfg.Release))
	if err != nil {
		return err
	}
	if len(modules) > 0 {
		in := "lib/modules/" + cfg.Release
		dir("lib", "lib/modules", in)
		for _, m := range modules {
			file(in+"/"+m.name, m.data, 0o644)
		}
	}
	spec, err := json.Marshal(cfg.Spec)
	if err != nil {
		return err
	}
	file(strings.TrimPrefix(guestapi.BootSpecPath, "/"), spec, 0o600)
	if failed = cmp.Or(failed, archive.Close()); failed != nil {
		return fmt.Errorf("initramfs: %w", failed)
	}
	return nil
}

// Bytes returns the archive.
func Bytes(cfg Config) ([]byte, error) {
	var b bytes.Buffer
	err := Write(&b, cfg)
	return b.Bytes(), err
}

type module struct {
	name string
	data []byte
}

// readModules returns modules.order and the modules it lists. No directory
// means that the kernel has everything built in.
func readModules(dir string) ([]module, error) {
	order, err := os.ReadFile(filepath.Join(dir, "modules.order"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	modules := []module{{"modules.order", order}}
	for line := range strings.Lines(string(order)) {
		name := strings.TrimSpace(line)
		if name == "" || name[0] == '#' {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, filepath.Base(name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("kernel modules: %w", err)
		}
		modules = append(modules, module{filepath.Base(name), data})
	}
	return modules, nil
}
