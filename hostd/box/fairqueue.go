package box

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// fairQueue lets a few boxes do at once what their guests make long. Of those that wait, one
// of the workspace with the fewest turns is next, among equals of the workspace that has
// had none for longest: a workspace whose guests never answer holds up its own boxes.
type fairQueue struct {
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

func newFairQueue(most int) *fairQueue {
	return &fairQueue{most: most, of: map[string]int{}, served: map[string]uint64{}}
}

// enter waits for a turn. leave ends it, and is called once.
func (q *fairQueue) enter(ctx context.Context, workspace string) (leave func(), err error) {
	w := &waiter{workspace, make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.next()
	q.mu.Unlock()
	select {
	case <-w.turn:
		return func() { q.leave(workspace) }, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	i := slices.Index(q.waiting, w)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.forget(workspace)
	}
	q.mu.Unlock()
	if i < 0 { // its turn came, too
		q.leave(workspace)
	}
	return nil, context.Cause(ctx)
}

func (q *fairQueue) leave(workspace string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all--
	if q.of[workspace]--; q.of[workspace] == 0 {
		delete(q.of, workspace)
	}
	q.forget(workspace)
	q.next()
}

// forget forgets a workspace that has no turn and waits for none.
func (q *fairQueue) forget(workspace string) {
	if q.of[workspace] == 0 && !slices.ContainsFunc(q.waiting, func(w *waiter) bool { return w.workspace == workspace }) {
		delete(q.served, workspace)
	}
}

// next gives the turns that are free to those that wait.
func (q *fairQueue) next() {
	for q.all < q.most && len(q.waiting) > 0 {
		w := slices.MinFunc(q.waiting, func(a, b *waiter) int { // of equals the first
			return cmp.Or(cmp.Compare(q.of[a.workspace], q.of[b.workspace]), cmp.Compare(q.served[a.workspace], q.served[b.workspace]))
		})
		q.waiting = slices.DeleteFunc(q.waiting, func(o *waiter) bool { return o == w })
		q.all++
		q.of[w.workspace]++
		q.given++
		q.served[w.workspace] = q.given
		close(w.turn)
	}
}
