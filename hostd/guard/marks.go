package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Marks is the directory that the daemon and its guard share: a file for each
// exclusive box that may have a VMM. The guard writes into it that it has ended that
// VMM. A box is exclusive for life, and no other ever has its id, nor therefore its
// cgroup.
type Marks string

// ended is what the guard writes.
const ended = "ended\n"

// Set marks a box, before its VMM is started: the last one's end is forgotten.
func (m Marks) Set(id string) error {
	if err := os.MkdirAll(string(m), 0o700); err != nil {
		return fmt.Errorf("mark exclusive sandbox: %w", err)
	}
	// As many bytes as the end has, which is written over them: that needs no room. Where
	// there is none now, an empty mark is one as well.
	err := os.WriteFile(m.file(id), []byte(strings.Repeat(" ", len(ended))), 0o600)
	if err != nil && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("mark exclusive sandbox: %w", err)
	}
	if _, err := os.Stat(m.file(id)); err != nil {
		return fmt.Errorf("mark exclusive sandbox: %w", err)
	}
	return nil
}

// Keep marks the boxes that an earlier daemon may have started, and no others.
func (m Marks) Keep(ids []string) error {
	known := map[string]bool{}
	var errs []error
	for _, id := range ids {
		known[id] = true
		if _, err := os.Stat(m.file(id)); errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, m.Set(id))
		}
	}
	marked, err := m.List()
	errs = append(errs, err)
	for _, id := range marked {
		if !known[id] {
			errs = append(errs, m.Clear(id))
		}
	}
	return errors.Join(errs...)
}

// Clear takes a mark away, once the box has no VMM.
func (m Marks) Clear(id string) error {
	if err := os.Remove(m.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clear mark of exclusive sandbox: %w", err)
	}
	return nil
}

// List returns the marked boxes.
func (m Marks) List() ([]string, error) {
	entries, err := os.ReadDir(string(m))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list exclusive sandboxes: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if hostapi.ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Ended reports whether the guard has ended a box's last VMM.
func (m Marks) Ended(id string) bool {
	raw, err := os.ReadFile(m.file(id))
	return err == nil && string(raw) == ended
}

// end writes that a box's VMM is ended here.
func (m Marks) end(id string) error {
	f, err := os.OpenFile(m.file(id), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(ended), 0)
	return errors.Join(err, f.Close())
}

func (m Marks) file(id string) string { return filepath.Join(string(m), id) }

func (m Marks) lock() string { return m.file("lock") }
