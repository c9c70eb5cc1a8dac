package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/vmm"
)

// Errors that callers distinguish.
var (
	ErrNoTemplate  = errors.New("no such template")
	ErrCorrupt     = errors.New("template is damaged")
	ErrOtherEngine = errors.New("template was stored by another engine")
	ErrOtherGuest  = errors.New("template was stored with an older guest agent")
)

// Guest is the size of a build's guest.
type Guest struct{ CPU, MemoryMB, DiskMB int }

// Lease is a network slot for a build's guest, and the confinement of its VMM.
type Lease struct {
	NetNS    string // path
	UID, GID int    // user that runs the VMM and owns the tap
	Groups   []int
	Cgroup   vmm.Cgroup // the zero value: none
	Dial     func(ctx context.Context, port int) (net.Conn, error)
	Release  func()
}

// Config says where the store is and what templates are built with.
type Config struct {
	Dir    string
	Engine vmm.Engine
	Kernel string // path of a PVH vmlinux; its modules lie in modules/ beside it
	Guestd string // path of the static binary
	// Lease takes a slot; builds call it before they boot a guest. Nil: the store is
	// read-only, and builds fail.
	Lease  func(ctx context.Context, g Guest) (Lease, error)
	Logger *slog.Logger

	// OCIAllow are registries and networks that are not public, but from which
	// tenants' images may come; see oci.Policy.
	OCIAllow []string
	OCIMaxMB int // of an image, unpacked; 0: oci.DefaultMaxMB
	// GuestCAs is a directory whose *.crt bootstrapped root file systems trust, in
	// addition to Debian's own; "": none.
	GuestCAs string
	// Sizes are of the operator's templates, by name, over what their definitions say.
	Sizes map[string]Size
}

// Size is what a template's guests have; 0: as its definition says.
type Size struct{ CPU, MemoryMB int }

// Store is a directory of templates. Several daemons may use one at the same time,
// each with its own Store.
type Store struct {
	cfg Config
	log *slog.Logger
}

// The store's directory:
//
//	names/<template>.json    which build a name means
//	builds/<build id>/       template.json, initramfs.cpio, overlay.ext4, ram, state/
//	layers/<key>/            layer.json, layer.ext4
//	kernels/<sha256>/vmlinux
//	recipes/<key>.json       the layer or the build that was made from a recipe
//	users/<daemon>.json      the builds that a daemon's sandboxes use
//	locks/                   one file a build, a layer and a name
//	tmp/                     unfinished work; each entry locked by whoever does it
const (
	namesDir   = "names"
	buildsDir  = "builds"
	layersDir  = "layers"
	kernelsDir = "kernels"
	recipesDir = "recipes"
	usersDir   = "users"
	locksDir   = "locks"
	tmpDir     = "tmp"
)

// Open opens a store, and creates it if it does not exist. It removes unfinished
// builds, and the VMs of daemons that were killed.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("template store: %w", err)
	}
	cfg.Dir = dir
	s := &Store{cfg: cfg, log: cfg.Logger}
	for _, sub := range []string{namesDir, buildsDir, layersDir, kernelsDir, recipesDir, usersDir, locksDir, tmpDir} {
		// Only root may enter: VMMs are given the files that they may read.
		path := filepath.Join(dir, sub)
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, 0o700)); err != nil {
			return nil, fmt.Errorf("template store: %w", err)
		}
	}
	if err := s.sweep(ctx); err != nil {
		return nil, fmt.Errorf("template store: clean up: %w", err)
	}
	return s, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, parts...)...)
}

// Template is a stored build from which sandboxes can be created. Its files must not
// be changed.
type Template struct {
	Name, BuildID         string
	By                    string // for whom the name was set, see Options
	Definition            Definition
	CPU, MemoryMB, DiskMB int
	Kernel                string   // path of the vmlinux
	Initramfs             string   // path
	Layers                []string // paths of the read-only disks, lowest first
	OverlaySeed           string   // path of the writable disk to clone, as it was when the guest was stored
	RAM                   string   // path
	SnapshotDir           string   // path of the stored state
	Engine                string   // kind and version
	KernelVersion         string
	SizeBytes             int64 // on disk, with the layers
	OpenConnections       int   // TCP connections to the outside that the stored guest has
	CreatedAt             time.Time
}

