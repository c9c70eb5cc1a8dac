package core

import (
	"context"
	"sync"
)

// turns lets one at a time do what is of one key.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

type turn struct {
	taken chan struct{} // has an element while it is somebody's
	users int           // who have it or wait for it
}

func newTurns() *turns { return &turns{of: map[string]*turn{}} }

// take waits for the turn until ctx ends, and reports whether it had to. The turn is
// the caller's until leave is called; a second call of it does nothing.
func (t *turns) take(ctx context.Context, key string) (leave func(), waited bool, err error) {
	one := t.enter(key)
	leave = sync.OnceFunc(func() {
		<-one.taken
		t.leave(key)
	})
	select {
	case one.taken <- struct{}{}:
		return leave, false, nil
	default:
	}
	select {
	case one.taken <- struct{}{}:
		return leave, true, nil
	case <-ctx.Done():
		t.leave(key)
		return nil, true, ctx.Err()
	}
}

func (t *turns) enter(key string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of[key]
	if one == nil {
		one = &turn{taken: make(chan struct{}, 1)}
		t.of[key] = one
	}
	one.users++
	return one
}

func (t *turns) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.of[key]; one != nil {
		if one.users--; one.users == 0 {
			delete(t.of, key)
		}
	}
}
