package box_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// A guest is itself once it runs and has its disks.
func TestTheOrderOfBringingUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*hostapi.BoxSpec)
		want   []string
	}{
		"restored":     {func(*hostapi.BoxSpec) {}, []string{"restore", "resume", "identity"}},
		"with volumes": {withVolume, []string{"restore", "resume", "add-disk", "identity", "mounts"}},
		"cold":         {func(s *hostapi.BoxSpec) { s.Boot = hostapi.BootCold }, []string{"boot", "identity"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
			var mu sync.Mutex
			var steps []string
			w.SetStep(func(_ context.Context, name string) error {
				mu.Lock()
				defer mu.Unlock()
				if slices.Contains([]string{"restore", "resume", "boot", "add-disk", "identity", "mounts"}, name) {
					steps = append(steps, name)
				}
				return nil
			})
			s := spec(1)
			c.change(&s)
			b, err := d.Put(t.Context(), idA, s)
			must(t, err)
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(steps, c.want) {
				t.Errorf("steps %q, want %q", steps, c.want)
			}
			stages := map[string]int{}
			for _, s := range b.Stages {
				stages[s.Name]++
			}
			if stages["identity"] != 1 {
				t.Errorf("stages %+v, want one identity", b.Stages)
			}
		})
	}
}

func withVolume(s *hostapi.BoxSpec) {
	s.Volumes = []hostapi.VolumeAttach{{ID: "vol-1", MountPath: "/data"}}
}
