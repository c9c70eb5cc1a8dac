package build

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
)

const (
	// preloadInterval is how late a template that became ready is stored,
	// lookInterval how late it is noticed that one is in the store no more.
	preloadInterval = 10 * time.Second
	lookInterval    = 5 * time.Minute
)

// LabelBuild is the label of what is stored that says which build it is, or was
// made from.
const LabelBuild = "build_id"

// StoredConfig is what Stored works with.
type StoredConfig struct {
	Snapshots *snapshot.Store
	Images    *image.Store
	Engine    string
	// Admit refuses what would fill the disk.
	Admit func(*snapshot.Manifest) error
	Log   *slog.Logger
}

// Stored is the template builds that are in the snapshot store: other hosts fetch
// them from there.
type Stored struct {
	cfg StoredConfig

	mu     sync.Mutex
	builds map[string]bool // that are there, of the templates that are ready
}

// NewStored returns a host's side of the builds in a store.
func NewStored(cfg StoredConfig) *Stored { return &Stored{cfg: cfg, builds: map[string]bool{}} }

// Upload stores a template build, so that other hosts can fetch it. A build
// that is there already is not stored again: its name is the digest of its
// contents.
func (s *Stored) Upload(ctx context.Context, build string) error {
	src := snapshot.Source{Meta: snapshot.Meta{Engine: s.cfg.Engine, Labels: map[string]string{LabelBuild: build}}}
	if err := s.AddFiles(&src, build); err != nil {
		return err
	}
	if _, _, err := s.cfg.Snapshots.Upload(ctx, hostapi.StoredBuild(build), src); err != nil {
		return err
	}
	s.nowHas(build)
	return nil
}

// AddFiles lists the files of a build.
func (s *Stored) AddFiles(src *snapshot.Source, build string) error {
	parts, err := s.cfg.Images.Parts(build)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Key == "" {
			src.Files = append(src.Files, snapshot.LocalFile{Name: p.Name, Path: p.Path})
			continue
		}
		src.Shared = append(src.Shared, snapshot.LocalShared{
			SharedFile: snapshot.SharedFile{Name: p.Name, SHA256: p.Key, Size: p.Size}, Path: p.Path,
		})
	}
	return nil
}

// Has reports whether a build is known to be in the store.
func (s *Stored) Has(build string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.builds[build]
}

func (s *Stored) nowHas(build string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.builds[build] = true
}

// keepBuilds forgets all builds but these. A build that no template here means
// may be deleted through another host, and built again.
func (s *Stored) keepBuilds(ready []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.builds, func(build string, _ bool) bool { return !slices.Contains(ready, build) })
}

// Forget forgets the build of this name in the store, if it is one's.
func (s *Stored) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.builds, func(build string, _ bool) bool { return hostapi.StoredBuild(build) == name })
}

// recheck forgets a build that is not in the store any more.
func (s *Stored) recheck(ctx context.Context, build string) {
	name := hostapi.StoredBuild(build)
	if there, err := s.cfg.Snapshots.Has(ctx, name); err == nil && !there {
		s.Forget(name)
	}
}

// Fetch adds a build to the templates' builds, if it is not there. Its name,
// which is the digest of its contents, proves that it is the right one.
func (s *Stored) Fetch(ctx context.Context, build string) error {
	began := time.Now()
	err := s.cfg.Images.Import(ctx, build, func(ctx context.Context, to string) error {
		aside := filepath.Join(to, "fetched")
		_, err := s.cfg.Snapshots.Fetch(ctx, hostapi.StoredBuild(build), aside, snapshot.FetchOptions{Engine: s.cfg.Engine, Admit: s.cfg.Admit})
		if err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(aside, image.PartsDir), filepath.Join(to, image.PartsDir)); err != nil {
			return fmt.Errorf("%w: it is no template build: %w", image.ErrCorrupt, err)
		}
		return nil
	})
	if err != nil {
		return Refusal(err)
	}
	s.nowHas(build)
	s.cfg.Log.Info("template build is fetched", "build_id", build, "took_ms", time.Since(began).Milliseconds())
	return nil
}

// Run stores the builds of templates, so that other hosts can fetch them, and
// so that the first snapshot of each need not upload some hundred megabytes.
func (s *Stored) Run(ctx context.Context, ready func() []string, changed func()) {
	tick := time.NewTicker(preloadInterval)
	defer tick.Stop()
	for looked := time.Now(); ; {
		look := time.Since(looked) >= lookInterval
		if look {
			looked = time.Now()
		}
		s.Sync(ctx, ready(), look, changed)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Sync stores those builds that are not known to be in the store, and forgets
// the others. With again, it looks whether those that are known to be there
// still are.
func (s *Stored) Sync(ctx context.Context, ready []string, again bool, changed func()) {
	s.keepBuilds(ready)
	for _, build := range ready {
		if again {
			s.recheck(ctx, build)
		}
		if s.Has(build) {
			continue
		}
		stats, err := s.share(ctx, build, s.cfg.Snapshots.ShareGently)
		if err == nil {
			s.cfg.Log.Info("template build is in the snapshot store", "build_id", build, "new_chunks", stats.NewChunks, "new_bytes", stats.NewBytes,
				"took_ms", stats.Took.Milliseconds())
			err = s.Upload(ctx, build)
		}
		if err != nil {
			if ctx.Err() == nil {
				s.cfg.Log.Warn("template build is not in the snapshot store yet", "build_id", build, "error", err)
			}
			continue
		}
		changed()
	}
}

// Share stores the files of a build that several snapshots have, which is nearly all of
// it, before a snapshot or another host needs them.
func (s *Stored) Share(ctx context.Context, build string) (snapshot.Stats, error) {
	return s.share(ctx, build, s.cfg.Snapshots.Share)
}

func (s *Stored) share(ctx context.Context, build string, by func(context.Context, []snapshot.LocalShared) (snapshot.Stats, error)) (snapshot.Stats, error) {
	parts, err := s.cfg.Images.Parts(build)
	if err != nil {
		return snapshot.Stats{}, err
	}
	var files []snapshot.LocalShared
	for _, p := range parts {
		if p.Key != "" {
			files = append(files, snapshot.LocalShared{SharedFile: snapshot.SharedFile{Name: p.Name, SHA256: p.Key, Size: p.Size}, Path: p.Path})
		}
	}
	return by(ctx, files)
}

// Refusal names an error of the stores as the host does.
func Refusal(err error) error {
	for is, as := range map[error]error{
		snapshot.ErrNotFound:    hosterr.ErrNoSnapshot,
		snapshot.ErrInvalid:     hosterr.ErrInvalid,
		snapshot.ErrIncomplete:  hosterr.ErrBadSnapshot,
		snapshot.ErrDamaged:     hosterr.ErrBadSnapshot,
		snapshot.ErrOtherFormat: hosterr.ErrBadSnapshot,
		snapshot.ErrOtherEngine: hosterr.ErrBadSnapshot,
		image.ErrCorrupt:        hosterr.ErrBadSnapshot,
		image.ErrOtherEngine:    hosterr.ErrBadSnapshot,
		image.ErrOtherGuest:     hosterr.ErrBadSnapshot,
		image.ErrNoTemplate:     hosterr.ErrBadSnapshot,
	} {
		if errors.Is(err, is) {
			return fmt.Errorf("%w: %w", as, err)
		}
	}
	return err
}