// nameRecord is the content of names/<template>.json.
type nameRecord struct {
	BuildID   string    `json:"build_id"`
	By        string    `json:"by,omitempty"` // Options.By
	UpdatedAt time.Time `json:"updated_at"`
}

// Get returns the build that a name means, after checking its files: ErrCorrupt
// names a file that is missing or has another size, ErrOtherEngine the engine that
// stored the build.
func (s *Store) Get(name string) (Template, error) {
	rec, err := s.readName(name)
	if err != nil {
		return Template{}, err
	}
	t, err := s.load(rec.BuildID)
	if err != nil {
		return Template{}, fmt.Errorf("template %s: %w", name, err)
	}
	t.By = rec.By
	return t, nil
}

// Build returns a build by its id, whether or not a name means it.
func (s *Store) Build(id string) (Template, error) { return s.build(id, s.runs) }

// Bootable is Build for a guest that boots from its kernel or continues from a state of
// its own, so that it does not matter which engine stored the build.
func (s *Store) Bootable(id string) (Template, error) { return s.build(id, hasGuest) }

func (s *Store) build(id string, good func(manifest) error) (Template, error) {
	if !isDigest(id) {
		return Template{}, fmt.Errorf("%w: build %q", ErrNoTemplate, id)
	}
	if _, err := os.Stat(s.path(buildsDir, id)); errors.Is(err, os.ErrNotExist) {
		return Template{}, fmt.Errorf("%w: build %s", ErrNoTemplate, id)
	}
	t, err := s.loadIf(id, good)
	if err != nil {
		return Template{}, fmt.Errorf("template build %s: %w", id, err)
	}
	return t, nil
}

func (s *Store) readName(name string) (nameRecord, error) {
	var rec nameRecord
	if !validName.MatchString(name) {
		return rec, fmt.Errorf("%w: %q", ErrNoTemplate, name)
	}
	raw, err := os.ReadFile(s.path(namesDir, name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return rec, fmt.Errorf("%w: %s", ErrNoTemplate, name)
	}
	if err != nil {
		return rec, fmt.Errorf("template %s: %w", name, err)
	}
	if err := json.Unmarshal(raw, &rec); err != nil || !isDigest(rec.BuildID) {
		return rec, fmt.Errorf("template %s: %w: %s", name, ErrCorrupt, s.path(namesDir, name+".json"))
	}
	return rec, nil
}

// List returns every intact template, by name, and the errors of the others.
func (s *Store) List() ([]Template, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	var all []Template
	var failed error
	for _, name := range names {
		t, err := s.Get(name)
		switch {
		case err == nil:
			all = append(all, t)
		case !errors.Is(err, ErrNoTemplate): // otherwise it was removed meanwhile
			failed = errors.Join(failed, err)
		}
	}
	return all, failed
}

// Names returns the names of all templates, sorted, intact or not.
func (s *Store) Names() ([]string, error) {
	entries, err := os.ReadDir(s.path(namesDir))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, ok := cutJSON(e.Name()); ok && validName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// cutJSON returns the name of a record's file without its extension.
func cutJSON(file string) (string, bool) { return strings.CutSuffix(file, ".json") }

// Remove removes a name. Collect removes the build's files once no sandbox uses
// them.
func (s *Store) Remove(ctx context.Context, name string) error {
	unlock, err := s.lock(ctx, "name-"+name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.readName(name); errors.Is(err, ErrNoTemplate) {
		return err
	}
	if err := os.Remove(s.path(namesDir, name+".json")); err != nil {
		return fmt.Errorf("remove template %s: %w", name, err)
	}
	return atomicfile.Sync(s.path(namesDir))
}

// Verify reads every file of a template and compares its checksum.
func (s *Store) Verify(ctx context.Context, name string) error {
	rec, err := s.readName(name)
	if err != nil {
		return err
	}
	m, err := s.readManifest(rec.BuildID)
	if err != nil {
		return fmt.Errorf("template %s: %w", name, err)
	}
	for _, f := range s.allFiles(m) {
		if err := f.verify(ctx); err != nil {
			return fmt.Errorf("template %s: %w", name, err)
		}
	}
	return nil
}

func isDigest(s string) bool {
	return len(s) == digestLen && strings.Trim(s, "0123456789abcdef") == ""
}
