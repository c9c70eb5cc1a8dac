package box

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestAFairQueueServesTheWorkspaceWithTheFewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairQueue(2)
		var leave []func()
		enter := func(workspace string) *bool {
			got := new(bool)
			go func() {
				end, err := queue.enter(t.Context(), workspace)
				if err != nil {
					t.Error(err)
					return
				}
				*got, leave = true, append(leave, end)
			}()
			synctest.Wait()
			return got
		}
		a1, a2, a3, a4, b := enter("a"), enter("a"), enter("a"), enter("a"), enter("b")
		if !*a1 || !*a2 || *a3 || *a4 || *b {
			t.Fatal("two have a turn, and the others wait")
		}
		leave[0]()
		synctest.Wait()
		if !*b || *a3 {
			t.Error("another workspace's is not next")
		}
		leave[1]()
		synctest.Wait()
		if !*a3 || *a4 {
			t.Error("of one workspace the first is not next")
		}
		leave[2]()
		synctest.Wait()
		if !*a4 {
			t.Error("a turn that nobody else wants is not given")
		}
		leave[3]()
		leave[4]()
		if queue.all != 0 || len(queue.of)+len(queue.served) != 0 {
			t.Errorf("%d turns are left: %v %v", queue.all, queue.of, queue.served)
		}
	})
}

func TestAFairQueueServesWorkspacesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairQueue(1)
		var order string
		end := make(chan struct{})
		for _, workspace := range []string{"a", "a", "a", "a", "b", "b"} {
			go func() {
				leave, err := queue.enter(t.Context(), workspace)
				if err != nil {
					t.Error(err)
					return
				}
				order += workspace
				<-end
				leave()
			}()
			synctest.Wait()
		}
		for range 6 {
			end <- struct{}{}
			synctest.Wait()
		}
		if order != "ababaa" {
			t.Errorf("the turns are %s", order)
		}
	})
}

func TestWhoLeavesAFairQueueHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newFairQueue(1)
		leave, err := queue.enter(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		gone := errors.New("it is deleted")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := queue.enter(ctx, "b")
			ended <- err
		}()
		synctest.Wait()
		cancel(gone)
		if err := <-ended; !errors.Is(err, gone) {
			t.Errorf("%v, want %v", err, gone)
		}
		leave()
		if leave, err = queue.enter(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		leave()
	})
}
