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
		leave, err := turns.take(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if other, err := turns.take(t.Context(), "another"); err != nil {
			t.Fatal(err)
		} else {
			other()
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.take(impatient, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		next := make(chan func())
		go func() {
			leave, err := turns.take(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			next <- leave
		}()
		synctest.Wait()
		select {
		case <-next:
			t.Fatal("two have the turn")
		default:
		}
		leave()
		leave() // does nothing to whoever is next
		(<-next)()
		if len(turns.of) != 0 {
			t.Errorf("%d keys are remembered", len(turns.of))
		}
	})
}
