package api

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

func TestACallAfterOneThatWasNotAnsweredBeginsWithAnotherReplica(t *testing.T) {
	calls := map[string]func(context.Context, *Client) error{
		"safe": func(ctx context.Context, c *Client) error {
			_, err := c.GetSandbox(ctx, "x")
			return err
		},
		"not safe": func(ctx context.Context, c *Client) error {
			_, err := c.Exec(ctx, "x", Exec{})
			return err
		},
		"socket": func(ctx context.Context, c *Client) error {
			_, err := c.OpenTerminal(ctx, "x", OpenTerminal{})
			return err
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			asked, thawed := make(chan struct{}, 1), make(chan struct{})
			frozen := newReplica(t, func(http.ResponseWriter, *http.Request) {
				asked <- struct{}{}
				<-thawed
			})
			t.Cleanup(func() { close(thawed) })
			other := newReplica(t, answer(http.StatusConflict, `{"error":"sandbox is paused"}`))
			c := newClient(t, frozen.URL, other.URL)

			// What the caller gives up says nothing of the replica.
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-asked
				cancel()
			}()
			if err := call(ctx, c); !errors.Is(err, context.Canceled) {
				t.Fatalf("%v", err)
			}
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := call(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%v", err)
			}
			if err := call(t.Context(), c); StatusOf(err) != http.StatusConflict {
				t.Fatalf("%v", err)
			}
			if n := frozen.asked.Load(); n != 2 {
				t.Errorf("the frozen replica was asked %d times", n)
			}
		})
	}
}

func TestACallThatIsSafeLeavesAFrozenReplica(t *testing.T) {
	look, limit := lookAfter, aliveLimit
	lookAfter, aliveLimit = 10*time.Millisecond, 50*time.Millisecond
	t.Cleanup(func() { lookAfter, aliveLimit = look, limit })
	thawed := make(chan struct{})
	frozen := newReplica(t, func(http.ResponseWriter, *http.Request) { <-thawed })
	t.Cleanup(func() { close(thawed) })
	other := newReplica(t, answer(http.StatusOK, `{"id":"x"}`))
	c := newClient(t, frozen.URL, other.URL)
	if sb, err := c.GetSandbox(t.Context(), "x"); err != nil || sb.ID != "x" {
		t.Fatalf("%+v, %v", sb, err)
	}
	c.last.Store(0)
	if _, err := c.OpenTerminal(t.Context(), "x", OpenTerminal{}); err == nil || errors.Is(err, errFrozen) {
		t.Errorf("a terminal: %v", err) // the other replica has none
	}
	alone := newClient(t, frozen.URL, frozen.URL)
	if _, err := alone.GetSandbox(t.Context(), "x"); !errors.Is(err, errFrozen) {
		t.Errorf("of frozen replicas alone: %v", err)
	}
}

func TestACallWaitsForAReplicaThatIsHealthy(t *testing.T) {
	look, limit := lookAfter, aliveLimit
	lookAfter, aliveLimit = time.Millisecond, time.Minute
	t.Cleanup(func() { lookAfter, aliveLimit = look, limit })
	var looks atomic.Int32
	looked := make(chan struct{})
	slow := newReplica(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			<-looked
			answer(http.StatusOK, `{"id":"x"}`)(w, r)
		} else if looks.Add(1) == 2 {
			close(looked)
		}
	})
	other := newReplica(t, answer(http.StatusNotFound, `{"error":"not found"}`))
	c := newClient(t, slow.URL, other.URL)
	if sb, err := c.GetSandbox(t.Context(), "x"); err != nil || sb.ID != "x" {
		t.Fatalf("%+v, %v", sb, err)
	}
}
