// Package guard ends the VMMs of exclusive boxes when the lease of their host is over
// and its daemon does not: it was stopped or killed, or waits for a disk. The guard is
// a process of its own, which the daemon starts and which outlives it.
//
// What it reads and writes is on file systems without a disk: the word of the leader
// and the marks of exclusive boxes in the runtime directory, and cgroups. Its memory
// is locked, its program included. It logs nothing, because who reads the log may
// hang as well: the daemon tells of what it finds ended.
package guard

import (
	"context"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/lease"
)

// Groups are the cgroups of boxes.
type Groups interface {
	// Busy reports whether a box's group has a process.
	Busy(id string) (bool, error)
	// Kill kills what is in a box's group now, and waits until that has ended. What comes
	// into the group meanwhile is another VMM, of a daemon that has the lease again.
	Kill(ctx context.Context, id string) error
}

// Config is what a guard works with.
type Config struct {
	// Lock is a file that one guard of the host holds, whatever runtime directory its
	// daemon has: that may be another one by now.
	Lock   string
	Marks  Marks
	Lease  *lease.Observer
	Groups Groups
}

// killTime bounds the wait for the end of a process, which may be waiting for a disk
// itself. It is killed again at the next look, if the lease is over then.
const killTime = time.Second

// watch ends exclusive boxes for as long as the lease is over, until ctx ends, or there
// is no host any more.
func (c Config) watch(ctx context.Context, exists func() bool) {
	for ctx.Err() == nil && exists() {
		c.look(ctx)
		t := time.NewTimer(c.Lease.Tick())
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// look ends every exclusive box if the lease is over. Errors are tried again at the
// next look: nobody could be told of them.
func (c Config) look(ctx context.Context) {
	if !c.Lease.Over() {
		return
	}
	ids, err := c.Marks.List()
	if err != nil {
		return
	}
	var ends sync.WaitGroup
	defer ends.Wait()
	for _, id := range ids {
		if busy, err := c.Groups.Busy(id); err != nil || !busy {
			continue
		}
		if !c.Lease.Over() { // the daemon is back
			return
		}
		// Before its end, so that the daemon finds the reason with it.
		_ = c.Marks.end(id)
		ends.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, killTime)
			defer cancel()
			_ = c.Groups.Kill(ctx, id)
		})
	}
}
