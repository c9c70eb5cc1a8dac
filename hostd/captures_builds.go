package hostd

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
)

// storeBuild makes a template build one that other hosts can fetch. One that is
// there already is left as it is: its name is its content's.
func (s *stored) storeBuild(ctx context.Context, build string) error {
	src := snapshot.Source{Meta: snapshot.Meta{Engine: s.engine, Labels: map[string]string{labelBuild: build}}}
	if err := s.addBuild(&src, build); err != nil {
		return err
	}
	if _, _, err := s.store.Upload(ctx, hostapi.StoredBuild(build), src); err != nil {
		return err
	}
	s.nowHas(build)
	return nil
}

// addBuild lists the files of a build.
func (s *stored) addBuild(src *snapshot.Source, build string) error {
	parts, err := s.images.Parts(build)
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

// hasBuild reports whether a build is known to be in the store.
func (s *stored) hasBuild(build string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.builds[build]
}

func (s *stored) nowHas(build string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.builds[build] = true
}

// keepBuilds forgets all builds but these: one that no template here means is
// deleted by way of any host, and may be built again.
func (s *stored) keepBuilds(ready []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.builds, func(build string, _ bool) bool { return !slices.Contains(ready, build) })
}

// forgetBuild forgets the build of this name in the store, if it is one's.
func (s *stored) forgetBuild(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.builds, func(build string, _ bool) bool { return hostapi.StoredBuild(build) == name })
}

// lookFor forgets a build that is not in the store any more.
func (s *stored) lookFor(ctx context.Context, build string) {
	name := hostapi.StoredBuild(build)
	if there, err := s.store.Has(ctx, name); err == nil && !there {
		s.forgetBuild(name)
	}
}

// FetchBuild puts a build among the templates' builds, if it is not there. That
// it is the one that was asked for, its name says, which is its content's.
func (s *stored) FetchBuild(ctx context.Context, build string) error {
	began := time.Now()
	err := s.images.Import(ctx, build, func(ctx context.Context, to string) error {
		aside := filepath.Join(to, "fetched")
		_, err := s.store.Fetch(ctx, hostapi.StoredBuild(build), aside, snapshot.FetchOptions{Engine: s.engine, Admit: s.admit})
		if err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(aside, image.PartsDir), filepath.Join(to, image.PartsDir)); err != nil {
			return fmt.Errorf("%w: it is no template build: %w", image.ErrCorrupt, err)
		}
		return nil
	})
	if err != nil {
		return refusal(err)
	}
	s.nowHas(build)
	s.log.Info("template build is fetched", "build_id", build, "took_ms", time.Since(began).Milliseconds())
	return nil
}
