package peer

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A frozen leader keeps its connections open. AskLeader stops waiting for it once another
// replica leads.
func TestAFrozenLeaderIsNotWaitedFor(t *testing.T) {
	var leads atomic.Value
	leads.Store("a")
	leader := func() (id, address string) { return leads.Load().(string), "127.0.0.1:1" }
	frozen := roundTrip(func(r *http.Request) (*http.Response, error) {
		leads.Store("b")
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := AskLeader(ctx, frozen, leader, "/x", struct{}{})
	if apierror.CodeOf(err) != apierror.EUnavailable || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

func TestTheEndsOfAWaitForALeader(t *testing.T) {
	var leads atomic.Value
	leader := func() (id, address string) { return leads.Load().(string), "" }
	ended := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Minute):
			return errors.New("it goes on")
		}
	}
	leads.Store("") // an election, which the same leader may win
	ctx, _, end := WhileLeads(t.Context(), leader, "a", nil)
	leads.Store("a")
	if ctx.Err() != nil {
		t.Error("it ended while the same leads")
	}
	leads.Store("b")
	if err := ended(ctx); !errors.Is(err, ErrAnotherLeads) {
		t.Error(err)
	}
	end()
	// While the former leader is alive, it is checked again and again.
	var asked atomic.Int64
	ctx, _, end = WhileLeads(t.Context(), leader, "a", func(context.Context) bool { return asked.Add(1) < 3 })
	if err := ended(ctx); !errors.Is(err, ErrAnotherLeads) || asked.Load() != 3 {
		t.Errorf("%v after %d", err, asked.Load())
	}
	end()
	// Once the leader has answered, it may take as long as it wants.
	ctx, answered, end := WhileLeads(t.Context(), leader, "a", nil)
	answered()
	answered()
	if ctx.Err() != nil {
		t.Error("the answer ended it")
	}
	end()
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrAnotherLeads) {
		t.Error(context.Cause(ctx))
	}
}
