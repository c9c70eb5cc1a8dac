package image

import (
	"encoding/json"
	"os"
)

// madeRecord is the content of recipes/<key>.json: what was made from a recipe
// last. It is a note that spares work, and never what something is known by.
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
