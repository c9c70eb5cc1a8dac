package settings

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestFollowSaysWhatIsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var said []string
		looks := []error{nil, errors.New("a"), errors.New("a"), errors.New("b"), nil, errors.New("b")}
		Follow(ctx, time.Second, func() (bool, error) {
			err := looks[0]
			if looks = looks[1:]; len(looks) == 0 {
				cancel()
			}
			return true, err
		}, func() { said = append(said, "changed") }, func(err error) { said = append(said, err.Error()) })
		if want := []string{"changed", "a", "b", "changed", "b"}; !slices.Equal(said, want) {
			t.Errorf("it said %q, want %q", said, want)
		}
	})
}
