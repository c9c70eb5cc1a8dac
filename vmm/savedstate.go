package vmm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// The files of a snapshot directory.
const (
	FileConfig = "config.json"
	FileState  = "state.json"
	// FileMemory is an image of the guest's RAM, laid out like the file of a
	// memory zone. It is absent where RAM was a shared file.
	FileMemory = "memory-ranges"
)

// More than an engine writes, which is kilobytes of configuration, and of state less
// than one megabyte. A VMM that was broken out of may write anything.
const (
	maxConfig = 1 << 20
	maxState  = 64 << 20
)

// ReadConfig returns the config.json of a snapshot, at most 1 MiB.
func ReadConfig(dir string) ([]byte, error) {
	return readAtMost(filepath.Join(dir, FileConfig), maxConfig)
}

// ErrDamaged means that a file of a snapshot is missing, or not as an engine writes it.
var ErrDamaged = errors.New("saved state is damaged")

// CheckState looks at the configuration and the state of a snapshot: ErrDamaged, or
// os.ErrNotExist, where they are not whole.
func CheckState(dir string) error {
	for name, most := range map[string]int64{FileConfig: maxConfig, FileState: maxState} {
		raw, err := readAtMost(filepath.Join(dir, name), most)
		if err != nil {
			return err
		}
		if !json.Valid(raw) {
			return fmt.Errorf("%w: %s is cut off", ErrDamaged, name)
		}
	}
	return nil
}

func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(raw)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", filepath.Base(path), most)
	}
	return raw, err
}

// Reclaim takes a directory that a VMM wrote to away from its user, with the
// files in it that have one of the names; the others are removed. The directory
// comes first, so that nothing in it can be exchanged for something else while it
// is looked at: a file may be anything, a link to one that must not be given
// away, a pipe that blocks.
//
// Files can be read by everyone then, and the directory be passed by root alone:
// a VMM reads what it is handed.
func Reclaim(dir string, names ...string) error {
	if err := errors.Join(os.Lchown(dir, os.Geteuid(), os.Getegid()), os.Chmod(dir, 0o700)); err != nil {
		return fmt.Errorf("take %s back: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("take %s back: %w", dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if slices.Contains(names, e.Name()) {
			err = reclaimFile(path)
		} else {
			err = os.RemoveAll(path)
		}
		if err != nil {
			return fmt.Errorf("take %s back: %w", dir, err)
		}
	}
	return nil
}

func reclaimFile(path string) error {
	f, err := openPlain(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Nlink != 1 {
		return fmt.Errorf("%s is no file of its own", filepath.Base(path))
	}
	return errors.Join(f.Chown(os.Geteuid(), os.Getegid()), f.Chmod(0o644))
}

// DetachMemory makes a snapshot of one memory zone restorable by any number of
// VMs at once that share its RAM: with memory-ranges as the zone's file, mapped
// privately.
//
// Cloud Hypervisor would read the whole of memory-ranges into each VM, over
// whatever the zone's file is (fill_saved_regions in vmm/src/memory_manager.rs),
// and its other way, OnDemand, is refused by the kernel where a zone has a file
// that is not on a tmpfs, and copies all pages as well, in the background
// (restore_by_uffd, uffd_handler_loop). What is read is listed in the state, so
// the list is emptied: then the mapping is all there is to the RAM. The image
// has the ranges one after the other, which is how a zone's regions lie in its
// file (memory_zone's file_offset in create_memory_regions_from_zones).
//
// chvemu maps memory-ranges privately by itself.
func DetachMemory(engine Engine, dir string) error {
	if engine.Kind != KindCloudHypervisor {
		return nil
	}
	path := filepath.Join(dir, FileState)
	raw, err := readAtMost(path, maxState)
	if err != nil {
		return fmt.Errorf("detach memory of a snapshot: %w", err)
	}
	var image int64
	st, err := os.Stat(filepath.Join(dir, FileMemory))
	switch {
	case err == nil:
		image = st.Size()
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("detach memory of a snapshot: %w", err)
	}
	edited, err := emptyRanges(raw, image)
	if err != nil {
		return fmt.Errorf("detach memory of a snapshot: %s: %w", path, err)
	}
	if bytes.Equal(edited, raw) {
		return nil
	}
	if err := atomicfile.Swap(path, edited, 0o600); err != nil {
		return fmt.Errorf("detach memory of a snapshot: %w", err)
	}
	return nil
}

// object is a JSON object whose members stay as they were written, but for the
// one that is changed.
type object map[string]json.RawMessage

func (o object) get(key string, out any) error {
	raw, ok := o[key]
	if !ok {
		return fmt.Errorf("it has no %s", key)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func (o object) set(key string, v any) (err error) {
	o[key], err = json.Marshal(v)
	return err
}

// emptyRanges empties the list of a state's saved memory ranges, which must add
// up to the image of their content. The state of a component is JSON in a string
// (SnapshotData in vm-migration/src/lib.rs).
func emptyRanges(raw []byte, image int64) ([]byte, error) {
	const manager = "memory-manager" // MEMORY_MANAGER_SNAPSHOT_ID in vmm/src/lib.rs
	var root, parts, component, data, state object
	var text string
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, err
	}
	if err := root.get("snapshots", &parts); err != nil {
		return nil, err
	}
	if err := parts.get(manager, &component); err != nil {
		return nil, err
	}
	if err := component.get("snapshot_data", &data); err != nil {
		return nil, err
	}
	if err := data.get("state", &text); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		return nil, fmt.Errorf("state of the %s: %w", manager, err)
	}
	var ranges struct {
		Data []struct {
			Length int64 `json:"length"`
		} `json:"data"`
	}
	if err := state.get("memory_ranges", &ranges); err != nil {
		return nil, err
	}
	var total int64
	for _, r := range ranges.Data {
		total += r.Length
	}
	if len(ranges.Data) == 0 {
		return raw, nil // RAM was a shared file, or this was done before
	}
	if total != image {
		return nil, fmt.Errorf("its memory ranges have %d bytes and %s has %d", total, FileMemory, image)
	}
	if err := state.set("memory_ranges", map[string]any{"data": []any{}}); err != nil {
		return nil, err
	}
	inner, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	if err := data.set("state", string(inner)); err != nil {
		return nil, err
	}
	if err := component.set("snapshot_data", data); err != nil {
		return nil, err
	}
	if err := parts.set(manager, component); err != nil {
		return nil, err
	}
	if err := root.set("snapshots", parts); err != nil {
		return nil, err
	}
	return json.Marshal(root)
}
