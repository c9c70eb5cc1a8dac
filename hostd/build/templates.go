package build

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
)

const (
	// scanInterval is how late a template that another process built or removed
	// is told of.
	scanInterval    = 5 * time.Second
	collectInterval = 10 * time.Minute
)

// The statuses of a template, as hostapi.TemplateState has them.
const (
	templateReady  = "ready"
	templateFailed = "failed"
)

// Templates are those that this host has, or could build.
type Templates struct {
	store *image.Store
	dir   string // of definitions that can be built here; empty: none
	ahead []string
	host  string // this one, in the store's record of who uses what
	log   *slog.Logger
	inUse func() []string // builds that boxes and captures were made from

	rescan chan struct{}

	mu      sync.Mutex
	states  map[string]hostapi.TemplateState // by name
	sources map[string]definition            // by name
	kernel  string
}

func newTemplates(cfg Config) *Templates {
	return &Templates{
		store: cfg.Images, dir: cfg.Sources, ahead: cfg.Ahead, host: cfg.Host, log: cfg.Log, inUse: cfg.InUse,
		rescan: make(chan struct{}, 1), states: map[string]hostapi.TemplateState{},
	}
}

// Get returns what a box is made from. It reads the store each time, so that a
// damaged template is refused before a guest is started from it.
func (t *Templates) Get(name string) (image.Template, error) {
	tpl, err := t.store.Get(name)
	if err != nil {
		return image.Template{}, fmt.Errorf("%w: %w", hosterr.ErrTemplate, err)
	}
	return tpl, nil
}

// Build returns a build that a box or a capture was made from.
func (t *Templates) Build(id string) (image.Template, error) { return asTemplate(t.store.Build(id)) }

// Bootable returns a build, whichever engine stored it: a box that has its disk
// already is booted with it, or goes on from its own saved state.
func (t *Templates) Bootable(id string) (image.Template, error) {
	return asTemplate(t.store.Bootable(id))
}

func asTemplate(tpl image.Template, err error) (image.Template, error) {
	if err != nil {
		return image.Template{}, fmt.Errorf("%w: %w", hosterr.ErrTemplate, err)
	}
	return tpl, nil
}

// States is what a heartbeat tells, ordered by name.
func (t *Templates) States() []hostapi.TemplateState {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Collect(maps.Values(t.states))
	slices.SortFunc(out, func(a, b hostapi.TemplateState) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Ready are the builds of the templates that are ready.
func (t *Templates) Ready() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, s := range t.states {
		if s.Status == templateReady {
			out = append(out, s.BuildID)
		}
	}
	slices.Sort(out)
	return out
}

// KernelVersion is that of the guests, empty while no template is ready.
func (t *Templates) KernelVersion() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kernel
}

// Scan looks at every template of the store and returns those that are ready.
func (t *Templates) Scan() []image.Template {
	names, err := t.store.Names()
	if err != nil {
		t.log.Error("templates cannot be listed", "error", err)
		return nil
	}
	states := map[string]hostapi.TemplateState{}
	var ready []image.Template
	kernel := ""
	for _, name := range names {
		tpl, err := t.store.Get(name)
		switch {
		case errors.Is(err, image.ErrNoTemplate): // removed meanwhile
		case err != nil:
			states[name] = hostapi.TemplateState{Name: name, Status: templateFailed, Error: err.Error()}
		default:
			ready = append(ready, tpl)
			kernel = tpl.KernelVersion
			states[name] = hostapi.TemplateState{
				Name: name, BuildID: tpl.BuildID, Build: tpl.By, Status: templateReady, CPU: tpl.CPU, MemoryMB: tpl.MemoryMB, DiskMB: tpl.DiskMB,
				SizeBytes: tpl.SizeBytes, CreatedAt: tpl.CreatedAt,
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, s := range states {
		if old := t.states[name]; old.Status != s.Status || old.BuildID != s.BuildID || old.Error != s.Error {
			t.log.Info("template", "template", name, "status", s.Status, "build_id", s.BuildID, "error", s.Error)
		}
	}
	t.states = states
	if kernel != "" {
		t.kernel = kernel
	}
	return ready
}

// run reports to offer what is ready, until ctx ends.
func (t *Templates) run(ctx context.Context, offer func([]image.Template)) {
	scan, collect := time.NewTicker(scanInterval), time.NewTicker(collectInterval)
	defer scan.Stop()
	defer collect.Stop()
	t.collect(ctx)
	for {
		offer(t.Scan())
		select {
		case <-ctx.Done():
			return
		case <-scan.C:
		case <-t.rescan:
		case <-collect.C:
			t.collect(ctx)
			t.readSources(ctx)
		}
	}
}

// collect tells the store which builds this host's boxes use, and removes those
// that nobody uses.
func (t *Templates) collect(ctx context.Context) {
	if err := t.store.Collect(ctx, t.host, t.inUse()); err != nil && ctx.Err() == nil {
		t.log.Error("old template builds could not be removed", "error", err)
	}
}
