// Package build owns the templates of a host: those that are there, those that
// are being built, and those that the snapshot store has. hostd/image knows how
// one is built.
package build

import (
	"context"
	"log/slog"
	"runtime"
	"sync"

	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
)

// Config is what Builds work with.
type Config struct {
	Dir      string // of the builds' records and logs
	Images   *image.Store
	Sources  string   // directory of definitions that can be built here; empty: none
	Ahead    []string // those of them that are built before anybody asks
	Host     string   // this one, in the record of who uses which build
	Engine   string   // noted with what is stored
	MemoryMB int      // that the host has for sandboxes
	// Snapshots may be nil: there is no snapshot store.
	Snapshots *snapshot.Store
	// InUse are the builds that boxes and captures were made from.
	InUse func() []string
	// Admit takes what a build's guest needs, as a box of this size would.
	Admit func(image.Guest) (release func(), err error)
	// Room refuses what of an image would fill the disk.
	Room func(bytes int64) error
	// AdmitFetch refuses what would fill the disk.
	AdmitFetch func(*snapshot.Manifest) error
	Log        *slog.Logger
}

// Builds owns the templates of a host.
type Builds struct {
	Templates *Templates
	Queue     *Queue
	Stored    *Stored // nil: there is no snapshot store
}

// Open reads what an earlier daemon left. Nothing is built before Run.
func Open(cfg Config) (*Builds, error) {
	b := &Builds{Templates: newTemplates(cfg)}
	queue := queueConfig{
		Dir: cfg.Dir, MemoryMB: cfg.MemoryMB, Parallel: runtime.NumCPU() / 2, Ensure: cfg.Images.EnsureWith, Source: b.Templates.source,
		Have:  func(digest string) bool { _, err := cfg.Images.Build(digest); return err == nil },
		Admit: cfg.Admit, Room: cfg.Room, Changed: b.Templates.Changed, Delete: b.Templates.Delete, Log: cfg.Log,
	}
	if cfg.Snapshots != nil {
		b.Stored = NewStored(StoredConfig{
			Snapshots: cfg.Snapshots, Images: cfg.Images, Engine: cfg.Engine, Admit: cfg.AdmitFetch, Log: cfg.Log,
		})
		queue.Fetch = func(ctx context.Context, digest, template, by string) (image.Template, error) {
			if err := b.Stored.Fetch(ctx, digest); err != nil {
				return image.Template{}, err
			}
			if err := cfg.Images.Point(ctx, template, digest, by); err != nil {
				return image.Template{}, err
			}
			return cfg.Images.Get(template)
		}
	}
	var err error
	b.Queue, err = newQueue(queue)
	return b, err
}

// Scan looks at every template, so that the first create need not.
func (b *Builds) Scan(ctx context.Context) {
	b.Templates.readSources(ctx)
	b.Templates.Scan()
}

// Run builds what is asked for, stores what is ready, and tells offer of it, until
// ctx ends.
func (b *Builds) Run(ctx context.Context, offer func([]image.Template)) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { b.Templates.run(ctx, offer) })
	parts.Go(func() { b.Queue.Run(ctx) })
	if b.Stored != nil {
		parts.Go(func() { b.Stored.Run(ctx, b.Templates.Ready, b.Templates.Changed) })
	}
}
