package peer

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// WhileLeads checks every lookFirst who leads. While another replica leads but the former
// leader is still alive, the interval doubles, up to lookLast.
const (
	lookFirst = 250 * time.Millisecond
	lookLast  = 4 * time.Second
)

// ErrAnotherLeads is the cause with which WhileLeads cancels its context.
var ErrAnotherLeads = errors.New("another replica leads by now")

// WhileLeads returns a context that is cancelled when a replica other than id leads. A
// frozen leader keeps its connections open and never answers; only a change of leaders
// reveals that. If alive is not nil, the context is cancelled only once alive returns
// false: a replica that has lost the lead but still runs may finish what it has begun.
// answered stops the watch. end cancels the context and waits for the watch to stop.
func WhileLeads(ctx context.Context, leader func() (id, address string), id string, alive func(context.Context) bool) (_ context.Context, answered, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	heard, over := make(chan struct{}), make(chan struct{})
	answered = sync.OnceFunc(func() { close(heard) })
	go func() {
		defer close(over)
		pause := lookFirst
		timer := time.NewTimer(pause)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-heard:
				return
			case <-ctx.Done():
				return
			}
			if now, _ := leader(); now != "" && now != id {
				if alive == nil || !alive(ctx) {
					select {
					case <-heard:
					default:
						cancel(ErrAnotherLeads)
					}
					return
				}
				pause = min(2*pause, lookLast)
			}
			timer.Reset(pause)
		}
	}()
	return ctx, answered, func() {
		cancel(nil)
		<-over
	}
}

// aliveLimit is how long Alive waits for an answer.
var aliveLimit = timescale.Limit(2 * time.Second)

// Alive reports whether the replica at address answers at all. self is the caller's id.
func Alive(ctx context.Context, transport http.RoundTripper, self, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	req.Header.Set(HeaderForwarded, self) // the replica must not forward it
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return true
}
