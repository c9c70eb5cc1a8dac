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

// put writes a file beside its place and renames it. Its content survives a
// power cut when it is there; Store.syncDirs does the same for its name.
func (d *directory) put(_ context.Context, key string, content []byte) (err error) {
	path := d.file(key)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".part-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
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
