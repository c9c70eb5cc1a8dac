package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// maxOutputs is what the outputs of commands that wait to be read may take of
	// the leader's memory, and maxWorkspaceOutputs one workspace's share. The
	// share holds two of the largest. In bytes. As much is there for inputs.
	maxOutputs          = 512 << 20
	maxWorkspaceOutputs = 128 << 20
	// outputCopies is how often an output is in memory at most: as it came, and as
	// the bytes and the text made of it.
	outputCopies = 2
)

// inputWait is how long a client with input waits for room before it is refused,
// and one that asks for a long list.
const inputWait = 10 * time.Second

// A list of sandboxes counts as output where it is larger than freeList, in bytes:
// with their metadata a thousand have sixteen megabytes. As JSON that grows it is in
// memory listCopies times at most. restOfOne is what one has beside its metadata.
const (
	freeList   = 64 << 10
	listCopies = 2
	restOfOne  = 1 << 10
)

// outputs bounds the memory that outputs of commands, and long lists of events and
// of sandboxes, take, whatever tenants run and however slowly they read. Who finds
// no room waits for it; the output stays on its host meanwhile.
type outputs struct {
	all *semaphore.Weighted

	mu sync.Mutex
	of map[string]*share // by workspace, of those that have or want some
}

type share struct {
	room  *semaphore.Weighted
	users int
}

func newOutputs() *outputs {
	return &outputs{all: semaphore.NewWeighted(maxOutputs), of: map[string]*share{}}
}

// admit waits for room of so many bytes until wait ends. The room is taken until
// held ends.
func (o *outputs) admit(wait, held context.Context, workspace string, bytes int64) error {
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

// admitList waits for room for a list of sandboxes, which is held until ctx ends.
func (s *Sandboxes) admitList(ctx context.Context, c Caller, rows []*record.Sandbox) error {
	size := 0
	for _, r := range rows {
		size += restOfOne + len(r.Metadata) + len(r.Error)
	}
	if size <= freeList {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, inputWait)
	defer cancel()
	if err := s.outputs.admit(wait, ctx, c.WorkspaceID, listCopies*int64(size)); err != nil {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "too many long lists at once", Detail: "what this workspace has yet to read takes all that may be held",
			RetryAfter: time.Second, Err: err,
		}
	}
	return nil
}

// AdmitInput waits for room for so many bytes that the caller's client is about to
// send as input, and may hold for as long as a command runs. The room is taken
// until release is called.
func (s *Sandboxes) AdmitInput(ctx context.Context, c Caller, bytes int64) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, inputWait)
	defer cancel()
	held, release := context.WithCancel(context.Background())
	if err := s.inputs.admit(ctx, held, c.WorkspaceID, bytes); err != nil {
		release()
		return nil, &apierror.Error{
			Code: apierror.ERateLimited, Message: "too much input at once", Detail: "the input of what runs in this workspace takes all that may be held",
			RetryAfter: time.Second, Err: err,
		}
	}
	return release, nil
}

func (o *outputs) enter(workspace string) *share {
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

func (o *outputs) leave(workspace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.of[workspace]; s != nil {
		if s.users--; s.users == 0 {
			delete(o.of, workspace)
		}
	}
}
