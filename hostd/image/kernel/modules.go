package kernel

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"

	"github.com/berth-cloud/berth/atomicfile"
)

// Modules are the modules that a guest needs, unless they are built in: for disks,
// network, overlayfs and entropy; for socket diagnosis, by which a restored guest
// ends its old connections; and for the power button, so that vm.power-button
// reaches the guest.
var Modules = []string{
	"virtio_blk", "virtio_net", "overlay", "virtio-rng", "tcp_diag", "button",
}

// Extract writes dir/vmlinux and dir/modules/<release>/ from an unpacked kernel
// package, which contains boot/vmlinuz-<release> and lib/modules/<release>.
func Extract(root, dir string) (release string, err error) {
	images, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil {
		return "", err
	}
	if len(images) != 1 {
		return "", fmt.Errorf("%d kernels in %s, want one", len(images), filepath.Join(root, "boot"))
	}
	release = strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	image, err := os.ReadFile(images[0])
	if err != nil {
		return "", err
	}
	vmlinux, err := Vmlinux(image)
	if err != nil {
		return "", fmt.Errorf("%s: %w", images[0], err)
	}
	to := filepath.Join(dir, "modules", release)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	from := filepath.Join(root, "lib", "modules", release)
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		from = filepath.Join(root, "usr", "lib", "modules", release)
	}
	if err := extractModules(from, to, Modules); err != nil {
		return "", err
	}
	// The kernel is written last: if it exists, everything does.
	return release, atomicfile.Swap(filepath.Join(dir, "vmlinux"), vmlinux, 0o644)
}

// extractModules writes the named modules and their dependencies, uncompressed, and
// modules.order, which lists dependencies first.
func extractModules(from, to string, names []string) error {
	index, err := indexModules(from)
	if err != nil {
		return err
	}
	var order []string
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		key := canonical(name)
		file, ok := index[key]
		if !ok || seen[key] {
			return nil // built in
		}
		seen[key] = true
		raw, err := readModule(filepath.Join(from, file))
		if err != nil {
			return err
		}
		deps, err := dependencies(raw)
		if err != nil {
			return fmt.Errorf("module %s: %w", file, err)
		}
		for _, d := range deps {
			if err := add(d); err != nil {
				return err
			}
		}
		base, _, _ := strings.Cut(path.Base(file), ".ko")
		order = append(order, base+".ko")
		return os.WriteFile(filepath.Join(to, base+".ko"), raw, 0o644)
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return err
		}
	}
	list := strings.Join(order, "\n")
	if list != "" {
		list += "\n"
	}
	return os.WriteFile(filepath.Join(to, "modules.order"), []byte(list), 0o644)
}

// canonical maps both spellings of a module's name to one.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

func indexModules(from string) (map[string]string, error) {
	index := map[string]string{}
	root := os.DirFS(from)
	err := fs.WalkDir(root, ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(path.Base(file), ".ko"); ok {
			index[canonical(name)] = file
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the kernel's modules: %w", err)
	}
	return index, err
}

// maxModule limits a decompressed module, in bytes.
const maxModule = 64 << 20

func readModule(file string) ([]byte, error) {
	raw, err := os.ReadFile(file)
	if err != nil || !strings.HasSuffix(file, ".xz") {
		return raw, err
	}
	r, err := xz.NewReader(bytes.NewReader(raw))
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(r, maxModule))
	}
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", file, err)
	}
	return raw, nil
}

// dependencies returns the value of depends= in a module's .modinfo, which is a
// sequence of NUL-terminated strings.
func dependencies(module []byte) ([]string, error) {
	info, err := section(module, ".modinfo")
	if err != nil {
		return nil, err
	}
	words := bufio.NewScanner(bytes.NewReader(info))
	words.Split(splitNUL)
	for words.Scan() {
		if list, ok := strings.CutPrefix(words.Text(), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, words.Err()
}

func splitNUL(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func section(object []byte, name string) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return nil, err
	}
	s := f.Section(name)
	if s == nil {
		return nil, fmt.Errorf("no section %s", name)
	}
	return s.Data()
}
