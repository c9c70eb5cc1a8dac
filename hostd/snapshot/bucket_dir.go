package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// directory keeps each object as a file, which all hosts that mount it share.
type directory struct{ path string }

// What is there is the memory of tenants: it is for root alone.
const dirMode = 0o700

func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return nil, err
	}
	return &directory{path: path}, nil
}

func (d *directory) file(key string) string { return filepath.Join(d.path, filepath.FromSlash(key)) }

// put leaves the durability of a file's name to Store.syncDirs.
func (d *directory) put(_ context.Context, key string, content []byte) error {
	path := d.file(key)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	return atomicfile.Put(path, content, 0o600)
}

func (d *directory) get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	f, err := os.Open(d.file(key))
	if err != nil {
		return nil, 0, noFile(err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

func (d *directory) stat(_ context.Context, key string) (object, error) {
	info, err := os.Stat(d.file(key))
	if err != nil {
		return object{}, noFile(err)
	}
	return object{key: key, size: info.Size(), written: info.ModTime()}, nil
}

// copy gives a file a second name, which a full disk does not refuse. Both have
// its time, so that is renewed before: no name has an old one, ever.
func (d *directory) copy(_ context.Context, from, to string) error {
	path := d.file(to)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	if err := unix.Utimes(d.file(from), nil); err != nil {
		return noFile(err)
	}
	if err := os.Link(d.file(from), path); !errors.Is(err, fs.ErrExist) {
		return noFile(err)
	}
	return noFile(unix.Utimes(path, nil))
}

func (d *directory) remove(_ context.Context, key string) error {
	return noFile(os.Remove(d.file(key)))
}

// list fails for a directory that cannot be read, which is not one without
// objects: what collects chunks relies on it.
func (d *directory) list(_ context.Context, prefix, after string, visit func(object) error) error {
	entries, err := os.ReadDir(d.file(prefix))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries { // in their order
		if prefix+e.Name() <= after {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, or renamed, meanwhile
		}
		if err != nil {
			return err
		}
		if err := visit(object{key: prefix + e.Name(), size: info.Size(), written: info.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

// passing implements bucket: what a file system refused it refuses again.
func (d *directory) passing(error) bool { return false }

func noFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", errNoObject, err)
	}
	return err
}
