package api

import (
	"context"
	"errors"
	"net/http"
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
