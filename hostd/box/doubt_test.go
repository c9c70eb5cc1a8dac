package box_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/vmm"
)

// runs reports whether a box runs, by its status and by its VM.
func runs(t *testing.T, d *daemon, w *boxtest.World, id string) bool {
	t.Helper()
	b, err := d.Get(id)
	must(t, err)
	state, err := w.VMM(id).State(t.Context())
	return b.Status == hostapi.StatusRunning && err == nil && state == vmm.StateRunning
}

// A VMM carries out what it was asked for when it comes to it, although nobody
// waits for that any more.
func TestWhatAVMMDoesTooLate(t *testing.T) {
	for name, c := range map[string]struct {
		fails string // what the VMM does not answer in time
		late  vmm.State
		move  func(ctx context.Context, d *daemon) error
	}{
		"a pause": {"pause", vmm.StatePaused, func(ctx context.Context, d *daemon) error {
			_, err := d.Pause(ctx, idA)
			return err
		}},
		"a resume": {"resume", vmm.StateRunning, func(ctx context.Context, d *daemon) error {
			_, err := d.Resume(ctx, idA)
			return err
		}},
		"the pause of a capture": {"pause", vmm.StatePaused, func(ctx context.Context, d *daemon) error {
			_, err := d.Captures().Make(ctx, "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			return err
		}},
		"the resume after a capture": {"resume", vmm.StateRunning, func(ctx context.Context, d *daemon) error {
			_, err := d.Captures().Make(ctx, "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, d, f := world(t)
				put(t, d, idA)
				if name == "a resume" {
					_, err := d.Pause(t.Context(), idA)
					must(t, err)
				}
				f.At(c.fails)
				if err := c.move(t.Context(), d); err == nil {
					t.Fatal("it was answered")
				}
				w.VMM(idA).SetState(c.late)
				f.At("")
				await(t, func() bool { return runs(t, d, w, idA) })
				_, err := d.Pause(t.Context(), idA)
				must(t, err)
				_, err = d.Resume(t.Context(), idA)
				must(t, err)
				must(t, d.Delete(t.Context(), idA, 1))
				nothingLeft(t, w, d)
				d.Close()
			})
		})
	}
}
