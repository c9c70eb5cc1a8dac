package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/vmm"
)

// FetchOptions describe what a host has already, and what it can use.
type FetchOptions struct {
	// Engine is the host's engine, in the form of Meta.Engine, which must restore what
	// that one has saved. Empty: any is accepted.
	Engine string
	// Digest is the required Manifest.Digest. Empty: any is accepted.
	Digest string
	// Shared is called for each shared file. If it returns a path, that file is
	// linked instead of fetched. If need is false, the file is omitted. Nil: all are
	// fetched.
	Shared func(f SharedFile) (path string, need bool)
	// Admit, if set, may refuse the snapshot before anything is fetched.
	Admit func(m *Manifest) error
}

// Fetch copies a snapshot's files to dest, which must not exist. It checks the
// manifest's checksum, and the length and digest of every chunk. dest appears
// complete and durable, or not at all.
func (s *Store) Fetch(ctx context.Context, id, dest string, opt FetchOptions) (m Manifest, err error) {
	m, err = s.Manifest(ctx, id)
	if err != nil {
		return m, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("fetch snapshot %s: %w", id, err)
		}
	}()
	if opt.Digest != "" && m.Digest != opt.Digest {
		return m, fmt.Errorf("%w: its manifest is not the one that was stored", ErrDamaged)
	}
	if opt.Engine != "" {
		if err := vmm.Restores(opt.Engine, m.Engine); err != nil {
			return m, fmt.Errorf("%w: %w", ErrOtherEngine, err)
		}
	}
	if opt.Admit != nil {
		if err := opt.Admit(&m); err != nil {
			return m, err
		}
	}
	if _, err := os.Lstat(dest); !errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("%s: %w", dest, errors.Join(fs.ErrExist, err))
	}
	temp, err := os.MkdirTemp(filepath.Dir(dest), "."+filepath.Base(dest)+"-*")
	if err != nil {
		return m, err
	}
	defer func() { _ = os.RemoveAll(temp) }() // gone if it was renamed
	if err := s.fetchInto(ctx, &m, temp, opt.Shared); err != nil {
		return m, err
	}
	if err := syncTree(temp); err != nil {
		return m, err
	}
	if err := os.Rename(temp, dest); err != nil {
		return m, err
	}
	return m, atomicfile.Sync(filepath.Dir(dest))
}

func (s *Store) fetchInto(ctx context.Context, m *Manifest, dir string, shared func(SharedFile) (string, bool)) error {
	for i := range m.Files {
		f := &m.Files[i]
		if err := s.fetchFile(ctx, filepath.Join(dir, f.Name), &f.Content, int64(m.ChunkSize)); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return s.FetchShared(ctx, m, dir, shared)
}

// FetchShared copies the shared files of a snapshot below dir, where none of them
// may exist; see FetchOptions.Shared. It does not clean up after an error.
func (s *Store) FetchShared(ctx context.Context, m *Manifest, dir string, shared func(SharedFile) (string, bool)) error {
	for _, f := range m.Shared {
		path, need := "", true
		if shared != nil {
			path, need = shared(f)
		}
		if !need {
			continue
		}
		if err := s.fetchShared(ctx, filepath.Join(dir, f.Name), f, path); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func (s *Store) fetchShared(ctx context.Context, to string, f SharedFile, have string) error {
	if have != "" {
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		err := os.Link(have, to)
		if errors.Is(err, syscall.EXDEV) {
			err = os.Symlink(have, to)
		}
		return err
	}
	m, err := s.shared(ctx, f.SHA256, s.getKept)
	if err != nil {
		return err
	}
	if m.Size != f.Size {
		return fmt.Errorf("%w: shared file %s has %d bytes, not %d", ErrDamaged, f.SHA256, m.Size, f.Size)
	}
	return s.fetchFile(ctx, to, &m.Content, int64(m.ChunkSize))
}

// fetchFile writes one file. Its content is durable, its name is not yet.
func (s *Store) fetchFile(ctx context.Context, path string, c *Content, chunkSize int64) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if err := f.Truncate(c.Size); err != nil {
		return err
	}
	err = s.eachOf(ctx, len(c.Chunks), func(ctx context.Context, i int) error {
		return s.getChunk(ctx, f, c.Size, c.Chunks[i], chunkSize)
	})
	if err != nil {
		return err
	}
	return f.Sync()
}

// syncTree makes the names below a directory durable.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return atomicfile.Sync(path)
	})
}
