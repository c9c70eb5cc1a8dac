package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/vmm"
)

// deliver copies parts into a directory, as a fetch from another host does.
func deliver(parts []Part) func(context.Context, string) error {
	return func(_ context.Context, dir string) error {
		for _, p := range parts {
			raw, err := os.ReadFile(p.Path)
			if err != nil {
				return err
			}
			to := filepath.Join(dir, p.Name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, raw, 0o600)); err != nil {
				return err
			}
		}
		return nil
	}
}

func partsOf(t *testing.T, s *Store, id string) []Part {
	t.Helper()
	parts, err := s.Parts(id)
	must(t, err)
	return parts
}

func TestABuildIsTakenToAnotherStore(t *testing.T) {
	from, to := openStore(t, t.TempDir()), openStore(t, t.TempDir())
	id := fakeBuild(t, from, "one", "a")
	parts := partsOf(t, from, id)
	keys := map[string]bool{}
	for _, p := range parts {
		if p.Key != "" && (keys[p.Key] || len(p.Key) != 64) {
			t.Errorf("part %+v", p)
		}
		keys[p.Key] = true
	}
	must(t, to.Import(t.Context(), id, deliver(parts)))
	got, err := to.Build(id)
	must(t, err)
	want, err := from.Build(id)
	must(t, err)
	if got.Name != want.Name || got.MemoryMB != want.MemoryMB || got.OpenConnections != want.OpenConnections || got.KernelVersion != want.KernelVersion {
		t.Errorf("build = %+v", got)
	}
	for _, pair := range [][2]string{{got.RAM, want.RAM}, {got.Kernel, want.Kernel}, {got.Initramfs, want.Initramfs}, {got.Layers[0], want.Layers[0]}, {got.OverlaySeed, want.OverlaySeed}} {
		a, errA := os.ReadFile(pair[0])
		b, errB := os.ReadFile(pair[1])
		if err := errors.Join(errA, errB); err != nil || string(a) != string(b) {
			t.Errorf("%s: %v", pair[0], err)
		}
	}
	// The imported build has no name, and a second import fetches nothing.
	if names, err := to.Names(); err != nil || len(names) > 0 {
		t.Errorf("names = %v, %v", names, err)
	}
	must(t, to.Import(t.Context(), id, func(context.Context, string) error { return errors.New("fetched again") }))
	// The parts are the same except for their paths.
	strip := func(parts []Part) []Part {
		for i := range parts {
			parts[i].Path = ""
		}
		return parts
	}
	if diff := cmp.Diff(strip(partsOf(t, from, id)), strip(partsOf(t, to, id))); diff != "" {
		t.Error(diff)
	}
	if left, err := os.ReadDir(to.path(tmpDir)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A host that bootstrapped the same suite on another day has a layer of the same
// recipe with other content.
func TestALayerOfTheSameRecipeAndOtherContentStaysApart(t *testing.T) {
	from, to := openStore(t, t.TempDir()), openStore(t, t.TempDir())
	id := fakeBuild(t, from, "one", "a")
	key, err := to.ensureLayer(t.Context(), "layer of a", func(_ context.Context, _, image string) error {
		return os.WriteFile(image, []byte("other"), 0o644)
	})
	must(t, err)
	must(t, to.Import(t.Context(), id, deliver(partsOf(t, from, id))))
	got, err := to.Build(id)
	must(t, err)
	if raw, err := os.ReadFile(got.Layers[0]); err != nil || string(raw) != "layer" {
		t.Errorf("layer = %q, %v", raw, err)
	}
	if raw, err := os.ReadFile(to.layerPath(key)); err != nil || string(raw) != "other" {
		t.Errorf("the layer that was there = %q, %v", raw, err)
	}
	// The importing host can pass the build on to a third.
	third := openStore(t, t.TempDir())
	must(t, third.Import(t.Context(), id, deliver(partsOf(t, to, id))))
}

func TestABuildThatArrivesDamagedIsRefused(t *testing.T) {
	from := openStore(t, t.TempDir())
	id := fakeBuild(t, from, "one", "a")
	parts := partsOf(t, from, id)
	for name, change := range map[string]func(dir string) error{
		"a layer changed": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "layers/0.ext4"), []byte("LAYER"), 0o600)
		},
		"a layer is missing": func(dir string) error { return os.Remove(filepath.Join(dir, "layers/0.ext4")) },
		"the kernel changed": func(dir string) error { return os.WriteFile(filepath.Join(dir, "vmlinux"), []byte("KERNEL"), 0o600) },
		"the RAM is cut":     func(dir string) error { return os.Truncate(filepath.Join(dir, ramFile), 1) },
		"no description":     func(dir string) error { return os.Remove(filepath.Join(dir, manifestFile)) },
		"a link": func(dir string) error {
			path := filepath.Join(dir, initramfsFile)
			return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path))
		},
		"another build": func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), id, strings.Repeat("0", digestLen))
		},
		"a name that goes up": func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), `"`+initramfsFile+`"`, `"../../`+initramfsFile+`"`)
		},
		"a later format": func(dir string) error {
			return edit(filepath.Join(dir, manifestFile), fmt.Sprintf(`"format": %d`, formatVersion), fmt.Sprintf(`"format": %d`, formatVersion+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := openStore(t, t.TempDir())
			err := to.Import(t.Context(), id, func(ctx context.Context, dir string) error {
				return errors.Join(deliver(parts)(ctx, dir), change(filepath.Join(dir, PartsDir)))
			})
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("import = %v", err)
			}
			if _, err := to.Build(id); !errors.Is(err, ErrNoTemplate) {
				t.Errorf("build = %v", err)
			}
			if left, err := os.ReadDir(to.path(tmpDir)); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			// The next import is not obstructed by what this one left.
			must(t, to.Import(t.Context(), id, deliver(parts)))
		})
	}
	t.Run("another engine's", func(t *testing.T) {
		to, err := Open(t.Context(), Config{Dir: t.TempDir(), Engine: vmm.Engine{Kind: "cloud-hypervisor", Version: "v53.0"}})
		must(t, err)
		if err := to.Import(t.Context(), id, deliver(parts)); !errors.Is(err, ErrOtherEngine) {
			t.Errorf("import = %v", err)
		}
	})
	t.Run("a fetch that fails", func(t *testing.T) {
		to := openStore(t, t.TempDir())
		if err := to.Import(t.Context(), id, func(context.Context, string) error { return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("import = %v", err)
		}
	})
	t.Run("an id that is a path", func(t *testing.T) {
		if err := from.Import(t.Context(), "../x", nil); !errors.Is(err, ErrNoTemplate) {
			t.Errorf("import = %v", err)
		}
		if _, err := from.Parts("../x"); !errors.Is(err, ErrNoTemplate) {
			t.Errorf("parts = %v", err)
		}
	})
}

func edit(path, old, with string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed := strings.Replace(string(raw), old, with, 1)
	if changed == string(raw) {
		return errors.New("nothing was replaced")
	}
	return os.WriteFile(path, []byte(changed), 0o600)
}
