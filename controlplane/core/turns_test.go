package core

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneAtATimeHasATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		leave, waited, err := turns.take(t.Context(), "k")
		if err != nil || waited {
			t.Fatal(waited, err)
		}
		if other, waited, err := turns.take(t.Context(), "another"); err != nil || waited {
			t.Fatal(waited, err)
		} else {
			other()
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := turns.take(impatient, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		next := make(chan func())
		go func() {
			leave, waited, err := turns.take(t.Context(), "k")
			if err != nil || !waited {
				t.Error(waited, err)
			}
			next <- leave
		}()
		synctest.Wait()
		leave()
		leave() // does nothing to whoever is next
		(<-next)()
		if len(turns.of) != 0 {
			t.Errorf("%d keys are remembered", len(turns.of))
		}
	})
}
