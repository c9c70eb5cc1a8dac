package boot

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loadModules loads the modules that dir/modules.order lists, in that order. A
// directory that is not there means that the kernel has everything built in. A
// module that is already there, or that the directory lacks, is no error: what
// is missed is found out, by name, when it is used. Anything else is returned,
// after the remaining modules were tried.
func loadModules(dir string, load func(*os.File) error) error {
	order, err := os.Open(filepath.Join(dir, "modules.order"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("module list: %w", err)
	}
	defer order.Close()
	var failed error
	lines := bufio.NewScanner(order)
	for lines.Scan() {
		name := strings.TrimSpace(lines.Text())
		if name == "" || name[0] == '#' {
			continue
		}
		if err := loadModule(filepath.Join(dir, filepath.Base(name)), load); err != nil {
			failed = errors.Join(failed, fmt.Errorf("load module %s: %w", name, err))
		}
	}
	return errors.Join(failed, lines.Err())
}

func loadModule(path string, load func(*os.File) error) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := load(f); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func finitModule(f *os.File) error {
	return unix.FinitModule(int(f.Fd()), "", 0)
}
