package image

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/vmm"
)

// digestLen is the length of ids: the first 128 bits of a SHA-256, in hexadecimal.
const digestLen = 32

// Formats of stored files. Builds of format 1, and their layers, were named after
// their recipes. The agent in a build before format 3 does not understand this
// version's identity message: such a build is used only for its layers.
const (
	formatVersion = 3 // of template.json
	oldestFormat  = 1
	oldestGuest   = 3
	layerFormat   = 1 // of layer.json
	// layerRecipe and buildRecipe are part of the keys of recipes, so that what an
	// older version made differently is made again.
	layerRecipe = 1
	buildRecipe = 3
)

// manifest is template.json, the last file of a build to be written.
type manifest struct {
	Format          int               `json:"format"`
	BuildID         string            `json:"build_id"` // see contentID
	Definition      Definition        `json:"definition"`
	Engine          engineID          `json:"engine"`
	Kernel          kernelID          `json:"kernel"`
	Layers          []string          `json:"layers"` // keys, lowest first
	Files           map[string]fileID `json:"files"`  // of the build's directory
	OpenConnections int               `json:"open_connections"`
	CreatedAt       time.Time         `json:"created_at"`
}

type engineID struct {
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

func (e engineID) String() string { return e.Kind + " " + e.Version }

type kernelID struct {
	Release string `json:"release"`
	fileID
}

// fileID identifies a file's content. The digest of a sparse file covers its pages
// that are not zero, each after its offset as eight big-endian bytes, so that holes
// need not be read and equal zeros.
type fileID struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Sparse bool   `json:"sparse,omitempty"`
}

// file is a file's path and its expected content.
type file struct {
	path string
	fileID
}

const manifestFile = "template.json"

// Files of a build.
const (
	initramfsFile = "initramfs.cpio"
	overlayFile   = "overlay.ext4"
	ramFile       = "ram"
	stateDir      = "state"
)

func (s *Store) readManifest(id string) (manifest, error) {
	var m manifest
	path := s.path(buildsDir, id, manifestFile)
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err == nil {
		err = m.check(id)
	}
	if err != nil {
		return m, fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	}
	return m, nil
}

// check returns why a manifest is not that of build id.
func (m *manifest) check(id string) error {
	if m.Format < oldestFormat || m.Format > formatVersion || m.BuildID != id {
		return fmt.Errorf("it is of format %d, build %s", m.Format, m.BuildID)
	}
	if m.Format == 1 {
		return nil
	}
	own, err := m.contentID()
	if err == nil && own != id {
		err = fmt.Errorf("its content is that of build %s", own)
	}
	return err
}

// contentID is the digest of all that a build contains: its description, and the
// digests of its layers, kernel and files. So memory that was stored over one build
// is never resumed over another, even if both have the same recipe.
func (m *manifest) contentID() (string, error) {
	raw, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	// As it will be read back: invalid UTF-8 is replaced when it is written.
	var c manifest
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", err
	}
	c.BuildID, c.CreatedAt = "", time.Time{}
	return digest(c)
}

// runs returns why no guest can be created from a build on this host.
func (s *Store) runs(m manifest) error {
	if err := hasGuest(m); err != nil {
		return err
	}
	if err := vmm.Restores(s.engine().String(), m.Engine.String()); err != nil {
		return fmt.Errorf("%w: %w", ErrOtherEngine, err)
	}
	return nil
}

// hasGuest returns why the guest of a build cannot be used.
func hasGuest(m manifest) error {
	if m.Format < oldestGuest {
		return fmt.Errorf("%w: format %d, want %d or later", ErrOtherGuest, m.Format, oldestGuest)
	}
	return nil
}

// load returns a build from which guests can be created here, after checking that its
// files exist and have the right size.
func (s *Store) load(id string) (Template, error) { return s.loadIf(id, s.runs) }

