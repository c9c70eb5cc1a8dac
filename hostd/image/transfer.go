package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
)

// A build can be copied to another host's store. Captures of its sandboxes need
// exactly the same disks, because the captured memory depends on them. Building the
// template again there would not produce them, because a bootstrap installs the
// current packages.

// Part is one file of a build.
type Part struct {
	Name string // below the directory that Import reads
	Path string
	Size int64
	// Key identifies the file's content: parts with equal keys are the same file, in
	// whatever build. It has 64 hexadecimal digits, and is empty for the small files
	// that describe a build.
	Key string
}

// PartsDir is the first element of every part's name.
const PartsDir = "build"

const (
	kernelPart     = "vmlinux"
	maxLayers      = 64
	maxDescription = 1 << 20
)

func layerPart(i int) (image, description string) {
	return filepath.Join(layersDir, strconv.Itoa(i)+".ext4"), filepath.Join(layersDir, strconv.Itoa(i)+".json")
}

// Parts returns the files of a build, in a fixed order. They exist as long as the
// build is in use.
func (s *Store) Parts(id string) ([]Part, error) {
	if _, err := s.Build(id); err != nil {
		return nil, err
	}
	m, err := s.readManifest(id)
	if err != nil {
		return nil, err
	}
	var parts []Part
	add := func(name string, f file) {
		parts = append(parts, Part{Name: filepath.Join(PartsDir, name), Path: f.path, Size: f.Size, Key: f.key()})
	}
	describe := func(name, path string) {
		parts = append(parts, Part{Name: filepath.Join(PartsDir, name), Path: path})
	}
	describe(manifestFile, s.path(buildsDir, id, manifestFile))
	add(kernelPart, file{s.path(kernelsDir, m.Kernel.SHA256, "vmlinux"), m.Kernel.fileID})
	for i, key := range m.Layers {
		l, err := s.readLayer(key)
		if err != nil {
			return nil, err
		}
		image, description := layerPart(i)
		describe(description, s.path(layersDir, key, layerManifest))
		add(image, file{s.layerPath(key), l.fileID})
	}
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		add(name, file{s.path(buildsDir, id, name), m.Files[name]})
	}
	return parts, nil
}

func (f fileID) key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %t %s", f.Size, f.Sparse, f.SHA256))
	return hex.EncodeToString(sum[:])
}

// Import adds a build of another store to this one. If the build is not there, it
// calls fetch, which puts the parts into an empty directory, under their names. It
// checks every file; ErrCorrupt names one that differs. The build has no name, so it
// is kept for a while, and then as long as a daemon says that it is in use
// (Collect).
func (s *Store) Import(ctx context.Context, id string, fetch func(ctx context.Context, dir string) error) error {
	if !isDigest(id) {
		return fmt.Errorf("%w: build %q", ErrNoTemplate, id)
	}
	unlock, err := s.lock(ctx, "build-"+id)
	if err != nil {
		return err
	}
	defer unlock()
	switch _, err := s.load(id); {
	case err == nil:
		// The caller is about to use it and has not recorded that yet; see
		// olderThan.
		now := time.Now()
		return os.Chtimes(s.path(buildsDir, id), now, now)
	case errors.Is(err, ErrOtherEngine), errors.Is(err, ErrOtherGuest):
		return err
	}
	dir, remove, err := s.workDir(ctx)
	if err != nil {
		return err
	}
	defer remove()
	if err := fetch(ctx, dir); err != nil {
		return err
	}
	if err := s.adopt(ctx, id, dir); err != nil {
		return fmt.Errorf("import template build %s: %w", id, err)
	}
	s.log.Info("template build imported", "build_id", id)
	return nil
}

