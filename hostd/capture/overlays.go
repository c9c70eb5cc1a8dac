package capture

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/image"
)

// Overlays keeps clones of each template's empty overlay ready, so that a
// create renames a file instead of copying one.
type Overlays struct {
	dir  string
	keep int
	log  *slog.Logger

	mu     sync.Mutex
	ready  map[string][]string // build id → paths
	seeds  map[string]string   // build id → seed
	serial int
	kick   chan struct{} // capacity 1
}

// NewOverlays returns a pool in a directory. keep is the number of clones for
// each template.
func NewOverlays(dir string, keep int, log *slog.Logger) *Overlays {
	return &Overlays{dir: dir, keep: keep, log: log, ready: map[string][]string{}, seeds: map[string]string{}, kick: make(chan struct{}, 1)}
}

// Seed is the empty overlay of a template build.
type Seed struct {
	Build string
	Path  string
}

// Take puts a fresh overlay of a template at dst: a ready one, or a clone made
// now.
func (o *Overlays) Take(ctx context.Context, seed Seed, dst string) error {
	for {
		path := o.pop(seed)
		if path == "" {
			return image.CloneOverlay(seed.Path, dst)
		}
		if err := os.Rename(path, dst); err == nil {
			return nil
		}
		// The clone was removed; take the next one, or a new one.
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (o *Overlays) pop(seed Seed) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		select {
		case o.kick <- struct{}{}:
		default:
		}
	}()
	o.seeds[seed.Build] = seed.Path
	list := o.ready[seed.Build]
	if len(list) == 0 {
		return ""
	}
	o.ready[seed.Build] = list[1:]
	return list[0]
}

// Offer tells of the builds that boxes will be made from; those that are no longer
// among them lose their clones.
func (o *Overlays) Offer(offered []Seed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seeds := map[string]string{}
	for _, s := range offered {
		seeds[s.Build] = s.Path
	}
	for build, list := range o.ready {
		if _, ok := seeds[build]; !ok {
			for _, path := range list {
				_ = os.Remove(path)
			}
			delete(o.ready, build)
		}
	}
	o.seeds = seeds
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// Run keeps the pool full until ctx ends. First it removes what an earlier
// daemon left in the directory: it may not have been flushed to disk.
func (o *Overlays) Run(ctx context.Context) {
	if old, err := filepath.Glob(filepath.Join(o.dir, "*")); err == nil {
		for _, path := range old {
			_ = os.Remove(path)
		}
	}
	for {
		build, seed := o.missing()
		if build == "" {
			select {
			case <-ctx.Done():
				return
			case <-o.kick:
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		o.mu.Lock()
		o.serial++
		path := filepath.Join(o.dir, fmt.Sprintf("%.16s-%d", build, o.serial))
		o.mu.Unlock()
		if err := image.CloneOverlay(seed, path); err != nil {
			o.log.Warn("no overlay could be cloned ahead", "build_id", build, "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(5 * time.Second):
			}
			continue
		}
		o.mu.Lock()
		o.ready[build] = append(o.ready[build], path)
		o.mu.Unlock()
	}
}

// missing names the build with the fewest clones, if one has too few.
func (o *Overlays) missing() (build, seed string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fewest := o.keep
	for b, s := range o.seeds {
		if n := len(o.ready[b]); n < fewest {
			build, seed, fewest = b, s, n
		}
	}
	return build, seed
}
