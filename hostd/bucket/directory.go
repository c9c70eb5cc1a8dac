package bucket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// directory keeps each object as a file, which all hosts that mount it share.
type directory struct{ path string }

// halfPrefix begins the name of a file that is not complete, here as in atomicfile. No
// key has a part that begins so.
const halfPrefix = "."

// What is there is the memory of tenants: it is for root alone.
const dirMode = 0o700

func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return nil, err
	}
	return &directory{path: path}, nil
}

func (d *directory) file(key string) string { return filepath.Join(d.path, filepath.FromSlash(key)) }

// Put leaves the durability of a file's name to Sync.
func (d *directory) Put(_ context.Context, key string, content []byte) error {
	path := d.file(key)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	return atomicfile.Put(path, content, 0o600)
}

// PutFrom implements Bucket.
func (d *directory) PutFrom(_ context.Context, key string, content io.ReadSeeker, size int64) error {
	path := d.file(key)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	return atomicfile.WriteFrom(path, 0o600, func(w io.Writer) error {
		if _, err := content.Seek(0, io.SeekStart); err != nil {
			return err
		}
		n, err := io.Copy(w, content)
		if err == nil && n != size {
			err = fmt.Errorf("read %d bytes: want %d", n, size)
		}
		return err
	})
}

// Create links a file that is complete to its name.
func (d *directory) Create(_ context.Context, key string, content []byte) error {
	path := d.file(key)
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return err
	}
	half := filepath.Join(filepath.Dir(path), halfPrefix+filepath.Base(path)+"-"+rand.Text())
	if err := atomicfile.Put(half, content, 0o600); err != nil {
		return err
	}
	err := os.Link(half, path)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w: %w", ErrExists, err)
	}
	return errors.Join(err, os.Remove(half))
}

func (d *directory) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
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

func (d *directory) Stat(_ context.Context, key string) (Object, error) {
	info, err := os.Stat(d.file(key))
	if err != nil {
		return Object{}, noFile(err)
	}
	return Object{Key: key, Size: info.Size(), Written: info.ModTime()}, nil
}

// Copy gives a file a second name, which a full disk does not refuse. Both have
// its time, so that is renewed before: no name has an old one, ever.
func (d *directory) Copy(_ context.Context, from, to string) error {
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

func (d *directory) Remove(_ context.Context, key string) error {
	return noFile(os.Remove(d.file(key)))
}

// List fails for a directory that cannot be read, which is not one without
// objects: what collects chunks relies on it.
func (d *directory) List(_ context.Context, prefix, after string, visit func(Object) error) error {
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
		if err := visit(Object{Key: prefix + e.Name(), Size: info.Size(), Written: info.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

// Walk implements Bucket. What vanishes meanwhile was removed.
func (d *directory) Walk(ctx context.Context, prefix string, visit func(Object) error) error {
	return d.walk(ctx, prefix, func(o Object, half bool) error {
		if half {
			return nil
		}
		return visit(o)
	})
}

func (d *directory) walk(ctx context.Context, prefix string, visit func(o Object, half bool) error) error {
	root := d.file(prefix)
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var info fs.FileInfo
		if err == nil && e.Type().IsRegular() {
			info, err = e.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || info == nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		o := Object{Key: prefix + filepath.ToSlash(rel), Size: info.Size(), Written: info.ModTime()}
		return visit(o, strings.HasPrefix(e.Name(), halfPrefix))
	})
}

// RemoveAll implements Bucket.
func (d *directory) RemoveAll(_ context.Context, prefix string) error {
	path := d.file(prefix)
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return d.Sync(filepath.Dir(filepath.Clean(prefix)))
}

// Sweep implements Bucket.
func (d *directory) Sweep(ctx context.Context, prefix string, before time.Time) error {
	return d.walk(ctx, prefix, func(o Object, half bool) error {
		if !half || !o.Written.Before(before) {
			return nil
		}
		if err := os.Remove(d.file(o.Key)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// Passing implements Bucket: what a file system refused it refuses again.
func (d *directory) Passing(error) bool { return false }

// Sync implements Bucket.
func (d *directory) Sync(dirs ...string) error {
	done := map[string]bool{}
	for _, name := range dirs {
		for dir := filepath.Join(d.path, name); !done[dir] && len(dir) >= len(d.path); dir = filepath.Dir(dir) {
			done[dir] = true
			err := atomicfile.Sync(dir)
			if errors.Is(err, fs.ErrNotExist) && dir != d.path {
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func noFile(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}
