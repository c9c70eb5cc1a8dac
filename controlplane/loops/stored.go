package loops

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// storedLooks is how often the snapshot store is looked through in the time that
// a stored copy without a row is left there.
const storedLooks = 12

// storedAtOnce bounds how many of them are deleted at once.
const storedAtOnce = 2

// listTime bounds the listing of one page of the store.
var listTime = 6 * callTimeout

// stored deletes what is in the snapshot store and has had no row for a while:
// the host that put it there was gone when it was given up, or the upload ended
// later than that.
func (l *Loops) stored(ctx context.Context) {
	origin, ok := raftstore.Get(l.cfg.Store.View(), record.Clusters, record.OriginID)
	if !ok {
		return
	}
	seen := map[string]bool{}
	if !l.eachStored(ctx, origin.Name, func(ids []string) {
		// After the page: what is stored has its row before.
		for _, id := range l.unwanted(ids) {
			seen[id] = true
		}
	}) {
		return
	}
	now := l.cfg.Clock()
	for id := range l.storedSince {
		if !seen[id] {
			delete(l.storedSince, id)
		}
	}
	var due []string
	for id := range seen {
		since, known := l.storedSince[id]
		if !known {
			l.storedSince[id] = now
			since = now
		}
		if l.keeping(ctx, !known, "stored copy", id, "") || now.Sub(since) < l.cfg.KeptGrace {
			continue
		}
		due = append(due, id)
	}
	if len(due) > 0 {
		l.jobs.begin(job{what: "stored"}, 1, func() { l.removeAllStored(ctx, due) })
	}
}

// unwanted are those of some stored copies that nobody wants.
func (l *Loops) unwanted(ids []string) []string {
	view, builds := l.cfg.Store.View(), l.storedBuilds()
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		if digest, build := strings.CutPrefix(id, hostapi.StoredBuild("")); build {
			return builds[digest]
		}
		return capturedFor(view, id) || treeLives(view, id)
	})
}

// eachStored visits everything in the store, if it is the owner's, and reports
// whether it saw it all.
func (l *Loops) eachStored(ctx context.Context, owner string, visit func(ids []string)) bool {
	for after := ""; ; {
		page, ok := l.storedPage(ctx, owner, after)
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

// storedPage asks the hosts one after the other.
func (l *Loops) storedPage(ctx context.Context, owner, after string) (page hostapi.StoredPage, ok bool) {
	for _, agentID := range l.cfg.Hosts.Stores() {
		ctx, cancel := context.WithTimeout(ctx, listTime)
		err := l.cfg.Hosts.Call(ctx, agentID, func(ctx context.Context, c *hosts.Client) (err error) {
			page, err = c.Stored(ctx, owner, after, hostapi.MaxStoredPage)
			return err
		})
		cancel()
		if err == nil && (!page.More || len(page.IDs) > 0) {
			return page, true
		}
		l.cfg.Logger.WarnContext(ctx, "snapshot store could not be listed", "agent_id", agentID, "error", err)
	}
	return page, false
}

// storedBuilds are the products of builds, by their digests, that are in the
// store for somebody: a template means one, its row says that it is there and so
// is yet to be removed, or a host would put it there again.
func (l *Loops) storedBuilds() map[string]bool {
	view := l.cfg.Store.View()
	wanted, current := map[string]bool{}, map[string]bool{}
	for _, t := range raftstore.All(view, record.Templates) {
		current[t.BuildID] = true
	}
	for _, b := range raftstore.All(view, record.Builds) {
		for _, p := range b.Products {
			if p.Stored || current[b.ID] {
				wanted[p.Digest] = true
			}
		}
	}
	for _, s := range l.cfg.Hosts.Sessions() {
		for _, t := range s.Heartbeat.Templates {
			wanted[t.BuildID] = true
		}
	}
	return wanted
}

// removeAllStored deletes what a pass found, however much it is: passes are far
// apart. It takes a while, so each is looked at again before it goes.
func (l *Loops) removeAllStored(ctx context.Context, ids []string) {
	var all errgroup.Group
	all.SetLimit(storedAtOnce)
	for _, id := range ids {
		all.Go(func() error {
			if ctx.Err() == nil && kept(l.cfg.Store.View()) == 0 && len(l.unwanted([]string{id})) > 0 {
				l.removeStored(ctx, id)
			}
			return nil
		})
	}
	_ = all.Wait() // what fails is logged
}

func (l *Loops) removeStored(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	if err := l.cfg.Hosts.DeleteStored(ctx, id); err != nil {
		l.cfg.Logger.WarnContext(ctx, "stored copy without a row could not be deleted", "id", id, "error", err)
		return
	}
	l.cfg.Logger.InfoContext(ctx, "stored copy without a row deleted", "id", id)
}

// storedEvery is how often the snapshot store is looked through.
func (l *Loops) storedEvery() time.Duration { return max(l.cfg.Every, l.cfg.KeptGrace/storedLooks) }
