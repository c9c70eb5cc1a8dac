package box_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
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

// A path at which the guest cannot mount is the request's fault, and the error has nothing
// of the host in it. That a disk cannot be mounted is not.
func TestAPathThatTheGuestCannotMountAt(t *testing.T) {
	for status, want := range map[int]error{
		http.StatusBadRequest: hosterr.ErrMount, http.StatusForbidden: hosterr.ErrMount, http.StatusConflict: hosterr.ErrMount,
		http.StatusNotFound: hosterr.ErrGuest, http.StatusUnprocessableEntity: hosterr.ErrGuest, http.StatusInternalServerError: hosterr.ErrGuest,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			w := boxtest.NewWorld(t)
			d := start(t, w, func(_ *box.Config, deps *box.Deps) { deps.Volumes = &boxtest.Volumes{} })
			w.SetStep(func(_ context.Context, name string) error {
				if name != "mounts" {
					return nil
				}
				if err := os.WriteFile(w.Paths.VMMLog(idA), []byte("of the host"), 0o600); err != nil {
					return err
				}
				return &guestclient.Error{Status: status, Body: guestapi.Error{Error: "invalid path", Detail: "/run/data is the guest's own"}}
			})
			s := spec(1)
			withVolume(&s)
			_, err := d.Put(t.Context(), idA, s)
			if !errors.Is(err, want) || errors.Is(err, hosterr.ErrInvalid) != (want == hosterr.ErrMount) { //nolint:errorlint // which of the sentinels the case names
				t.Errorf("Put = %v, want %v", err, want)
			}
			if why := "mount_path /data: invalid path: /run/data is the guest's own"; errors.Is(err, hosterr.ErrMount) && !strings.HasSuffix(err.Error(), ": "+why) {
				t.Errorf("Put = %v, want one that ends with %q", err, why)
			}
			nothingLeft(t, w, d)
		})
	}
}