func (s *Store) adopt(ctx context.Context, id, dir string) error {
	from := filepath.Join(dir, PartsDir)
	var m manifest
	if err := readDescription(filepath.Join(from, manifestFile), &m); err != nil {
		return err
	}
	if err := m.check(id); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := s.runs(m); err != nil {
		return err
	}
	if len(m.Layers) == 0 || len(m.Layers) > maxLayers || !isContentDigest(m.Kernel.SHA256) {
		return fmt.Errorf("%w: %s", ErrCorrupt, manifestFile)
	}
	done := filepath.Join(dir, "done")
	if err := s.adoptKernel(ctx, from, done, m.Kernel); err != nil {
		return err
	}
	for i := range m.Layers {
		key, err := s.adoptLayer(ctx, from, done, i)
		if err != nil {
			return err
		}
		if m.Layers[i] != key {
			return fmt.Errorf("%w: layer %d is %s, not %s", ErrCorrupt, i, key, m.Layers[i])
		}
	}
	build := filepath.Join(done, "build")
	for _, name := range slices.Sorted(maps.Keys(m.Files)) {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%w: file name %q", ErrCorrupt, name)
		}
		if err := s.adoptFile(ctx, filepath.Join(from, name), filepath.Join(build, name), m.Files[name]); err != nil {
			return err
		}
	}
	if err := marshalFile(filepath.Join(build, manifestFile), m); err != nil {
		return err
	}
	if err := atomicfile.Sync(filepath.Join(build, stateDir)); err != nil {
		return err
	}
	return s.publish(build, s.path(buildsDir, id))
}

func (s *Store) adoptKernel(ctx context.Context, from, done string, k kernelID) error {
	unlock, err := s.lock(ctx, "kernel-"+k.SHA256)
	if err != nil {
		return err
	}
	defer unlock()
	to := s.path(kernelsDir, k.SHA256)
	if st, err := os.Stat(filepath.Join(to, "vmlinux")); err == nil && st.Size() == k.Size {
		return nil
	}
	kernel := filepath.Join(done, "kernel")
	if err := s.adoptFile(ctx, filepath.Join(from, kernelPart), filepath.Join(kernel, "vmlinux"), k.fileID); err != nil {
		return err
	}
	return s.publish(kernel, to)
}

// adoptLayer moves a layer into the store and returns its key: the digest of its
// content, whatever its name on the other host.
func (s *Store) adoptLayer(ctx context.Context, from, done string, i int) (string, error) {
	image, description := layerPart(i)
	var l layer
	if err := readDescription(filepath.Join(from, description), &l); err != nil {
		return "", err
	}
	if l.Format != layerFormat || !isDigest(l.Key) {
		return "", fmt.Errorf("%w: %s is of format %d, layer %q", ErrCorrupt, description, l.Format, l.Key)
	}
	l.Key = l.fileID.layerKey()
	if s.haveLayer(l.Key) {
		return l.Key, nil
	}
	done = filepath.Join(done, "layer"+strconv.Itoa(i))
	if err := s.adoptFile(ctx, filepath.Join(from, image), filepath.Join(done, layerImage), l.fileID); err != nil {
		return "", err
	}
	return l.Key, s.publishLayer(ctx, l, done)
}

// adoptFile moves a file to its place in a directory that is being prepared, seals
// it, and compares its content.
func (s *Store) adoptFile(ctx context.Context, from, to string, want fileID) error {
	st, err := os.Lstat(from)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is no file", ErrCorrupt, from)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	got, err := s.seal(ctx, to, want.Sparse)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, not %d with %s", ErrCorrupt, filepath.Base(from), got.Size, got.SHA256, want.Size, want.SHA256)
	}
	return nil
}

func readDescription(path string, v any) error {
	st, err := os.Lstat(path)
	if err == nil && (!st.Mode().IsRegular() || st.Size() > maxDescription) {
		err = errors.New("it is no small file")
	}
	var raw []byte
	if err == nil {
		raw, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, filepath.Base(path), err)
	}
	return nil
}

// isContentDigest reports whether s is a complete SHA-256.
func isContentDigest(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == sha256.Size
}
