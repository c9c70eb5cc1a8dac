package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// layer is layer.json: one read-only disk. The lowest layer of a template is a
// whole root file system; each further one is the writable disk of a guest that
// ran a template's steps, and holds what they changed.
type layer struct {
	Format    int       `json:"format"`
	Key       string    `json:"key"`
	Inputs    any       `json:"inputs"` // what the key is the digest of, for a person
	CreatedAt time.Time `json:"created_at"`
	fileID
}

const (
	layerImage    = "layer.ext4"
	layerManifest = "layer.json"
)

func (s *Store) layerPath(key string) string { return s.path(layersDir, key, layerImage) }

func (s *Store) readLayer(key string) (layer, error) {
	var l layer
	path := s.path(layersDir, key, layerManifest)
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &l)
	}
	if err == nil && (l.Format != formatVersion || l.Key != key) {
		err = errors.New("it is another layer's")
	}
	if err != nil {
		return l, fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	}
	return l, nil
}

// haveLayer says whether a layer is there and of the right size.
func (s *Store) haveLayer(key string) bool {
	l, err := s.readLayer(key)
	if err != nil {
		return false
	}
	st, err := os.Stat(s.layerPath(key))
	return err == nil && st.Size() == l.Size
}

// bootstrapInputs, imageInputs and stepInputs are what two layers must have in
// common to be one.
type bootstrapInputs struct {
	Format    int               `json:"format"`
	Bootstrap Bootstrap         `json:"bootstrap"`
	CAs       []string          `json:"cas,omitempty"` // SHA-256 of each certificate
	Files     map[string]string `json:"files,omitempty"`
}

type imageInputs struct {
	Format int    `json:"format"`
	Digest string `json:"digest"`
}

type stepInputs struct {
	Format int               `json:"format"`
	Below  []string          `json:"below"`
	Run    []string          `json:"run"`
	Files  map[string]string `json:"files"`
	Env    map[string]string `json:"env"`
	DiskMB int               `json:"disk_mb"`
}

// ensureLayers returns the keys of a definition's layers, the lowest first, and
// builds those that are missing. It completes the definition by what it has of
// the template or image that it is made from.
func (s *Store) ensureLayers(ctx context.Context, d *Definition, o Options, r *reporter) ([]string, error) {
	keys, err := s.ground(ctx, d, o, r)
	if err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil { // as it is now
		return nil, err
	}
	if len(d.Run) == 0 && (len(d.Files) == 0 || d.filesFromStart()) {
		return keys, nil
	}
	inputs := stepInputs{Format: formatVersion, Below: keys, Run: d.Run, Files: d.Files, Env: d.Env, DiskMB: d.DiskMB}
	key, err := s.ensureLayer(ctx, inputs, func(ctx context.Context, dir, image string) error {
		return s.stepLayer(ctx, *d, keys, dir, image, r)
	})
	if err != nil {
		return nil, err
	}
	return append(append([]string(nil), keys...), key), nil
}

// ensureLayer returns the key of the layer with these inputs, and has build make
// its image if it is not there. One daemon builds, the others wait for it.
func (s *Store) ensureLayer(ctx context.Context, inputs any, build func(ctx context.Context, dir, image string) error) (string, error) {
	key, err := digest(inputs)
	if err != nil {
		return "", err
	}
	unlock, err := s.lock(ctx, "layer-"+key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if s.haveLayer(key) {
		return key, nil
	}
	dir, remove, err := s.workDir(ctx)
	if err != nil {
		return "", err
	}
	defer remove()
	done := filepath.Join(dir, "layer")
	if err := os.Mkdir(done, 0o755); err != nil {
		return "", err
	}
	image := filepath.Join(done, layerImage)
	if err := build(ctx, dir, image); err != nil {
		return "", err
	}
	l := layer{Format: formatVersion, Key: key, Inputs: inputs, CreatedAt: time.Now().UTC()}
	if l.fileID, err = s.seal(ctx, image, true); err != nil {
		return "", err
	}
	if err := marshalFile(filepath.Join(done, layerManifest), l); err != nil {
		return "", err
	}
	return key, s.publish(done, s.path(layersDir, key))
}

// seal makes a finished file read-only and durable, and returns what it is.
func (s *Store) seal(ctx context.Context, path string, sparse bool) (fileID, error) {
	if err := os.Chown(path, 0, 0); err != nil && os.Geteuid() == 0 {
		return fileID{}, err
	}
	if err := os.Chmod(path, 0o444); err != nil {
		return fileID{}, err
	}
	if err := syncFile(path); err != nil {
		return fileID{}, fmt.Errorf("store %s: %w", path, err)
	}
	return identify(ctx, path, sparse)
}

// publish moves a finished directory to its place, over one that is damaged.
func (s *Store) publish(from, to string) error {
	if err := syncFile(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		// The place is taken by a directory that is not whole, or it would have
		// been used.
		if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if err := os.Rename(from, to); err != nil {
			return err
		}
	}
	return syncFile(filepath.Dir(to))
}

// bootstrapLayer makes a root file system on the host.
func (s *Store) bootstrapLayer(ctx context.Context, b Bootstrap, cas []authority, files map[string]string, dir, image string, r *reporter) error {
	root := filepath.Join(dir, "root")
	r.step(StepBootstrap, 0, b.Suite)
	if err := bootstrapRoot(ctx, b, cas, root, func(part float64, detail string) { r.step(StepBootstrap, part, detail) }); err != nil {
		return fmt.Errorf("bootstrap %s: %w", b.Suite, err)
	}
	if err := putFiles(root, files); err != nil {
		return fmt.Errorf("bootstrap %s: %w", b.Suite, err)
	}
	r.step(StepImage, 0, "")
	if err := makeImage(ctx, root, image); err != nil {
		return fmt.Errorf("make the root image: %w", err)
	}
	// The tree is the larger half of what a build needs on disk.
	return os.RemoveAll(root)
}

const (
	blockSize = 4096
	inodeSize = 256
)

// makeImage makes a read-only ext4 image of a directory, no larger than it must be.
func makeImage(ctx context.Context, root, image string) error {
	blocks, inodes, err := measure(root)
	if err != nil {
		return err
	}
	// Tables and maps: the inodes, and about two blocks in a hundred.
	blocks += inodes*inodeSize/blockSize + blocks/50 + 2048
	if err := sparse(image, blocks*blockSize); err != nil {
		return err
	}
	return mke2fs(ctx, "-m", "0", "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize),
		"-N", strconv.FormatInt(inodes+64, 10), "-O", "^has_journal,^resize_inode", "-E", "nodiscard",
		"-d", root, image)
}

// measure counts the blocks and inodes that a tree needs.
func measure(root string) (blocks, inodes int64, err error) {
	links := map[uint64]bool{}
	err = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 && !d.IsDir() {
			if links[st.Ino] {
				return nil
			}
			links[st.Ino] = true
		}
		inodes++
		switch {
		case d.IsDir():
			blocks += max(1, (info.Size()+blockSize-1)/blockSize)
		case info.Mode().IsRegular():
			blocks += (info.Size() + blockSize - 1) / blockSize
		case info.Mode()&fs.ModeSymlink != 0 && info.Size() >= 60:
			blocks++ // a longer target does not fit into the inode
		}
		return nil
	})
	return blocks, inodes, err
}
