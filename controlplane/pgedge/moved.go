package pgedge

import (
	"context"
	"sync"
)

// tunnels are the open connections to guests.
type tunnels struct {
	mu   sync.Mutex
	open map[*tunnel]struct{}
}

func (t *tunnels) add(c *tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = map[*tunnel]struct{}{}
	}
	t.open[c] = struct{}{}
}

func (t *tunnels) remove(c *tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

func (t *tunnels) all() []*tunnel {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*tunnel, 0, len(t.open))
	for c := range t.open {
		out = append(out, c)
	}
	return out
}

// CutMoved closes connections to boxes that their databases have left, until ctx ends.
// Once a failover has begun, writes to the old box are lost, and no client may be told
// that they were committed. The channel that changed returns is closed when rows of
// databases change.
func (r *Reach) CutMoved(ctx context.Context, changed func() <-chan struct{}) {
	for {
		next := changed() // taken before the look, so that no change is missed
		r.cutMoved()
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reach) cutMoved() {
	for _, c := range r.tunnels.all() {
		if e, ok := r.lookup(c.database); !ok || e.leaves(c.sandbox) {
			_ = c.Close() // closing tells both ends
		}
	}
}
