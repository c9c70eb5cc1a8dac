package core

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneAtATimeHasAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := newKeyedMutex()
		unlock, err := keys.lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if other, err := keys.lock(t.Context(), "another"); err != nil {
			t.Fatal(err)
		} else {
			other()
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := keys.lock(impatient, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		next := make(chan func())
		go func() {
			unlock, err := keys.lock(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			next <- unlock
		}()
		synctest.Wait()
		select {
		case <-next:
			t.Fatal("two have the key")
		default:
		}
		unlock()
		unlock() // does nothing to whoever is next
		(<-next)()
		if len(keys.of) != 0 {
			t.Errorf("%d keys are remembered", len(keys.of))
		}
	})
}
