package conformance_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"

	"github.com/berth-cloud/berth/vmm/cpio"
)

// writeInitramfs makes the guest's initramfs: its program, and the modules that
// lie beside the kernel. A kernel without any has its drivers built in.
func writeInitramfs(path, init, modules string) error {
	var raw bytes.Buffer
	w := cpio.NewWriter(&raw)
	var failed error
	for _, dir := range []string{"dev", "proc", "sys", "modules"} {
		failed = errors.Join(failed, w.Directory(dir, 0o755))
	}
	failed = errors.Join(failed, w.CharDevice("dev/console", 0o600, 5, 1))
	found, err := filepath.Glob(filepath.Join(modules, "*", "*.ko"))
	if err != nil {
		return err
	}
	files := map[string]string{"init": init}
	for _, m := range found {
		files["modules/"+filepath.Base(m)] = m
	}
	for name, source := range files {
		content, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		failed = errors.Join(failed, w.File(name, 0o755, content))
	}
	if err := errors.Join(failed, w.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, raw.Bytes(), 0o644)
}
