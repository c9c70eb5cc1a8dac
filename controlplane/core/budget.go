package core

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

const (
	// maxOutputs limits the leader's memory for unread outputs of commands, in bytes,
	// and maxWorkspaceOutputs one workspace's share, which holds two of the largest
	// outputs. The same limits apply to inputs.
	maxOutputs          = 512 << 20
	maxWorkspaceOutputs = 128 << 20
)

// AdmitWait is how long a client that sends input or requests a long list waits for
// memory before it is refused.
const AdmitWait = 10 * time.Second

// Budget limits the memory that waits for clients, such as outputs of commands and
// long lists, whatever workspaces run and however slowly they read. Who finds no
// memory waits for it; an output stays on its host meanwhile.
type Budget struct {
	all *semaphore.Weighted

	mu sync.Mutex
	of map[string]*share // by workspace; those that have memory or wait for it
}

type share struct {
	room  *semaphore.Weighted
	users int
}

// newBudget returns an unused budget.
func newBudget() *Budget {
	return &Budget{all: semaphore.NewWeighted(maxOutputs), of: map[string]*share{}}
}

// Admit waits for memory, until wait ends. It releases the memory when held ends.
func (o *Budget) Admit(wait, held context.Context, workspace string, bytes int64) error {
	bytes = min(bytes, maxWorkspaceOutputs)
	s := o.enter(workspace)
	if err := s.room.Acquire(wait, bytes); err != nil {
		o.leave(workspace)
		return fmt.Errorf("wait for the workspace's share of memory for output: %w", err)
	}
	if err := o.all.Acquire(wait, bytes); err != nil {
		s.room.Release(bytes)
		o.leave(workspace)
		return fmt.Errorf("wait for memory for output: %w", err)
	}
	context.AfterFunc(held, func() {
		o.all.Release(bytes)
		s.room.Release(bytes)
		o.leave(workspace)
	})
	return nil
}

// AdmitInput waits for memory for input that the caller's client is about to send. A
// command may hold it until it ends; release frees it.
func (c *Core) AdmitInput(ctx context.Context, caller Caller, bytes int64) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, AdmitWait)
	defer cancel()
	held, release := context.WithCancel(context.Background())
	if err := c.Inputs.Admit(ctx, held, caller.WorkspaceID, bytes); err != nil {
		release()
		return nil, &apierror.Error{
			Code: apierror.ERateLimited, Message: "too much input at once", Detail: "the input of what runs in this workspace takes all that may be held",
			RetryAfter: time.Second, Err: err,
		}
	}
	return release, nil
}

func (o *Budget) enter(workspace string) *share {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.of[workspace]
	if s == nil {
		s = &share{room: semaphore.NewWeighted(maxWorkspaceOutputs)}
		o.of[workspace] = s
	}
	s.users++
	return s
}

func (o *Budget) leave(workspace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.of[workspace]; s != nil {
		if s.users--; s.users == 0 {
			delete(o.of, workspace)
		}
	}
}
