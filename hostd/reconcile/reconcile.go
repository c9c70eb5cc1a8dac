// Package reconcile brings the ledger and the kernel together when a host
// daemon starts: it adopts the VMs that still run, marks boxes failed whose VM
// vanished, and kills and removes what no record names.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
)

// parallel is how many boxes are looked at at once.
const parallel = 16

// unmanagedTimeout bounds the killing of one VM that no record names.
var unmanagedTimeout = timescale.Limit(30 * time.Second)

// Boxes takes records over.
type Boxes interface {
	Recover(ctx context.Context, rec ledger.Record) (box.Recovery, error)
	Open()
}

// Captures finds the captures of earlier daemons again.
type Captures interface {
	Recover() error
}

// Machine is what the host's kernel and file systems hold for boxes, whether a
// record names it or not.
type Machine interface {
	// Traces returns the id of every box of which something is there: a
	// runtime directory, a directory of disks, a cgroup. Other names are not
	// ours.
	Traces(ctx context.Context) ([]string, error)
	// KillVMM kills the VMM of a runtime directory and waits for its end;
	// found says whether there was one.
	KillVMM(ctx context.Context, id string) (found bool, err error)
	// RemoveCgroup kills what is left in a box's cgroup, and removes it.
	RemoveCgroup(ctx context.Context, id string) error
	// RemoveFiles removes a box's directories.
	RemoveFiles(id string) error
	// HoldSlot says that a slot belongs to a box. Slots that nobody holds are
	// removed by their pool.
	HoldSlot(n int)
}

// Report counts what was found.
type Report struct {
	Adopted, Orphaned, Kept, Rebooted, Leftover, Unmanaged int
	Took                                                   time.Duration
}

// Reconciler runs once, at the start of the daemon.
type Reconciler struct {
	Records  []ledger.Record
	Boxes    Boxes
	Captures Captures
	Machine  Machine
	Events   box.Events // nil: nobody listens
	Log      *slog.Logger
}

// Run returns when every record is recovered and what has none is removed, and
// then opens the boxes for service: the list is complete, and what is made from
// now on is not taken for something that was left behind. One box that cannot be
// cleaned does not keep the host from starting; a ledger that cannot be written
// does.
func (r *Reconciler) Run(ctx context.Context) (Report, error) {
	began := time.Now()
	var mu sync.Mutex
	found := map[box.Recovery]int{}
	known := map[string]bool{}
	for _, rec := range r.Records {
		known[rec.ID] = true
		if rec.Slot != ledger.NoSlot {
			r.Machine.HoldSlot(rec.Slot)
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, rec := range r.Records {
		group.Go(func() error {
			got, err := r.Boxes.Recover(gctx, rec)
			if err != nil {
				return fmt.Errorf("recover sandbox %s: %w", hostapi.ShortID(rec.ID), err)
			}
			mu.Lock()
			found[got]++
			mu.Unlock()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return Report{}, err
	}
	if err := r.Captures.Recover(); err != nil {
		return Report{}, fmt.Errorf("recover captures: %w", err)
	}
	unmanaged, err := r.removeUnmanaged(ctx, known)
	if err != nil {
		return Report{}, err
	}
	r.Boxes.Open()
	rep := Report{
		Adopted: found[box.Adopted], Orphaned: found[box.Orphaned], Kept: found[box.Kept],
		Rebooted: found[box.Rebooted], Leftover: found[box.Leftover],
		Unmanaged: unmanaged, Took: time.Since(began),
	}
	r.Log.Info("host is reconciled", "adopted", rep.Adopted, "orphaned", rep.Orphaned, "kept", rep.Kept, "rebooted", rep.Rebooted,
		"leftover", rep.Leftover, "unmanaged", rep.Unmanaged, "took_ms", rep.Took.Milliseconds())
	return rep, nil
}

// removeUnmanaged kills and removes what belongs to no record. Records are
// written before anything is made for them, so this is what a lost or moved
// ledger leaves.
func (r *Reconciler) removeUnmanaged(ctx context.Context, known map[string]bool) (int, error) {
	traces, err := r.Machine.Traces(ctx)
	if err != nil {
		return 0, fmt.Errorf("list what is there for sandboxes: %w", err)
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	count := 0
	for _, id := range traces {
		if known[id] {
			continue
		}
		count++
		group.Go(func() error {
			r.killUnmanaged(ctx, id)
			return nil
		})
	}
	return count, group.Wait()
}

func (r *Reconciler) killUnmanaged(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, unmanagedTimeout)
	defer cancel()
	running, err := r.Machine.KillVMM(ctx, id)
	err = errors.Join(err, r.Machine.RemoveCgroup(ctx, id))
	if err != nil {
		// Its files may be in use: they stay for the next start.
		r.Log.Error("a VM without a record could not be killed", "event", "recover.unmanaged", "sandbox_id", id, "error", err)
		return
	}
	r.Log.Warn("what belongs to no sandbox is removed", "event", "recover.unmanaged", "sandbox_id", id, "vm_was_running", running)
	if r.Events != nil {
		r.Events.Open(id, "", "")
		r.Events.Emit(id, hostapi.EventUnmanaged, "what belongs to no sandbox is removed", map[string]any{"vm_was_running": running})
		r.Events.Close(id)
	}
	if err := r.Machine.RemoveFiles(id); err != nil {
		r.Log.Error("files of no sandbox could not be removed", "sandbox_id", id, "error", err)
	}
}
