package hostd

import (
	"errors"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// What one host has built another has by way of the store.
func TestABuildGoesToAnotherHost(t *testing.T) {
	store := t.TempDir()
	one, two := newStoredHost(t, store), newStoredHost(t, store)
	if err := two.FetchBuild(t.Context(), buildID); !errors.Is(err, box.ErrNoSnapshot) {
		t.Errorf("a build that is not stored: %v", err)
	}
	one.capture(t, "c1") // and the build that it was made from
	if one.hasBuild(buildID) {
		t.Error("it is said to be stored")
	}
	for range 2 {
		if err := one.storeBuild(t.Context(), buildID); err != nil {
			t.Fatal(err)
		}
	}
	if !one.hasBuild(buildID) {
		t.Error("it is not said to be stored")
	}
	for range 2 {
		if err := two.FetchBuild(t.Context(), buildID); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := two.images.Build(buildID); err != nil || got.BuildID != buildID {
		t.Errorf("%+v, %v", got, err)
	}
	// The control plane removes it as it removes a capture.
	if err := two.DeleteStored(t.Context(), hostapi.StoredBuild(buildID)); err != nil {
		t.Fatal(err)
	}
	three := newStoredHost(t, store)
	if err := three.FetchBuild(t.Context(), buildID); !errors.Is(err, box.ErrNoSnapshot) {
		t.Errorf("a build that was removed: %v", err)
	}
}
