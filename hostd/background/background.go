// Package background runs what goes on when its caller has gone, and ends with
// the part of the daemon that began it.
package background

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/telemetry"
)

// ErrClosing is why work ends that a part of the daemon began.
var ErrClosing = errors.New("host daemon is shutting down")

// Group is the background work of one part. Make one with New.
type Group struct {
	life context.Context
	end  context.CancelCauseFunc

	mu     sync.Mutex
	closed bool // nothing may begin any more
	work   sync.WaitGroup
}

// New returns a group without work.
func New() *Group {
	g := &Group{}
	g.life, g.end = context.WithCancelCause(context.Background())
	return g
}

// Life ends with End.
func (g *Group) Life() context.Context { return g.life }

// Detach returns a context for what goes on when its caller has gone: it ends with
// the group, and knows the request that it is done for, and its trace.
func (g *Group) Detach(ctx context.Context) context.Context {
	return telemetry.Carry(hostapi.WithRequestID(g.life, hostapi.RequestID(ctx)), ctx)
}

// Go begins work that Wait waits for, and reports whether it did: not after End.
func (g *Group) Go(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.work.Go(f)
	}
	return !g.closed
}

// End ends Life, for a cause. Again is no harm.
func (g *Group) End(cause error) {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.end(cause)
}

// Wait waits for the work, after End.
func (g *Group) Wait() { g.work.Wait() }

// Close is End and Wait.
func (g *Group) Close(cause error) {
	g.End(cause)
	g.Wait()
}
