package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// How long objects without a reference are kept: a daemon may be between looking up
// a build and recording that it uses it, and a build in progress may be based on the
// layer.
const (
	buildGrace = 10 * time.Minute
	layerGrace = 24 * time.Hour
	// Tenants choose images, and their builds may fail. A tenant's build takes two
	// hours at most.
	imageGrace = 3 * time.Hour
)

// usersRecord is the content of users/<daemon>.json.
type usersRecord struct {
	Builds []string `json:"builds"`
}

// Collect removes what is not needed any more: builds that no name means and no
// daemon uses, and layers and kernels of no build. inUse are the builds of the
// calling daemon's sandboxes; they are recorded for other daemons' collections.
func (s *Store) Collect(ctx context.Context, daemon string, inUse []string) error {
	if !validName.MatchString(daemon) {
		return fmt.Errorf("collect templates: %q is not the name of a daemon", daemon)
	}
	unlock, err := s.lock(ctx, "collect")
	if err != nil {
		return err
	}
	defer unlock()
	inUse = slices.Compact(slices.Sorted(slices.Values(inUse)))
	if err := marshalFile(s.path(usersDir, daemon+".json"), usersRecord{Builds: inUse}); err != nil {
		return fmt.Errorf("collect templates: %w", err)
	}
	if err := s.collect(time.Now()); err != nil {
		return fmt.Errorf("collect templates: %w", err)
	}
	return nil
}

func (s *Store) collect(now time.Time) error {
	used, err := s.usedBuilds()
	if err != nil {
		return err
	}
	builds, err := os.ReadDir(s.path(buildsDir))
	if err != nil {
		return err
	}
	needed := map[string]bool{} // layers and kernels
	for _, e := range builds {
		m, err := s.readManifest(e.Name())
		unused := !used[e.Name()] && olderThan(e, now, buildGrace)
		if unused {
			s.log.Info("template build removed", "build_id", e.Name(), "template", m.Definition.Name)
			if err := os.RemoveAll(s.path(buildsDir, e.Name())); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			continue // damaged: it cannot be used, and what it needs is unknown
		}
		needed[m.Kernel.SHA256] = true
		for _, key := range m.Layers {
			needed[key] = true
		}
	}
	for _, sub := range []string{layersDir, kernelsDir} {
		entries, err := os.ReadDir(s.path(sub))
		if err != nil {
			return err
		}
		for _, e := range entries {
			grace := layerGrace
			if sub == layersDir && s.isImage(e.Name()) {
				grace = timescale.Limit(imageGrace)
			}
			if needed[e.Name()] || !olderThan(e, now, grace) {
				continue
			}
			if err := os.RemoveAll(s.path(sub, e.Name())); err != nil {
				return err
			}
		}
	}
	return s.forgetRecipes()
}

// isImage reports whether a layer was made from an OCI image.
func (s *Store) isImage(key string) bool {
	l, err := s.readLayer(key)
	inputs, _ := l.Inputs.(map[string]any)
	return err == nil && inputs["digest"] != nil
}

// olderThan reports whether a directory has not changed for longer than grace.
func olderThan(e os.DirEntry, now time.Time, grace time.Duration) bool {
	info, err := e.Info()
	return err == nil && now.Sub(info.ModTime()) > grace
}

func (s *Store) usedBuilds() (map[string]bool, error) {
	used := map[string]bool{}
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		rec, err := s.readName(name)
		if errors.Is(err, ErrNoTemplate) {
			continue
		}
		if err != nil {
			return nil, err
		}
		used[rec.BuildID] = true
	}
	users, err := os.ReadDir(s.path(usersDir))
	if err != nil {
		return nil, err
	}
	for _, e := range users {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		raw, err := os.ReadFile(s.path(usersDir, e.Name()))
		if err != nil {
			return nil, err
		}
		var rec usersRecord
		if err := json.Unmarshal(raw, &rec); err != nil {
			return nil, fmt.Errorf("%w: %s", ErrCorrupt, s.path(usersDir, e.Name()))
		}
		for _, id := range rec.Builds {
			used[id] = true
		}
	}
	return used, nil
}
