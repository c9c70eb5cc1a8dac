package hostd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/image"
)

// takeTurn waits for the turn of one build: a guest that boots under emulation
// takes a whole processor.
func (t *templates) takeTurn(ctx context.Context) (done func(), err error) {
	select {
	case t.turn <- struct{}{}:
		return func() { <-t.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Changed has the templates looked through at once.
func (t *templates) Changed() {
	select {
	case t.rescan <- struct{}{}:
	default:
	}
}

// Delete removes a template that no box or capture here was made from. Its
// files go when nothing needs them.
func (t *templates) Delete(ctx context.Context, name string) error {
	tpl, err := t.store.Get(name)
	switch {
	case errors.Is(err, image.ErrNoTemplate):
		return nil
	case err == nil && slices.Contains(t.inUse(), tpl.BuildID):
		return fmt.Errorf("%w: sandboxes or captures were made from it", box.ErrInUse)
	}
	// One that is damaged goes as well.
	if err := t.store.Remove(ctx, name); err != nil && !errors.Is(err, image.ErrNoTemplate) {
		return err
	}
	t.Changed()
	return nil
}

// buildSources builds, one after the other, what is missing of the definitions.
func (t *templates) buildSources(ctx context.Context) {
	defs, err := image.ReadDefinitions(t.sources)
	if err != nil {
		t.log.Error("template definitions cannot be read", "dir", t.sources, "error", err)
		return
	}
	defs = inOrder(defs)
	for _, d := range defs {
		t.setBuilding(hostapi.TemplateState{Name: d.Name, Status: templateBuilding, CPU: d.CPU, MemoryMB: d.MemoryMB, DiskMB: d.DiskMB})
	}
	for _, d := range defs {
		done, err := t.takeTurn(ctx)
		if err != nil {
			return
		}
		err = t.buildSource(ctx, d)
		done()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			t.log.Error("template could not be built", "template", d.Name, "source", filepath.Join(t.sources, d.Name), "error", err)
			// An old build goes on serving; without one this is the state.
			if _, getErr := t.store.Get(d.Name); getErr != nil {
				t.setBuilding(hostapi.TemplateState{Name: d.Name, Status: templateFailed, Error: err.Error()})
				continue
			}
		}
		t.mu.Lock()
		delete(t.building, d.Name)
		t.mu.Unlock()
		t.Changed()
	}
}

func (t *templates) buildSource(ctx context.Context, d image.Definition) error {
	step := ""
	_, err := t.store.Ensure(ctx, d, func(p image.Progress) {
		if p.Step != step {
			step = p.Step
			t.log.Info("template build", "template", p.Template, "step", p.Step, "percent", p.Percent)
		}
	})
	return err
}

// inOrder puts each definition behind the one that it is made from, and keeps
// the order of the others: what is made from nothing comes first.
func inOrder(defs []image.Definition) []image.Definition {
	byName := map[string]image.Definition{}
	for _, d := range defs {
		byName[d.Name] = d
	}
	var out []image.Definition
	placed := map[string]bool{}
	var place func(d image.Definition)
	place = func(d image.Definition) {
		if placed[d.Name] {
			return // also where two are made from each other: the build says so
		}
		placed[d.Name] = true
		if from, ok := byName[d.From]; ok {
			place(from)
		}
		out = append(out, d)
	}
	for _, roots := range []bool{true, false} {
		for _, d := range defs {
			if _, below := byName[d.From]; below != roots {
				place(d)
			}
		}
	}
	return out
}

// setBuilding shows a template that is made. A name that has a build stays ready
// while its next one is made.
func (t *templates) setBuilding(s hostapi.TemplateState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.Status == templateBuilding && t.states[s.Name].Status == templateReady {
		return
	}
	t.building[s.Name] = s
}
