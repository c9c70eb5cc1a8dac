package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/u-root/u-root/pkg/cpio"
)

// writeInitramfs makes the guest's initramfs: its program, and the modules that
// lie beside the kernel. A kernel without any has its drivers built in.
func writeInitramfs(path, init, modules string) error {
	records := []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.Directory("proc", 0o755),
		cpio.Directory("sys", 0o755),
		cpio.Directory("modules", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
	}
	files := map[string]string{"init": init}
	found, err := filepath.Glob(filepath.Join(modules, "*", "*.ko"))
	if err != nil {
		return err
	}
	for _, m := range found {
		files["modules/"+filepath.Base(m)] = m
	}
	for name, source := range files {
		raw, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		records = append(records, cpio.StaticFile(name, string(raw), 0o755))
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := cpio.Newc.Writer(f)
	if err := cpio.WriteRecords(w, records); err != nil {
		return fmt.Errorf("write initramfs: %w", err)
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return fmt.Errorf("write initramfs: %w", err)
	}
	return f.Close()
}
