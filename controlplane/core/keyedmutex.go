package core

import (
	"context"
	"sync"
)

// turns are mutexes by key. A wait for one ends with its context.
type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

type turn struct {
	taken chan struct{} // contains an element while it is locked
	users int           // goroutines that have it or wait for it
}

func newTurns() *turns { return &turns{of: map[string]*turn{}} }

// take locks a key, or fails when ctx ends. leave unlocks the key; only its first call has
// an effect.
func (t *turns) take(ctx context.Context, key string) (leave func(), err error) {
	one := t.enter(key)
	leave = sync.OnceFunc(func() {
		<-one.taken
		t.leave(key)
	})
	select {
	case one.taken <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		t.leave(key)
		return nil, ctx.Err()
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
