package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMistypedTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"name: web\nrnu: [a]\n":         `line 2: unknown field "rnu"`,
		"name: web\ncpu: many\n":        "line 2: want an integer",
		"name: web\nrun: apt-get\n":     "line 2: want a list of strings",
		"name: web\nready: {prot: 1}\n": `line 2: unknown field "prot"`,
		"name: web\nfiles: [a]\n":       "line 2: want an object of strings",
	} {
		file := filepath.Join(t.TempDir(), "t.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (&app{}).readBuild(file); err == nil || err.Error() != file+": "+want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
