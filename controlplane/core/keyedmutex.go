package core

import (
	"context"
	"sync"
)

// keyedMutex is a mutex for each key. A wait for one ends with its context.
type keyedMutex struct {
	mu sync.Mutex
	of map[string]*mutex
}

type mutex struct {
	locked chan struct{} // contains an element while it is locked
	users  int           // goroutines that have it or wait for it
}

func newKeyedMutex() *keyedMutex { return &keyedMutex{of: map[string]*mutex{}} }

// lock locks a key, or fails when ctx ends. Only the first call of unlock has an effect.
func (k *keyedMutex) lock(ctx context.Context, key string) (unlock func(), err error) {
	one := k.enter(key)
	unlock = sync.OnceFunc(func() {
		<-one.locked
		k.leave(key)
	})
	select {
	case one.locked <- struct{}{}:
		return unlock, nil
	case <-ctx.Done():
		k.leave(key)
		return nil, ctx.Err()
	}
}

func (k *keyedMutex) enter(key string) *mutex {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.of[key]
	if one == nil {
		one = &mutex{locked: make(chan struct{}, 1)}
		k.of[key] = one
	}
	one.users++
	return one
}

func (k *keyedMutex) leave(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one := k.of[key]; one != nil {
		if one.users--; one.users == 0 {
			delete(k.of, key)
		}
	}
}
