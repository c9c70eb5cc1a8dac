package box

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// turns lets a few boxes do at once what their guests make long. Of those that wait, one
// of the workspace with the fewest turns is next, among equals of the workspace that has
// had none for longest: a workspace whose guests never answer holds up its own boxes.
type turns struct {
	most int

	mu      sync.Mutex
	all     int
	of      map[string]int    // by workspace, of those that have some
	served  map[string]uint64 // when a workspace got its last turn, of those that have some or wait
	given   uint64
	waiting []*waiter
}

type waiter struct {
	workspace string
	turn      chan struct{} // closed when it has one
}

func newTurns(most int) *turns {
	return &turns{most: most, of: map[string]int{}, served: map[string]uint64{}}
}

// enter waits for a turn. leave ends it, and is called once.
func (t *turns) enter(ctx context.Context, workspace string) (leave func(), err error) {
	w := &waiter{workspace, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.next()
	t.mu.Unlock()
	select {
	case <-w.turn:
		return func() { t.leave(workspace) }, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.waiting, w)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		t.forget(workspace)
	}
	t.mu.Unlock()
	if i < 0 { // its turn came, too
		t.leave(workspace)
	}
	return nil, context.Cause(ctx)
}

func (t *turns) leave(workspace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all--
	if t.of[workspace]--; t.of[workspace] == 0 {
		delete(t.of, workspace)
	}
	t.forget(workspace)
	t.next()
}

// forget forgets a workspace that has no turn and waits for none.
func (t *turns) forget(workspace string) {
	if t.of[workspace] == 0 && !slices.ContainsFunc(t.waiting, func(w *waiter) bool { return w.workspace == workspace }) {
		delete(t.served, workspace)
	}
}

// next gives the turns that are free to those that wait.
func (t *turns) next() {
	for t.all < t.most && len(t.waiting) > 0 {
		w := slices.MinFunc(t.waiting, func(a, b *waiter) int { // of equals the first
			return cmp.Or(cmp.Compare(t.of[a.workspace], t.of[b.workspace]), cmp.Compare(t.served[a.workspace], t.served[b.workspace]))
		})
		t.waiting = slices.DeleteFunc(t.waiting, func(o *waiter) bool { return o == w })
		t.all++
		t.of[w.workspace]++
		t.given++
		t.served[w.workspace] = t.given
		close(w.turn)
	}
}
