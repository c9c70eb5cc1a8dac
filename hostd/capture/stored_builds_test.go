package capture

import (
	"errors"
	"testing"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// What one host has built another has by way of the store.
func TestABuildGoesToAnotherHost(t *testing.T) {
	store := t.TempDir()
	one, two := newStoredHost(t, store), newStoredHost(t, store)
	if err := two.builds.Fetch(t.Context(), buildID); !errors.Is(err, hosterr.ErrNoSnapshot) {
		t.Errorf("a build that is not stored: %v", err)
	}
	one.capture(t, "c1") // and the build that it was made from
	if one.builds.Has(buildID) {
		t.Error("it is said to be stored")
	}
	for range 2 {
		if err := one.builds.Upload(t.Context(), buildID); err != nil {
			t.Fatal(err)
		}
	}
	if !one.builds.Has(buildID) {
		t.Error("it is not said to be stored")
	}
	for range 2 {
		if err := two.builds.Fetch(t.Context(), buildID); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := two.images.Build(buildID); err != nil || got.BuildID != buildID {
		t.Errorf("%+v, %v", got, err)
	}
	// The control plane removes it as it removes a capture.
	if err := two.Delete(t.Context(), hostapi.StoredBuild(buildID)); err != nil {
		t.Fatal(err)
	}
	three := newStoredHost(t, store)
	if err := three.builds.Fetch(t.Context(), buildID); !errors.Is(err, hosterr.ErrNoSnapshot) {
		t.Errorf("a build that was removed: %v", err)
	}
}

// A template that goes back to an earlier build has it stored again, though
// another host was told to remove it in between.
func TestABuildThatComesBackIsStoredAgain(t *testing.T) {
	store := t.TempDir()
	one, two := newStoredHost(t, store), newStoredHost(t, store)
	one.capture(t, "c1") // and the build that it was made from
	name := hostapi.StoredBuild(buildID)
	changes := 0
	look := func(look bool, ready ...string) {
		t.Helper()
		one.builds.Sync(t.Context(), ready, look, func() { changes++ })
	}
	stored := func(when string) {
		t.Helper()
		if there, err := two.store.Has(t.Context(), name); err != nil || !there || !one.builds.Has(buildID) {
			t.Errorf("%s: in the store %v (%v), said to be %v", when, there, err, one.builds.Has(buildID))
		}
	}
	look(false, buildID)
	look(false, buildID)
	if stored("at first"); changes != 1 {
		t.Errorf("%d changes", changes)
	}
	look(false) // the template is another build
	if err := two.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	look(false, buildID)
	stored("after it came back")

	if err := one.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if one.builds.Has(buildID) {
		t.Error("what this host has removed is said to be stored")
	}
	look(false, buildID)
	stored("after its own removal")

	// Removed while the template meant it.
	if err := two.Delete(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	look(true, buildID)
	stored("after another look")
}
