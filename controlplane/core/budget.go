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
	// maxOutputs is what the outputs of commands that wait to be read may take of
	// the leader's memory, and maxWorkspaceOutputs one workspace's share. The
	// share holds two of the largest. In bytes. As much is there for inputs.
	maxOutputs          = 512 << 20
	maxWorkspaceOutputs = 128 << 20
)

// AdmitWait is how long a client with input waits for room before it is refused,
// and one that asks for a long list.
const AdmitWait = 10 * time.Second

// Budget bounds memory that waits for clients, as outputs of commands and long lists
// do, whatever workspaces run and however slowly they read. Who finds no room waits for
// it; an output stays on its host meanwhile.
type Budget struct {
	all *semaphore.Weighted

	mu sync.Mutex
	of map[string]*share // by workspace, of those that have or want some
}

type share struct {
	room  *semaphore.Weighted
	users int
}

// NewBudget makes a budget of which nothing is taken.
func NewBudget() *Budget {
	return &Budget{all: semaphore.NewWeighted(maxOutputs), of: map[string]*share{}}
}

// Admit waits for room of so many bytes until wait ends. The room is taken until
// held ends.
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

// AdmitInput waits for room for so many bytes that the caller's client is about to
// send as input, and may hold for as long as a command runs. The room is taken
// until release is called.
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
