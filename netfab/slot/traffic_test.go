package slot

import (
	"errors"
	"testing"
)

func TestTrafficOfASlotIsCounted(t *testing.T) {
	f := newFabric(t)
	guestd(t, newGuest(t, ensure(t, f, 0)))
	check(t, roundTrip(t.Context(), f, 0))
	got, err := f.Traffic(t.Context(), 0)
	check(t, err)
	if got.Received == 0 || got.Sent == 0 {
		t.Errorf("after a round trip: %+v", got)
	}
	if _, err := f.Traffic(t.Context(), f.Count()); !errors.Is(err, ErrNoSuchSlot) {
		t.Errorf("of a slot that there is not: %v", err)
	}
}
