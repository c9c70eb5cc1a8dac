package box

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

// overlays keeps clones of each template's empty overlay ready, so that a
// create renames a file instead of copying one.
type overlays struct {
	dir  string
	keep int
	log  *slog.Logger

	mu     sync.Mutex
	ready  map[string][]string // build id → paths
	seeds  map[string]string   // build id → seed
	serial int
	kick   chan struct{} // capacity 1
}

func newOverlays(dir string, keep int, log *slog.Logger) *overlays {
	return &overlays{dir: dir, keep: keep, log: log, ready: map[string][]string{}, seeds: map[string]string{}, kick: make(chan struct{}, 1)}
}

// take puts a fresh overlay of the template at dst: a ready one, or a clone
// made now.
func (o *overlays) take(ctx context.Context, tpl Template, dst string) error {
	for {
		path := o.pop(tpl)
		if path == "" {
			return image.CloneOverlay(tpl.OverlaySeed, dst)
		}
		if err := os.Rename(path, dst); err == nil {
			return nil
		}
		// Somebody tidied up; the next one, or a new one.
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (o *overlays) pop(tpl Template) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() {
		select {
		case o.kick <- struct{}{}:
		default:
		}
	}()
	o.seeds[tpl.BuildID] = tpl.OverlaySeed
	list := o.ready[tpl.BuildID]
	if len(list) == 0 {
		return ""
	}
	o.ready[tpl.BuildID] = list[1:]
	return list[0]
}

// offer tells of templates that boxes will be made from; builds that are no
// longer among them lose their clones.
func (o *overlays) offer(tpls []Template) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seeds := map[string]string{}
	for _, t := range tpls {
		seeds[t.BuildID] = t.OverlaySeed
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

// run keeps the pool full until ctx ends. What an earlier daemon left in the
// directory goes first: nobody knows any more whether it was flushed to disk.
func (o *overlays) run(ctx context.Context) {
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
func (o *overlays) missing() (build, seed string) {
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

// Offer tells the host which templates are ready, so that overlays for them
// are cloned ahead.
func (h *Host) Offer(tpls []Template) { h.overlays.offer(tpls) }