func (s *Store) loadIf(id string, good func(manifest) error) (Template, error) {
	m, err := s.readManifest(id)
	if err != nil {
		return Template{}, err
	}
	if err := good(m); err != nil {
		return Template{}, err
	}
	var size int64
	for _, f := range s.allFiles(m) {
		st, err := os.Stat(f.path)
		if err != nil {
			return Template{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if st.Size() != f.Size {
			return Template{}, fmt.Errorf("%w: %s has %d bytes, not %d", ErrCorrupt, f.path, st.Size(), f.Size)
		}
		size += allocated(st)
	}
	dir := s.path(buildsDir, id)
	t := Template{
		Name: m.Definition.Name, BuildID: id, Definition: m.Definition,
		CPU: m.Definition.CPU, MemoryMB: m.Definition.MemoryMB, DiskMB: m.Definition.DiskMB,
		Kernel:      s.path(kernelsDir, m.Kernel.SHA256, "vmlinux"),
		Initramfs:   filepath.Join(dir, initramfsFile),
		OverlaySeed: filepath.Join(dir, overlayFile),
		RAM:         filepath.Join(dir, ramFile),
		SnapshotDir: filepath.Join(dir, stateDir),
		Engine:      m.Engine.String(), KernelVersion: m.Kernel.Release,
		SizeBytes: size, OpenConnections: m.OpenConnections, CreatedAt: m.CreatedAt,
	}
	for _, key := range m.Layers {
		t.Layers = append(t.Layers, s.layerPath(key))
	}
	return t, nil
}

func (s *Store) engine() engineID {
	return engineID{Kind: s.cfg.Engine.Kind, Version: s.cfg.Engine.Version}
}

// allFiles returns a build's files, including its kernel's and its layers'.
func (s *Store) allFiles(m manifest) []file {
	all := []file{{s.path(kernelsDir, m.Kernel.SHA256, "vmlinux"), m.Kernel.fileID}}
	for _, key := range m.Layers {
		f := file{path: s.layerPath(key)}
		if l, err := s.readLayer(key); err == nil {
			f.fileID = l.fileID
		}
		all = append(all, f)
	}
	for name, id := range m.Files {
		all = append(all, file{s.path(buildsDir, m.BuildID, name), id})
	}
	return all
}

// allocated returns a file's size on disk, in bytes.
func allocated(st os.FileInfo) int64 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Blocks * 512
	}
	return st.Size()
}

// verify reads the file and compares its content.
func (f file) verify(ctx context.Context) error {
	got, err := identify(ctx, f.path, f.Sparse)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		return err
	}
	if got != f.fileID {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, not %d with %s", ErrCorrupt, f.path, got.Size, got.SHA256, f.Size, f.SHA256)
	}
	return nil
}

// identify returns a file's size and checksum.
func identify(ctx context.Context, path string, sparse bool) (fileID, error) {
	f, err := os.Open(path)
	if err != nil {
		return fileID{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fileID{}, err
	}
	hash := sha256.New()
	if sparse {
		err = hashPages(ctx, hash, f, st.Size())
	} else {
		_, err = io.CopyBuffer(struct{ io.Writer }{hash}, interrupted{ctx, f}, make([]byte, 1<<20))
	}
	return fileID{Size: st.Size(), SHA256: hex.EncodeToString(hash.Sum(nil)), Sparse: sparse}, err
}

func hashPages(ctx context.Context, to hash.Hash, f *os.File, size int64) error {
	buf := make([]byte, 256*page)
	var offset [8]byte
	return eachExtent(f, size, func(at, size int64) error {
		for end := at + size; at < end; {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			n, err := f.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if n == 0 {
				return err
			}
			for i := 0; i < n; i += page {
				p := buf[i:min(i+page, n)]
				if !isZero(p) {
					binary.BigEndian.PutUint64(offset[:], uint64(at)+uint64(i))
					to.Write(offset[:])
					to.Write(p)
				}
			}
			at += int64(n)
		}
		return nil
	})
}

// interrupted is a reader that ends with a context.
type interrupted struct {
	ctx context.Context
	r   io.Reader
}

func (i interrupted) Read(b []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.r.Read(b)
}

// digest returns the key of inputs. encoding/json sorts maps, so equal inputs have
// equal keys.
func digest(inputs any) (string, error) {
	raw, err := json.Marshal(inputs)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:digestLen], nil
}

func marshalFile(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(raw, '\n'), 0o644)
}
