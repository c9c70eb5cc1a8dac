package box_test

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// A resume waits for its guest to take the time. A guest that dies meanwhile does
// not run again, whatever its VMM answered before.
func TestAResumeWhoseGuestDiesIsRefused(t *testing.T) {
	w, events := boxtest.NewWorld(t), &boxtest.Events{}
	d := start(t, w, withEvents(events))
	put(t, d, idA)
	_, err := d.Pause(t.Context(), idA)
	must(t, err)
	w.SetStep(func(_ context.Context, name string) error {
		if v := w.VMM(idA); name == "identity" && v != nil {
			v.Die(syscall.SIGKILL)
			await(t, func() bool { b, err := d.Get(idA); return err == nil && b.Status == hostapi.StatusFailed })
		}
		return nil
	})
	if b, err := d.Resume(t.Context(), idA); !errors.Is(err, hosterr.ErrIllegalState) {
		t.Errorf("it is %s, %v", b.Status, err)
	}
	want := []hostapi.EventType{hostapi.EventRunning, hostapi.EventPaused, hostapi.EventVMDied}
	await(t, func() bool { return len(events.Types(idA)) >= len(want) })
	if got := events.Types(idA); !slices.Equal(got, want) {
		t.Errorf("its events are %v, want %v", got, want)
	}
}
