package box_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

func TestAdmissionCountsTheWorstCase(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	d := start(t, w)
	for i := range 4 {
		_, err := d.Put(ctx, id(i), spec(1))
		must(t, err)
	}
	if _, err := d.Put(ctx, id(4), spec(1)); !errors.Is(err, hosterr.ErrNoMemory) {
		t.Errorf("fifth Put = %v, want ErrNoMemory", err)
	}
	w.VMM(id(0)).Die(syscall.SIGKILL)
	await(t, func() bool { return d.ReservedMB() == 3*600 })
	_, err := d.Put(ctx, id(4), spec(1))
	must(t, err)
	for i := range 5 {
		must(t, d.Delete(ctx, id(i), 1))
	}
	if got := d.ReservedMB(); got != 0 {
		t.Errorf("%d MB reserved at the end", got)
	}
	nothingLeft(t, w, d)
}

func TestManyAtOnceNeverOverbook(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ok := 0
	for i := range 16 {
		wg.Go(func() {
			_, err := d.Put(t.Context(), id(i), spec(1))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				ok++
			} else if !errors.Is(err, hosterr.ErrNoMemory) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ok != 4 {
		t.Errorf("%d boxes, want 4", ok)
	}
}

func TestHostLimits(t *testing.T) {
	ctx := t.Context()
	w := boxtest.NewWorld(t)
	w.Slots = 1
	free := int64(1 << 40)
	d := start(t, w, func(c *box.Config, dep *box.Deps) {
		c.DiskHeadroomMB = 100
		dep.DiskFree = func(string) (int64, error) { return free, nil }
	})
	_, err := d.Put(ctx, idA, spec(1))
	must(t, err)
	if _, err := d.Put(ctx, idB, spec(1)); !errors.Is(err, hosterr.ErrNoSlot) {
		t.Errorf("Put without a slot = %v, want ErrNoSlot", err)
	}
	free = 99 << 20
	if _, err := d.Put(ctx, idB, spec(1)); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("Put without disk space = %v, want ErrNoDisk", err)
	}
	if got := d.ReservedMB(); got != 600 {
		t.Errorf("%d MB reserved, want 600", got)
	}
}

// Whatever is promised by a factor, one disk may be filled by its box alone.
func TestADiskLargerThanTheHostsIsRefused(t *testing.T) {
	w := boxtest.NewWorld(t)
	size := int64(1123 << 20)
	d := start(t, w, func(c *box.Config, dep *box.Deps) {
		c.DiskHeadroomMB, c.DiskOvercommit = 100, 1000
		dep.DiskFree = func(string) (int64, error) { return 1 << 30, nil }
		dep.DiskSize = func(string) (int64, error) { return size, nil }
	})
	if _, err := d.Put(t.Context(), idA, spec(1)); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("Put of 1024 MB on a disk of 1123 with a headroom of 100 = %v, want ErrNoDisk", err)
	}
	size = 1124 << 20
	_, err := d.Put(t.Context(), idA, spec(1))
	must(t, err)
}

// The largest is the disk of 1024 MB, or a volume, which in this test has 20 GiB.
func TestAVMMWritesNoFileLargerThanItNeeds(t *testing.T) {
	w, d, _ := world(t, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
	put(t, d, idA)
	put(t, d, idB, func(s *hostapi.BoxSpec) { s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}} })
	for id, want := range map[string]int64{idA: 1 << 30, idB: 20 << 30} {
		if got := w.VMM(id).MaxFile(); got != want {
			t.Errorf("the VMM of %.1s may write files of %d bytes, want %d", id, got, want)
		}
	}
}

func TestAFullDiskIsNamed(t *testing.T) {
	w := boxtest.NewWorld(t)
	w.SetStep(func(_ context.Context, name string) error {
		if name == "configure" {
			return fmt.Errorf("write config: %w", syscall.ENOSPC)
		}
		return nil
	})
	d := start(t, w)
	if _, err := d.Put(t.Context(), idA, spec(1)); !errors.Is(err, hosterr.ErrNoDisk) {
		t.Errorf("Put = %v, want ErrNoDisk", err)
	}
	nothingLeft(t, w, d)
}

func TestBadSpecs(t *testing.T) {
	w := boxtest.NewWorld(t)
	d := start(t, w)
	big := map[string]string{"A": strings.Repeat("x", hostapi.MaxVariable)}
	many := map[string]string{}
	for i := range hostapi.MaxVariables + 1 {
		many[strconv.Itoa(i)] = ""
	}
	for name, c := range map[string]struct {
		id     string
		change func(*hostapi.BoxSpec)
		want   error
	}{
		"generation 0":              {idA, func(s *hostapi.BoxSpec) { s.Generation = 0 }, hosterr.ErrInvalid},
		"unknown boot":              {idA, func(s *hostapi.BoxSpec) { s.Boot = "warm" }, hosterr.ErrInvalid},
		"unknown template":          {idA, func(s *hostapi.BoxSpec) { s.Template = "nope" }, hosterr.ErrTemplate},
		"template name with a path": {idA, func(s *hostapi.BoxSpec) { s.Template = "../etc" }, hosterr.ErrInvalid},
		"hostname with a newline":   {idA, func(s *hostapi.BoxSpec) { s.Hostname = "a\nb" }, hosterr.ErrInvalid},
		"environment name with =":   {idA, func(s *hostapi.BoxSpec) { s.Env = map[string]string{"A=B": "c"} }, hosterr.ErrInvalid},
		"environment with NUL":      {idA, func(s *hostapi.BoxSpec) { s.Env = map[string]string{"A": "\x00"} }, hosterr.ErrInvalid},
		"environment too large":     {idA, func(s *hostapi.BoxSpec) { s.Env = big }, hosterr.ErrInvalid},
		"too many variables":        {idA, func(s *hostapi.BoxSpec) { s.Env = many }, hosterr.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(1)
			if c.change != nil {
				c.change(&s)
			}
			if _, err := d.Put(t.Context(), c.id, s); !errors.Is(err, c.want) {
				t.Errorf("Put = %v, want %v", err, c.want)
			}
		})
	}
	nothingLeft(t, w, d)
}
