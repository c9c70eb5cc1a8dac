package box_test

import (
	"errors"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// A build's guest is promised memory as a box is, from the same.
func TestBuildsReserveWhatBoxesDo(t *testing.T) {
	free, size := int64(1<<40), int64(1<<40)
	_, d, _ := world(t, func(c *box.Config, deps *box.Deps) { // room for four of 512 MB and what the engine takes
		c.DiskHeadroomMB = 100
		deps.DiskFree = func(string) (int64, error) { return free, nil }
		deps.DiskSize = func(string) (int64, error) { return size, nil }
	})
	put(t, d, idA)
	release, err := d.Reserve(2*600-88, 1024)
	must(t, err)
	if got := d.ReservedMB(); got != 3*600 {
		t.Errorf("%d MB are reserved", got)
	}
	put(t, d, idB)
	if _, err := d.Put(t.Context(), id(3), spec(1)); !errors.Is(err, hosterr.ErrNoMemory) {
		t.Errorf("a box beside a build that has the memory: %v", err)
	}
	if _, err := d.Reserve(512, 1024); !errors.Is(err, hosterr.ErrNoMemory) {
		t.Errorf("a build that finds no memory: %v", err)
	}
	release()
	release() // a second time it gives nothing back
	if got := d.ReservedMB(); got != 2*600 {
		t.Errorf("%d MB are reserved after the build", got)
	}
	size = 1123 << 20
	if _, err := d.Reserve(512, 1024); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("a build with a disk larger than the host's: %v", err)
	}
	size, free = 1124<<20, 50<<20
	if _, err := d.Reserve(512, 1024); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("a build on a full disk: %v", err)
	}
	if got := d.ReservedMB(); got != 2*600 {
		t.Errorf("%d MB are reserved after a refusal", got)
	}
}
