// Package atomicfile replaces files atomically: a reader, also after a crash, finds
// the old content or the new, never a part.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. It sets the mode whatever the umask is, and the
// new file survives a power cut once Write has returned.
func Write(path string, data []byte, mode fs.FileMode) error {
	return WriteFrom(path, mode, content(data))
}

// WriteFrom is Write of what fill writes. If fill fails, the old file stays.
func WriteFrom(path string, mode fs.FileMode, fill func(w io.Writer) error) error {
	if err := replace(path, mode, true, fill); err != nil {
		return err
	}
	return Sync(filepath.Dir(path))
}

// Put is Write that leaves the file's name to the caller, who makes those of many
// files durable at once (Sync of their directory).
func Put(path string, data []byte, mode fs.FileMode) error {
	return replace(path, mode, true, content(data))
}

// Swap is Write without durability: a power cut may bring the old file back.
func Swap(path string, data []byte, mode fs.FileMode) error {
	return SwapFrom(path, mode, content(data))
}

// SwapFrom is Swap of what fill writes. If fill fails, the old file stays.
func SwapFrom(path string, mode fs.FileMode, fill func(w io.Writer) error) error {
	return replace(path, mode, false, fill)
}

// Sync makes the content of a file, or the names in a directory, durable.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func content(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// replace fills a file beside the one at path and renames it. Its name is random and
// new, so that concurrent writers do not collide and another user of the directory
// cannot have put a link there.
func replace(path string, mode fs.FileMode, durable bool, fill func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // for the owner alone
	if err != nil {
		return err
	}
	err = fill(f)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
