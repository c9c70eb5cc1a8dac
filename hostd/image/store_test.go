package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/vmm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testEngine = vmm.Engine{Path: "/bin/false", Kind: "chvemu", Version: "v53.0+qemu-7.2"}

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir, Engine: testEngine})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fakeBuild adds a build to a store; builds with other content have other ids.
func fakeBuild(t *testing.T, s *Store, name, content string) (id string) {
	t.Helper()
	return fakeBuildOf(t, s, name, content, 1)
}

// fakeBuildOf is fakeBuild with that many layers.
func fakeBuildOf(t *testing.T, s *Store, name, content string, layers int) (id string) {
	t.Helper()
	sum := func(path string, sparse bool) fileID {
		f, err := identify(t.Context(), path, sparse)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	kernel := filepath.Join(t.TempDir(), "vmlinux")
	write(t, kernel, "kernel")
	k := kernelID{Release: "6.12", fileID: sum(kernel, false)}
	write(t, s.path(kernelsDir, k.SHA256, "vmlinux"), "kernel")
	key, err := s.ensureLayer(t.Context(), "layer of "+content, func(_ context.Context, _, image string) error {
		return os.WriteFile(image, []byte("layer"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	m := manifest{
		Format: formatVersion, Engine: s.engine(), Kernel: k, Layers: slices.Repeat([]string{key}, layers), CreatedAt: time.Now().UTC(),
		Definition: Definition{Name: name, From: "x", CPU: 1, MemoryMB: 512, DiskMB: 1024}, Files: map[string]fileID{}, OpenConnections: 2,
	}
	made := s.path(tmpDir, "made")
	for _, f := range []string{initramfsFile, overlayFile, ramFile, stateDir + "/config.json", stateDir + "/state.json"} {
		write(t, filepath.Join(made, f), content+f)
		m.Files[f] = sum(filepath.Join(made, f), f == ramFile)
	}
	if m.BuildID, err = m.contentID(); err != nil {
		t.Fatal(err)
	}
	if err := marshalFile(filepath.Join(made, manifestFile), m); err != nil {
		t.Fatal(err)
	}
	id = m.BuildID
	if err := os.Rename(made, s.path(buildsDir, id)); err != nil {
		t.Fatal(err)
	}
	if err := s.Point(t.Context(), name, id, ""); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestStoredTemplateIsFound(t *testing.T) {
	s := openStore(t, t.TempDir())
	id := fakeBuild(t, s, "base", "one")
	tpl, err := s.Get("base")
	if err != nil {
		t.Fatal(err)
	}
	if tpl.Name != "base" || tpl.BuildID != id || tpl.MemoryMB != 512 || tpl.Engine != "chvemu v53.0+qemu-7.2" ||
		tpl.KernelVersion != "6.12" || tpl.SizeBytes == 0 || tpl.OpenConnections != 2 || len(tpl.Layers) != 1 {
		t.Errorf("got %+v", tpl)
	}
	for _, path := range append(tpl.Layers, tpl.Kernel, tpl.Initramfs, tpl.OverlaySeed, tpl.RAM, tpl.SnapshotDir) {
		if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := s.Verify(t.Context(), "base"); err != nil {
		t.Errorf("verify: %v", err)
	}
}

func TestUnknownTemplate(t *testing.T) {
	s := openStore(t, t.TempDir())
	for _, name := range []string{"none", "", "../base", "a/b", "a\x00b", "Ünïcode", strings.Repeat("x", 1000)} {
		if _, err := s.Get(name); !errors.Is(err, ErrNoTemplate) {
			t.Errorf("%q: got %v", name, err)
		}
		if err := s.Verify(t.Context(), name); !errors.Is(err, ErrNoTemplate) {
			t.Errorf("verify %q: got %v", name, err)
		}
	}
	if err := s.Remove(t.Context(), "none"); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("remove: %v", err)
	}
}

func TestDamagedFileIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(t *testing.T, s *Store, tpl Template) string // returns what the error must name
	}{
		"truncated RAM": {func(t *testing.T, _ *Store, tpl Template) string {
			if err := os.Truncate(tpl.RAM, 1); err != nil {
				t.Fatal(err)
			}
			return tpl.RAM
		}},
		"missing overlay": {func(t *testing.T, _ *Store, tpl Template) string {
			if err := os.Remove(tpl.OverlaySeed); err != nil {
				t.Fatal(err)
			}
			return tpl.OverlaySeed
		}},
		"missing state": {func(t *testing.T, _ *Store, tpl Template) string {
			if err := os.RemoveAll(tpl.SnapshotDir); err != nil {
				t.Fatal(err)
			}
			return tpl.SnapshotDir
		}},
		"longer layer": {func(t *testing.T, _ *Store, tpl Template) string {
			if err := os.Chmod(tpl.Layers[0], 0o644); err != nil {
				t.Fatal(err)
			}
			write(t, tpl.Layers[0], "layer and more")
			return tpl.Layers[0]
		}},
		"missing kernel": {func(t *testing.T, _ *Store, tpl Template) string {
			if err := os.Remove(tpl.Kernel); err != nil {
				t.Fatal(err)
			}
			return tpl.Kernel
		}},
		"manifest that is no JSON": {func(t *testing.T, s *Store, tpl Template) string {
			path := s.path(buildsDir, tpl.BuildID, manifestFile)
			write(t, path, "{")
			return path
		}},
		"name that means nothing": {func(t *testing.T, s *Store, _ Template) string {
			path := s.path(namesDir, "base.json")
			write(t, path, `{"build_id":"../../etc"}`)
			return path
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir())
			fakeBuild(t, s, "base", "one")
			fakeBuild(t, s, "whole", "two")
			tpl, err := s.Get("base")
			if err != nil {
				t.Fatal(err)
			}
			path := c.damage(t, s, tpl)
			if _, err := s.Get("base"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want it to name %s", err, path)
			}
			list, err := s.List()
			if !errors.Is(err, ErrCorrupt) || len(list) == 0 && name != "missing kernel" && name != "longer layer" {
				t.Errorf("list: %d templates, %v", len(list), err)
			}
		})
	}
}

func TestChangedBytesAreFoundOnDemand(t *testing.T) {
	s := openStore(t, t.TempDir())
	fakeBuild(t, s, "base", "one")
	tpl, err := s.Get("base")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(tpl.RAM)
	if err != nil {
		t.Fatal(err)
	}
	raw[1] ^= 1
	if err := os.WriteFile(tpl.RAM, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("base"); err != nil {
		t.Errorf("get, which does not read: %v", err)
	}
	if err := s.Verify(t.Context(), "base"); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), tpl.RAM) {
		t.Errorf("verify: %v", err)
	}
}

func TestTemplateOfAnotherEngineIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	fakeBuild(t, openStore(t, dir), "base", "one")
	other, err := Open(t.Context(), Config{Dir: dir, Engine: vmm.Engine{Kind: "cloud-hypervisor", Version: "v54.0"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Get("base")
	if !errors.Is(err, ErrOtherEngine) || !strings.Contains(err.Error(), "chvemu v53.0+qemu-7.2") || !strings.Contains(err.Error(), "cloud-hypervisor v54.0") {
		t.Errorf("got %v", err)
	}
	rec, err := other.readName("base")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Build(rec.BuildID); !errors.Is(err, ErrOtherEngine) {
		t.Errorf("build: %v", err)
	}
	// What has its disk already is booted by any engine.
	if tpl, err := other.Bootable(rec.BuildID); err != nil || tpl.BuildID != rec.BuildID {
		t.Errorf("bootable: %+v, %v", tpl, err)
	}
}

func TestOneDaemonBuildsAndTheOthersWait(t *testing.T) {
	dir := t.TempDir()
	var builds atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		s := openStore(t, dir)
		all.Go(func() {
			_, err := s.ensureLayer(context.Background(), "same", func(_ context.Context, _, image string) error {
				builds.Add(1)
				return os.WriteFile(image, []byte("x"), 0o644)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if builds.Load() != 1 {
		t.Errorf("built %d times", builds.Load())
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	s := openStore(t, t.TempDir())
	failure := errors.New("no space")
	_, err := s.ensureLayer(t.Context(), "x", func(_ context.Context, dir, image string) error {
		write(t, filepath.Join(dir, "half"), "half")
		write(t, image, "half")
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	for _, sub := range []string{tmpDir, layersDir} {
		if left, err := os.ReadDir(s.path(sub)); err != nil || len(left) != 0 {
			t.Errorf("%s holds %v, %v", sub, left, err)
		}
	}
}

func TestDamagedLayerIsBuiltAnew(t *testing.T) {
	s := openStore(t, t.TempDir())
	builds := 0
	ensure := func() string {
		t.Helper()
		key, err := s.ensureLayer(t.Context(), "x", func(_ context.Context, _, image string) error {
			builds++
			return os.WriteFile(image, []byte("whole"), 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	key := ensure()
	ensure()
	if err := os.Truncate(s.layerPath(key), 1); err != nil {
		t.Fatal(err)
	}
	ensure()
	if raw, err := os.ReadFile(s.layerPath(key)); err != nil || string(raw) != "whole" || builds != 2 {
		t.Errorf("built %d times, holds %q, %v", builds, raw, err)
	}
}

// A bootstrap installs the current packages, so a repeated one gives another layer.
// Memory stored over a lost layer must not be resumed over its replacement.
func TestALayerMadeAnewIsAnother(t *testing.T) {
	s := openStore(t, t.TempDir())
	id := fakeBuild(t, s, "base", "a")
	old, err := s.Build(id)
	must(t, err)
	must(t, os.Chmod(old.Layers[0], 0o644))
	must(t, os.Truncate(old.Layers[0], 1))
	key, err := s.ensureLayer(t.Context(), "layer of a", func(_ context.Context, _, image string) error {
		return os.WriteFile(image, []byte("LAYER"), 0o644) // of the same size
	})
	must(t, err)
	if s.layerPath(key) == old.Layers[0] {
		t.Error("the new layer has the old one's key")
	}
	if _, err := s.Build(id); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a build whose layer is lost: %v", err)
	}
	// An import restores the lost layer from another host, unchanged.
	from := openStore(t, t.TempDir())
	if same := fakeBuild(t, from, "base", "a"); same != id {
		t.Fatalf("the same content is build %s, and was %s", same, id)
	}
	must(t, s.Import(t.Context(), id, deliver(partsOf(t, from, id))))
	must(t, s.Verify(t.Context(), "base"))
}

func TestABuildIsNamedByItsContent(t *testing.T) {
	s := openStore(t, t.TempDir())
	one := fakeBuild(t, s, "base", "one")
	if two := fakeBuild(t, s, "base", "two"); one == two {
		t.Error("two builds of other content have one id")
	}
	must(t, edit(s.path(buildsDir, one, manifestFile), `"memory_mb": 512`, `"memory_mb": 513`))
	if _, err := s.Build(one); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a description that was changed: %v", err)
	}
}

// A layer made by one workspace's steps is not used in another's templates.
func TestStepsAreTheirWorkspacesOwn(t *testing.T) {
	s := openStore(t, t.TempDir())
	s.cfg.Kernel = "/nowhere"
	base := fakeBuild(t, s, "base", "one")
	m, err := s.readManifest(base)
	must(t, err)
	d := Definition{Name: "web", From: "base", Run: []string{"make"}, CPU: 1, MemoryMB: 512, DiskMB: 1024}
	_, err = s.ensureLayer(t.Context(), stepInputs{Format: layerRecipe, Workspace: "a", Below: m.Layers, Run: d.Run, DiskMB: d.DiskMB},
		func(_ context.Context, _, image string) error { return os.WriteFile(image, []byte("of a"), 0o644) })
	must(t, err)
	for workspace, cached := range map[string]bool{"a": true, "b": false, "": false} {
		d := d
		_, err := s.ensureLayers(t.Context(), &d, Options{Workspace: workspace}, newReporter("web", nil))
		// It would build the layer, and fails because there is no kernel for its
		// guest.
		if (err == nil) != cached || err != nil && !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("workspace %q: %v", workspace, err)
		}
	}
}

// A sandbox has a place for each layer of its template beside its volumes, or the template
// is not built.
func TestATemplateOfTooManyLayersIsRefused(t *testing.T) {
	for layers, refused := range map[int]bool{18: false, 19: true} {
		s := openStore(t, t.TempDir())
		s.cfg.Kernel = "/nowhere"
		fakeBuildOf(t, s, "base", "one", layers)
		for _, d := range []Definition{{Name: "web", From: "base"}, {Name: "web", From: "base", Run: []string{"make"}}} {
			_, err := s.ensureLayers(t.Context(), &d, Options{}, newReporter("web", nil))
			if errors.Is(err, ErrInvalid) != (refused && len(d.Run) > 0) {
				t.Errorf("one on %d layers, with steps %q: %v", layers, d.Run, err)
			}
		}
	}
}

// Stores of every earlier format stay readable, because templates are built on their
// layers. A build whose agent is too old starts no guest.
func TestStoresOfEarlierFormats(t *testing.T) {
	dirs, err := filepath.Glob("testdata/store-*")
	if err != nil || len(dirs) != formatVersion {
		t.Fatalf("%v, %v", dirs, err)
	}
	for i, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "store")
			must(t, os.CopyFS(at, os.DirFS(dir)))
			s := openStore(t, at)
			must(t, s.Verify(t.Context(), "base"))
			rec, err := s.readName("base")
			must(t, err)
			to := openStore(t, t.TempDir())
			_, err = s.Get("base")
			if format := i + 1; format < oldestGuest {
				if !errors.Is(err, ErrOtherGuest) {
					t.Errorf("its guests: %v", err)
				}
				err := to.Import(t.Context(), rec.BuildID, func(_ context.Context, dir string) error {
					return os.CopyFS(filepath.Join(dir, PartsDir), os.DirFS(s.path(buildsDir, rec.BuildID)))
				})
				if !errors.Is(err, ErrOtherGuest) {
					t.Errorf("imported: %v", err)
				}
			} else {
				must(t, err)
				must(t, to.Import(t.Context(), rec.BuildID, deliver(partsOf(t, s, rec.BuildID))))
			}
			// A template built on it has layers whose keys are derived from their
			// contents.
			d := Definition{Name: "web", From: "base"}
			keys, err := s.ensureLayers(t.Context(), &d, Options{}, newReporter("web", nil))
			must(t, err)
			for _, key := range keys {
				if l, err := s.readLayer(key); err != nil || l.fileID.layerKey() != key {
					t.Errorf("layer %s: %+v, %v", key, l, err)
				}
			}
			// Its layers are found by their recipes.
			key, err := s.ensureLayer(t.Context(), "layer of one", func(context.Context, string, string) error { return errors.New("made again") })
			if err != nil || !slices.Contains(keys, key) {
				t.Errorf("layer of the recipe: %s, %v", key, err)
			}
		})
	}
}

func TestWaitForALockEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	a, b := openStore(t, dir), openStore(t, dir)
	unlock, err := a.lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	time.AfterFunc(20*time.Millisecond, func() { cancel(stopped) })
	if _, err := b.lock(ctx, "x"); !errors.Is(err, stopped) {
		t.Errorf("got %v", err)
	}
	unlock()
	unlock2, err := b.lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	unlock2()
}

func TestStoreThatOnlyReadsDoesNotBuild(t *testing.T) {
	s := openStore(t, t.TempDir())
	if _, err := s.bootVM(t.Context(), t.TempDir(), Template{}, VM{}); !errors.Is(err, errNoLease) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Ensure(t.Context(), Definition{Name: "a"}, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("an invalid definition: %v", err)
	}
}

// A build stays available when no name refers to it any more, because sandboxes
// still use it.
func TestABuildIsFoundByItsID(t *testing.T) {
	s := openStore(t, t.TempDir())
	id := fakeBuild(t, s, "base", "one")
	if err := s.Remove(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Build(id); err != nil || got.BuildID != id || got.Name != "base" {
		t.Errorf("Build = %s %s, %v", got.Name, got.BuildID, err)
	}
	for _, other := range []string{"", "../x", strings.Repeat("0", digestLen)} {
		if _, err := s.Build(other); !errors.Is(err, ErrNoTemplate) {
			t.Errorf("Build(%q) = %v, want ErrNoTemplate", other, err)
		}
	}
}

func TestADefinitionFitsTheProcessorsOfSoftware(t *testing.T) {
	most := max(2, runtime.NumCPU())
	emulated, real := &Store{cfg: Config{Engine: testEngine}}, &Store{cfg: Config{Engine: vmm.Engine{Kind: vmm.KindCloudHypervisor}}}
	for asked, want := range map[int]int{0: 0, 1: 1, most: most, most + 1: most} {
		if got := emulated.Fit(Definition{CPU: asked}).CPU; got != want {
			t.Errorf("%d CPUs become %d where software emulates them, want %d", asked, got, want)
		}
		if got := real.Fit(Definition{CPU: asked}).CPU; got != asked {
			t.Errorf("%d CPUs become %d", asked, got)
		}
	}
}

func TestTheOperatorsSizeGoesBeforeTheDefinitions(t *testing.T) {
	s := &Store{cfg: Config{Engine: vmm.Engine{Kind: vmm.KindCloudHypervisor}, Sizes: map[string]Size{"app": {CPU: 2}, "other": {MemoryMB: 1024}}}}
	for name, want := range map[string]Size{"app": {2, 4096}, "other": {8, 1024}, "base": {8, 4096}} {
		if got := s.Fit(Definition{Name: name, CPU: 8, MemoryMB: 4096}); got.CPU != want.CPU || got.MemoryMB != want.MemoryMB {
			t.Errorf("%s: %d CPUs, %d MB, want %+v", name, got.CPU, got.MemoryMB, want)
		}
	}
}
