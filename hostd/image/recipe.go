package image

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"runtime"

	"github.com/berth-cloud/berth/vmm"
)

// madeRecord is the content of recipes/<key>.json: what was last made from a recipe.
// It only saves work; nothing is identified by it.
type madeRecord struct {
	Layer string `json:"layer,omitempty"`
	Build string `json:"build,omitempty"`
}

// made returns what was made from a recipe. An unreadable record counts as none.
func (s *Store) made(recipe string) madeRecord {
	var m madeRecord
	raw, err := os.ReadFile(s.path(recipesDir, recipe+".json"))
	if err != nil || json.Unmarshal(raw, &m) != nil || m.Layer != "" && !isDigest(m.Layer) || m.Build != "" && !isDigest(m.Build) {
		return madeRecord{}
	}
	return m
}

func (s *Store) note(recipe string, m madeRecord) error {
	return marshalFile(s.path(recipesDir, recipe+".json"), m)
}

// forgetRecipes removes the records of what no longer exists.
func (s *Store) forgetRecipes() error {
	entries, err := os.ReadDir(s.path(recipesDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		recipe, ok := cutJSON(e.Name())
		if !ok {
			continue
		}
		m := s.made(recipe)
		if m.Layer != "" && exists(s.path(layersDir, m.Layer)) || m.Build != "" && exists(s.path(buildsDir, m.Build)) {
			continue
		}
		if err := os.Remove(s.path(recipesDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Fit returns an operator's definition adapted to this host: to the size that its
// settings say, and to its engine. Under software
// emulation a guest gets at most as many processors as the host has, but at least
// two, because emulated processors wait for each other: with eight on two, restoring
// a database took three times as long as with two.
func (s *Store) Fit(d Definition) Definition {
	if size, ok := s.cfg.Sizes[d.Name]; ok {
		d.CPU, d.MemoryMB = cmp.Or(size.CPU, d.CPU), cmp.Or(size.MemoryMB, d.MemoryMB)
	}
	if s.cfg.Engine.Kind == vmm.KindChvemu {
		d.CPU = min(d.CPU, max(2, runtime.NumCPU()))
	}
	return d
}

// Recipe returns the digest of a definition and of everything else that determines
// this host's templates, except the engine. Hosts with equal recipes build
// equivalent templates.
func (s *Store) Recipe(ctx context.Context, d Definition) (string, error) {
	guestd, err := identify(ctx, s.cfg.Guestd, false)
	if err != nil {
		return "", err
	}
	kernel, err := identify(ctx, s.cfg.Kernel, false)
	if err != nil {
		return "", err
	}
	cas, err := authorities(s.cfg.GuestCAs)
	if err != nil {
		return "", err
	}
	digests := make([]string, len(cas))
	for i, ca := range cas {
		digests[i] = ca.digest
	}
	programs, err := s.programs(ctx, d)
	if err != nil {
		return "", err
	}
	return digest(struct {
		Format         int
		Definition     Definition
		Guestd, Kernel fileID
		CAs            []string
		Cmdline        string
		Programs       map[string]string `json:",omitempty"`
	}{buildRecipe, d, guestd, kernel, digests, cmdline, programs})
}

// Complete returns definitions with what they inherit from each other.
func Complete(defs []Definition) []Definition {
	byName := map[string]Definition{}
	for _, d := range defs {
		byName[d.Name] = d
	}
	var complete func(d Definition, depth int) Definition
	complete = func(d Definition, depth int) Definition {
		from, ok := byName[d.From]
		if !ok || depth > len(defs) { // a cycle, which its build reports
			return d
		}
		d.inherit(complete(from, depth+1))
		return d
	}
	out := make([]Definition, len(defs))
	for i, d := range defs {
		out[i] = complete(d, 0)
	}
	return out
}
