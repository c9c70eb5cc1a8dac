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

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// layer is layer.json, the description of one read-only disk. The lowest layer of a
// template is a whole root file system. Each further one is the writable disk of a
// guest that ran a template's steps, and contains their changes. Its key is the
// digest of its content: if a damaged layer is made again from the same recipe, it
// has another key.
type layer struct {
	Format    int       `json:"format"`
	Key       string    `json:"key"`
	Inputs    any       `json:"inputs"` // of its recipe, for people
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
	if err == nil && (l.Format != layerFormat || l.Key != key) {
		err = errors.New("it is another layer's")
	}
	if err != nil {
		return l, fmt.Errorf("%w: %s: %w", ErrCorrupt, path, err)
	}
	return l, nil
}

// haveLayer reports whether a layer exists and has the right size.
func (s *Store) haveLayer(key string) bool {
	l, err := s.readLayer(key)
	if err != nil {
		return false
	}
	st, err := os.Stat(s.layerPath(key))
	return err == nil && st.Size() == l.Size
}

// bootstrapInputs, imageInputs and stepInputs are the recipes of layers. If a layer
// was made from an equal recipe, it is used again.
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

// stepInputs contain the workspace, because what a workspace's steps fetched and
// created must not get into another's templates.
type stepInputs struct {
	Format    int               `json:"format"`
	Workspace string            `json:"workspace,omitempty"` // empty: the operator's
	Below     []string          `json:"below"`
	Run       []string          `json:"run"`
	Files     map[string]string `json:"files"`
	Programs  map[string]string `json:"programs,omitempty"` // path → SHA-256
	Env       map[string]string `json:"env"`
	DiskMB    int               `json:"disk_mb"`
}

// maxTemplateLayers is how many layers a template may have. An engine has 30 places for
// devices: beside layers the overlay, the network, the entropy source, and up to eight
// volumes.
const maxTemplateLayers = 30 - 3 - hostapi.MaxVolumes

// ensureLayers returns the keys of a definition's layers, lowest first, and builds
// those that are missing. It completes the definition with what it inherits.
func (s *Store) ensureLayers(ctx context.Context, d *Definition, o Options, r *reporter) ([]string, error) {
	keys, err := s.baseLayers(ctx, d, o, r)
	if err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil { // with what it inherited
		return nil, err
	}
	if o.Admit != nil {
		if _, err := o.Admit(Guest{CPU: d.CPU, MemoryMB: d.MemoryMB, DiskMB: d.DiskMB}); err != nil {
			return nil, err
		}
	}
	if len(d.Run) == 0 && len(d.Programs) == 0 && (len(d.Files) == 0 || d.filesFromStart()) {
		return keys, nil
	}
	if len(keys) >= maxTemplateLayers {
		return nil, fmt.Errorf("%w: from: %s has %d layers, and a template at most %d: base it on an earlier one", ErrInvalid, d.From, len(keys), maxTemplateLayers)
	}
	programs, err := s.programs(ctx, *d)
	if err != nil {
		return nil, err
	}
	inputs := stepInputs{
		Format: layerRecipe, Workspace: o.Workspace, Below: keys, Run: d.Run, Files: d.Files, Programs: programs, Env: d.Env, DiskMB: d.DiskMB,
	}
	key, err := s.ensureLayer(ctx, inputs, func(ctx context.Context, dir, image string) error {
		return s.stepLayer(ctx, *d, keys, dir, image, r)
	})
	if err != nil {
		return nil, err
	}
	return append(append([]string(nil), keys...), key), nil
}

// ensureLayer returns the key of a layer from these inputs, and calls build to
// create its image if there is none. One daemon builds it, the others wait.
func (s *Store) ensureLayer(ctx context.Context, inputs any, build func(ctx context.Context, dir, image string) error) (string, error) {
	recipe, err := digest(inputs)
	if err != nil {
		return "", err
	}
	unlock, err := s.lock(ctx, "recipe-"+recipe)
	if err != nil {
		return "", err
	}
	defer unlock()
	if key := s.made(recipe).Layer; key != "" && s.haveLayer(key) {
		s.use(key)
		return key, nil
	}
	if s.haveLayer(recipe) { // from when recipes were names
		build = func(_ context.Context, _, image string) error { return os.Link(s.layerPath(recipe), image) }
	}
	key, err := s.makeLayer(ctx, inputs, build)
	if err != nil {
		return "", err
	}
	return key, s.note(recipe, madeRecord{Layer: key})
}

// use notes that a build begins with a layer: Collect keeps what was used a while ago. It
// may be another daemon's collection that has removed it just now: then the build fails.
func (s *Store) use(key string) {
	now := time.Now()
	_ = os.Chtimes(s.path(layersDir, key), now, now)
}

func (s *Store) makeLayer(ctx context.Context, inputs any, build func(ctx context.Context, dir, image string) error) (string, error) {
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
	l := layer{Format: layerFormat, Inputs: inputs, CreatedAt: time.Now().UTC()}
	if l.fileID, err = s.seal(ctx, image, true); err != nil {
		return "", err
	}
	l.Key = l.fileID.layerKey()
	return l.Key, s.publishLayer(ctx, l, done)
}

// byContent returns the keys of layers by their contents; older ones were named
// after their recipes.
func (s *Store) byContent(ctx context.Context, keys []string) ([]string, error) {
	out := make([]string, len(keys))
	for i, key := range keys {
		l, err := s.readLayer(key)
		if err != nil {
			return nil, err
		}
		if out[i] = l.fileID.layerKey(); out[i] == key || s.haveLayer(out[i]) {
			s.use(out[i])
			continue
		}
		out[i], err = s.makeLayer(ctx, l.Inputs, func(_ context.Context, _, image string) error { return os.Link(s.layerPath(key), image) })
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// layerKey returns the key of a layer with this content.
func (f fileID) layerKey() string { return f.key()[:digestLen] }

// publishLayer moves a finished layer to its place, unless it is there.
func (s *Store) publishLayer(ctx context.Context, l layer, done string) error {
	unlock, err := s.lock(ctx, "layer-"+l.Key)
	if err != nil {
		return err
	}
	defer unlock()
	if s.haveLayer(l.Key) {
		return nil
	}
	if err := marshalFile(filepath.Join(done, layerManifest), l); err != nil {
		return err
	}
	return s.publish(done, s.path(layersDir, l.Key))
}

// seal makes a finished file read-only and durable, and returns its identity.
func (s *Store) seal(ctx context.Context, path string, sparse bool) (fileID, error) {
	if err := os.Chown(path, 0, 0); err != nil && os.Geteuid() == 0 {
		return fileID{}, err
	}
	if err := os.Chmod(path, 0o444); err != nil {
		return fileID{}, err
	}
	if err := atomicfile.Sync(path); err != nil {
		return fileID{}, fmt.Errorf("store %s: %w", path, err)
	}
	return identify(ctx, path, sparse)
}

// publish moves a finished directory to its place. It replaces a damaged one.
func (s *Store) publish(from, to string) error {
	if err := atomicfile.Sync(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		// The existing directory is incomplete, or it would have been used.
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
	return atomicfile.Sync(filepath.Dir(to))
}

// bootstrapLayer creates a root file system on the host.
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
	// The tree takes more than half of a build's disk space.
	return os.RemoveAll(root)
}

const (
	blockSize = 4096
	inodeSize = 256
)

// makeImage creates a read-only ext4 image of a directory, as small as possible.
func makeImage(ctx context.Context, root, image string) error {
	blocks, inodes, err := measure(root)
	if err != nil {
		return err
	}
	// For tables and bitmaps: the inodes, and about two blocks in a hundred.
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
