package database

import (
	"context"
	"sync"
)

// turns let a few do something at once, in the order in which they came.
type turns chan struct{}

// enter waits for a turn. leave may be called by several.
func (t turns) enter(ctx context.Context) (leave func(), err error) {
	select {
	case t <- struct{}{}:
		return sync.OnceFunc(func() { <-t }), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
