package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

func TestRemovedNameLeavesTheBuildToItsUsers(t *testing.T) {
	s := openStore(t, t.TempDir())
	id := fakeBuild(t, s, "base", "one")
	if err := s.Remove(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("base"); !errors.Is(err, ErrNoTemplate) {
		t.Errorf("got %v", err)
	}
	if _, err := s.load(id); err != nil {
		t.Errorf("the build is gone: %v", err)
	}
}

// age makes a build look long unused.
func age(t *testing.T, s *Store, id string) {
	t.Helper()
	old := time.Now().Add(-2 * buildGrace)
	if err := os.Chtimes(s.path(buildsDir, id), old, old); err != nil {
		t.Fatal(err)
	}
}

func TestCollectRemovesWhatNobodyUses(t *testing.T) {
	dir := t.TempDir()
	s, other := openStore(t, dir), openStore(t, dir)
	there := func(id string) bool { _, err := os.Stat(s.path(buildsDir, id)); return err == nil }
	collect := func(daemon string, inUse ...string) {
		t.Helper()
		if err := s.Collect(t.Context(), daemon, inUse); err != nil {
			t.Fatal(err)
		}
	}
	first := fakeBuild(t, s, "base", "one")
	second := fakeBuild(t, s, "base", "two")
	collect("h1")
	if !there(first) || !there(second) {
		t.Fatal("a build that was replaced a moment ago is gone")
	}
	age(t, s, first)
	age(t, s, second)
	collect("h1", first)
	if !there(first) || !there(second) {
		t.Fatal("a build in use, or the current one, is gone")
	}
	if err := other.Collect(t.Context(), "h2", []string{first, first}); err != nil {
		t.Fatal(err)
	}
	age(t, s, first)
	collect("h1")
	if !there(first) {
		t.Fatal("a build that another daemon uses is gone")
	}
	age(t, s, first)
	if err := other.Collect(t.Context(), "h2", nil); err != nil {
		t.Fatal(err)
	}
	if there(first) || !there(second) {
		t.Errorf("old there: %v, current there: %v", there(first), there(second))
	}
	if err := s.Collect(t.Context(), "../h1", nil); err == nil {
		t.Error("a daemon's name that is a path was taken")
	}
}

func TestCollectKeepsLayersThatABuildNeeds(t *testing.T) {
	s := openStore(t, t.TempDir())
	fakeBuild(t, s, "base", "one")
	unused, err := s.ensureLayer(t.Context(), "unused", func(_ context.Context, _, image string) error {
		return os.WriteFile(image, []byte("x"), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.collect(time.Now()); err != nil {
		t.Fatal(err)
	}
	if !s.haveLayer(unused) {
		t.Error("a layer made a moment ago is gone")
	}
	if err := s.collect(time.Now().Add(2 * layerGrace)); err != nil {
		t.Fatal(err)
	}
	if s.haveLayer(unused) {
		t.Error("a layer of no build is kept")
	}
	if _, err := s.Get("base"); err != nil {
		t.Errorf("what a build needs was removed: %v", err)
	}
}

// The build of a tenant's image may fail. Its layer must not stay for a day, unless
// somebody uses it.
func TestCollectKeepsImagesOfNoBuildForHours(t *testing.T) {
	s := openStore(t, t.TempDir())
	ensure := func(inputs any) string {
		t.Helper()
		key, err := s.ensureLayer(t.Context(), inputs, func(_ context.Context, _, image string) error {
			return os.WriteFile(image, fmt.Append(nil, inputs), 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	unused, used := imageInputs{Format: layerRecipe, Digest: "sha256:1"}, imageInputs{Format: layerRecipe, Digest: "sha256:2"}
	one, two, bootstrap := ensure(unused), ensure(used), ensure(bootstrapInputs{Format: layerRecipe})
	old := time.Now().Add(-timescale.Limit(imageGrace) - time.Minute)
	for _, key := range []string{one, two, bootstrap} {
		if err := os.Chtimes(s.path(layersDir, key), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if again := ensure(used); again != two {
		t.Errorf("a layer that was there was made again: %s and %s", two, again)
	}
	if err := s.collect(time.Now()); err != nil {
		t.Fatal(err)
	}
	if s.haveLayer(one) {
		t.Error("an image of no build is kept")
	}
	if !s.haveLayer(two) {
		t.Error("an image that a build began with a moment ago is gone")
	}
	if !s.haveLayer(bootstrap) {
		t.Error("a bootstrap took minutes, and is gone after hours")
	}
}

// A template may be built anew while another one is built from it, for hours.
func TestCollectKeepsWhatABuildIsMadeFrom(t *testing.T) {
	s := openStore(t, t.TempDir())
	from := fakeBuild(t, s, "base", "one")
	m, err := s.readManifest(from)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * layerGrace)
	if err := os.Chtimes(s.path(layersDir, m.Layers[0]), old, old); err != nil {
		t.Fatal(err)
	}
	keys, err := s.baseLayers(t.Context(), &Definition{Name: "app", From: "base"}, Options{}, newReporter("app", nil))
	if err != nil {
		t.Fatal(err)
	}
	second := fakeBuildOf(t, s, "base", "two", 0)
	age(t, s, from)
	if err := s.collect(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load(from); err == nil || second == from {
		t.Fatal("the former build is kept")
	}
	for _, key := range keys {
		if !s.haveLayer(key) {
			t.Error("a layer that a build began with a moment ago is gone")
		}
	}
}

func TestUnfinishedWorkOfAKilledDaemonIsRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	mine, remove, err := s.workDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := s.path(tmpDir, "123")
	write(t, filepath.Join(left, "half"), "x")
	write(t, filepath.Join(left, lockName), "") // its holder is gone
	openStore(t, dir)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("work of a killed daemon is left: %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("work that goes on was removed: %v", err)
	}
	remove()
	if _, err := os.Stat(mine); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("finished work is left: %v", err)
	}
}
