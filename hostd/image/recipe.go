package image

import (
	"context"
	"encoding/json"
	"os"
)

// madeRecord is the content of recipes/<key>.json: what was last made from a
// recipe. It only saves work; nothing is identified by it.
type madeRecord struct {
	Layer string `json:"layer,omitempty"`
	Build string `json:"build,omitempty"`
}

// made reads what was made from a recipe; what cannot be read was not.
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

// forgetRecipes removes the notes of what is not there any more.
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

// Recipe is the digest of a definition and of everything that goes into the
// templates of this host, except the engine: two hosts with equal recipes build
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
	return digest(struct {
		Format         int
		Definition     Definition
		Guestd, Kernel fileID
		CAs            []string
		Cmdline        string
	}{buildRecipe, d, guestd, kernel, digests, cmdline})
}

// Complete returns definitions with what they inherit from each other filled
// in.
func Complete(defs []Definition) []Definition {
	byName := map[string]Definition{}
	for _, d := range defs {
		byName[d.Name] = d
	}
	var complete func(d Definition, depth int) Definition
	complete = func(d Definition, depth int) Definition {
		from, ok := byName[d.From]
		if !ok || depth > len(defs) { // made from itself: its build says so
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
