package source

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Bounds on names in an archive.
const (
	maxName  = 4096 // bytes
	maxDepth = 100
)

// Unpack unpacks a tar.gz into a new directory. Files, directories, and links that stay
// within it are made; anything else is refused, and so is what would be outside.
func Unpack(ctx context.Context, r io.Reader, dir string, l Limits) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	zip, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("%w: it is no tar.gz: %w", ErrRefused, err)
	}
	u := &unpacking{root: root, limits: l}
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return u.links()
		case err != nil:
			return fmt.Errorf("%w: the archive is damaged: %w", ErrRefused, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if err := u.entry(header, archive); err != nil {
			return err
		}
	}
}

type unpacking struct {
	root   *os.Root
	limits Limits
	files  int
	size   int64
	later  []link // symbolic links, which are made last: nothing is written through one
}

type link struct{ name, to string }

func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // git archive writes one
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink:
	default:
		return fmt.Errorf("%w: %.200q in the archive is no file, directory or symbolic link", ErrRefused, h.Name)
	}
	name := path.Clean(h.Name)
	if !fs.ValidPath(name) || len(name) > maxName || strings.Count(name, "/") > maxDepth || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: %.200q in the archive is not a path within it", ErrRefused, h.Name)
	}
	u.files++
	u.size += max(h.Size, 0)
	if err := u.limits.check(u.files, u.size); err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	if parent := path.Dir(name); parent != "." {
		if err := u.root.MkdirAll(parent, 0o755); err != nil {
			return u.failed(name, err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.root.MkdirAll(name, 0o755); err != nil {
			return u.failed(name, err)
		}
	case tar.TypeSymlink:
		to := path.Clean(path.Dir(name) + "/" + h.Linkname)
		if path.IsAbs(h.Linkname) || !fs.ValidPath(to) || len(h.Linkname) > maxName {
			return fmt.Errorf("%w: %.200q in the archive is a link out of it", ErrRefused, h.Name)
		}
		u.later = append(u.later, link{name, h.Linkname})
	default:
		return u.file(name, h, content)
	}
	return nil
}

func (u *unpacking) file(name string, h *tar.Header, content io.Reader) error {
	mode := fs.FileMode(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	// The later of two of a name counts, as tar does it.
	if err := u.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return u.failed(name, err)
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return u.failed(name, err)
	}
	_, err = io.Copy(f, content)
	return u.failed(name, errors.Join(err, f.Close()))
}

func (u *unpacking) links() error {
	for _, l := range u.later {
		if err := u.root.Remove(l.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return u.failed(l.name, err)
		}
		if err := u.root.Symlink(l.to, l.name); err != nil {
			return u.failed(l.name, err)
		}
	}
	return nil
}

func (u *unpacking) failed(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: unpack %.200q: %w", ErrRefused, name, err)
}
