package snapshot

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// storedLooks is the number of passes over the snapshot store during KeptGrace.
const storedLooks = 12

// storedAtOnce limits how many stored copies are deleted at once.
const storedAtOnce = 2

// listTime limits the listing of one page of the store.
var listTime = 6 * loops.CallTimeout

// collect deletes objects in the snapshot store that have been without a row for
// KeptGrace: their host was gone when they were deleted, or their upload ended later
// than that.
func (k *keeper) collect(ctx context.Context) {
	origin, ok := raftstore.Get(k.Store.View(), record.Clusters, record.OriginID)
	if !ok {
		return
	}
	seen := map[string]bool{}
	if !k.eachStored(ctx, origin.Name, func(ids []string) {
		// The view is taken after the page: an object's row is older than the
		// object.
		wanted := k.things.stored(k.Store.View())
		for _, id := range ids {
			if !wanted(id) {
				seen[id] = true
			}
		}
	}) {
		return
	}
	if due := k.copies.Due(ctx, seen, func(string) time.Duration { return k.KeptGrace }); len(due) > 0 {
		k.Begin(loops.Job{What: "stored"}, 1, func() { k.removeAllStored(ctx, due) })
	}
}

// eachStored visits every object in the store, if the store belongs to owner, and
// reports whether it was complete.
func (k *keeper) eachStored(ctx context.Context, owner string, visit func(ids []string)) bool {
	for after := ""; ; {
		page, ok := k.storedPage(ctx, owner, after)
		if !ok {
			return false
		}
		visit(page.IDs)
		if !page.More {
			return true
		}
		after = page.IDs[len(page.IDs)-1]
	}
}

// storedPage returns a page of the store's listing from the first host that answers.
func (k *keeper) storedPage(ctx context.Context, owner, after string) (page hostapi.StoredPage, ok bool) {
	for _, hostID := range k.core.Hosts.Stores() {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		err := k.core.Hosts.Call(ctx, hostID, func(ctx context.Context, c *hosts.Client) (err error) {
			page, err = c.Stored(ctx, owner, after, hostapi.MaxStoredPage)
			return err
		})
		cancel()
		if err == nil && (!page.More || len(page.IDs) > 0) {
			return page, true
		}
		k.Logger.WarnContext(ctx, "snapshot store could not be listed", "agent_id", hostID, "error", err)
	}
	return page, false
}

// removeAllStored deletes all the objects that a pass found, because passes are far
// apart. It takes a while, so it checks each object again before deleting it.
func (k *keeper) removeAllStored(ctx context.Context, ids []string) {
	var all errgroup.Group
	all.SetLimit(storedAtOnce)
	for _, id := range ids {
		all.Go(func() error {
			if ctx.Err() == nil && loops.Kept(k.Store.View()) == 0 && !k.things.stored(k.Store.View())(id) {
				k.removeStored(ctx, id)
			}
			return nil
		})
	}
	_ = all.Wait() // what fails is logged
}

func (k *keeper) removeStored(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	if err := k.core.Hosts.DeleteStored(ctx, id); err != nil {
		k.Logger.WarnContext(ctx, "stored copy without a row could not be deleted", "id", id, "error", err)
		return
	}
	k.Logger.InfoContext(ctx, "stored copy without a row deleted", "id", id)
}
