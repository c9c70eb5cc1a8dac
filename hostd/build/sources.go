package build

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/image/oci"
)

// Changed has the templates scanned at once.
func (t *Templates) Changed() {
	select {
	case t.rescan <- struct{}{}:
	default:
	}
}

// Delete removes a template that no box or capture here was made from. Its
// files go when nothing needs them.
func (t *Templates) Delete(ctx context.Context, name string) error {
	tpl, err := t.store.Get(name)
	switch {
	case errors.Is(err, image.ErrNoTemplate):
		return nil
	case err == nil && slices.Contains(t.inUse(), tpl.BuildID):
		return fmt.Errorf("%w: sandboxes or captures were made from it", hosterr.ErrInUse)
	}
	// A template that is damaged can be removed as well.
	if err := t.store.Remove(ctx, name); err != nil && !errors.Is(err, image.ErrNoTemplate) {
		return err
	}
	t.Changed()
	return nil
}

// definition is one of the operator's on this host.
type definition struct {
	image.Definition
	from, recipe   string
	cpu, mem, disk int // what it inherits filled in
}

// readSources reads the operator's definitions. If that fails, it is logged,
// and the definitions that were read before stay in force.
func (t *Templates) readSources(ctx context.Context) {
	if t.dir == "" {
		return
	}
	defs, err := image.ReadDefinitions(t.dir)
	if err != nil {
		t.log.Error("template definitions cannot be read", "dir", t.dir, "error", err)
		return
	}
	for i := range defs {
		defs[i] = t.store.Fit(defs[i])
	}
	complete := image.Complete(defs)
	sources := map[string]definition{}
	for i, d := range defs {
		recipe, err := t.store.Recipe(ctx, d)
		if err != nil {
			t.log.Error("template definition cannot be used", "template", d.Name, "error", err)
			continue
		}
		c := complete[i]
		sources[d.Name] = definition{Definition: d, from: d.From, recipe: recipe, cpu: c.CPU, mem: c.MemoryMB, disk: c.DiskMB}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sources = sources
}

// Sources is what a heartbeat tells of the definitions, ordered by name.
func (t *Templates) Sources() []hostapi.TemplateSource {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]hostapi.TemplateSource, 0, len(t.sources))
	for _, name := range slices.Sorted(maps.Keys(t.sources)) {
		d := t.sources[name]
		from := d.from
		if oci.IsReference(from) {
			from = ""
		}
		out = append(out, hostapi.TemplateSource{
			Name: name, From: from, Recipe: d.recipe, Ahead: slices.Contains(t.ahead, name), CPU: d.cpu, MemoryMB: d.mem, DiskMB: d.disk,
		})
	}
	return out
}

// source finds a definition with the recipe that was asked for.
func (t *Templates) source(name, recipe string) (image.Definition, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d, ok := t.sources[name]
	return d.Definition, ok && d.recipe == recipe
}
