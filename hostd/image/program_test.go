package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// withPrograms opens the store of a host that has a program beside its guestd.
func withPrograms(t *testing.T) (s *Store, program string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"guestd", "vmlinux", "guestpg"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755))
	}
	return &Store{cfg: Config{Guestd: filepath.Join(dir, "guestd"), Kernel: filepath.Join(dir, "vmlinux")}}, filepath.Join(dir, "guestpg")
}

func TestANewProgramMakesANewRecipe(t *testing.T) {
	s, program := withPrograms(t)
	recipe := func(d Definition) string {
		t.Helper()
		r, err := s.Recipe(t.Context(), d)
		must(t, err)
		return r
	}
	plain := Definition{Name: "db", From: "base"}
	with := plain
	with.Programs = map[string]string{"/bin/guestpg": "guestpg"}
	before, other := recipe(with), recipe(plain)
	if before == other {
		t.Error("a program is not part of the recipe")
	}
	must(t, os.WriteFile(program, []byte("another build"), 0o755))
	if recipe(with) == before {
		t.Error("another build of the program has the same recipe")
	}
	if recipe(plain) != other {
		t.Error("a template without programs has another recipe")
	}
}

func TestAProgramThatIsNotThereIsNamed(t *testing.T) {
	s, program := withPrograms(t)
	must(t, os.Remove(program))
	_, err := s.Recipe(t.Context(), Definition{Name: "db", From: "base", Programs: map[string]string{"/bin/guestpg": "guestpg"}})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestAWorkspaceGetsNoProgramOfTheHost(t *testing.T) {
	s, _ := withPrograms(t)
	d := Definition{Name: "db", From: "base", Programs: map[string]string{"/bin/guestpg": "guestpg"}}
	if _, err := s.EnsureWith(t.Context(), d, Options{Workspace: "ws"}); !errors.Is(err, errWorkspacePrograms) {
		t.Errorf("got %v", err)
	}
}
