package box_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// slowEvents takes long to record that a box is deleted.
type slowEvents struct {
	*boxtest.Events
	proceed chan struct{}
}

func (e slowEvents) Emit(id string, t hostapi.EventType, message string, metadata map[string]any) {
	if t == hostapi.EventDeleted {
		<-e.proceed
	}
	e.Events.Emit(id, t, message, metadata)
}

// The stream of events is the id's. The end of the old box's stream must not be
// that of the new one's.
func TestABoxThatReplacesAnotherKeepsItsEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events := slowEvents{&boxtest.Events{}, make(chan struct{})}
		d := start(t, boxtest.NewWorld(t), func(_ *box.Config, deps *box.Deps) { deps.Events = events })
		put(t, d, idA)
		done := make(chan error, 2)
		go func() { done <- d.Delete(t.Context(), idA, 1) }()
		synctest.Wait()
		go func() {
			_, err := d.Put(t.Context(), idA, spec(2))
			done <- err
		}()
		synctest.Wait()
		close(events.proceed)
		must(t, <-done)
		must(t, <-done)
		_, err := d.Pause(t.Context(), idA)
		must(t, err)
		want := []hostapi.EventType{hostapi.EventRunning, hostapi.EventDeleted, hostapi.EventRunning, hostapi.EventPaused}
		if got := events.Types(idA); !slices.Equal(got, want) {
			t.Errorf("its events are %v, want %v", got, want)
		}
	})
}
