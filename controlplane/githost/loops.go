package githost

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	loopEvents   = "git events"
	loopReports  = "commit statuses"
	loopComments = "preview comments"
	loopPrune    = "old git events"
	loopMissed   = "pull requests of previews"

	// atOnce bounds the work of one kind that is under way.
	atOnce = 16
	// closedKept is how long the end of a pull request is remembered: for as long, an
	// older event of it has no effect.
	closedKept = 30 * 24 * time.Hour
)

// keeper acts on events, and tells git hosts of deployments, in one term.
type keeper struct {
	*loops.Term
	g *GitHosts

	reported bool                 // a pass has looked at all deployments, and no old one was due; of the loop that reports
	asked    map[string]time.Time // when the pull request of each preview was asked for, or first seen; of the loop that asks
}

// Loops act on events, report to git hosts, and forget what is old.
func (g *GitHosts) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{Term: t, g: g}
	changed := func(table string) func() <-chan struct{} {
		return func() <-chan struct{} { return k.Store.View().Changed(table) }
	}
	all := []loops.Loop{
		{Name: loopEvents, Pass: k.act, Wake: changed(record.GitHeads.Name)},
		{Name: loopPrune, Pass: k.prune, Every: loops.ExpiryEvery},
		loops.Expiry(t, record.GitReceipts, func(now time.Time, r *record.GitReceipt) bool { return !now.Before(r.ExpiresAt) }),
	}
	if g.github != nil {
		all = append(all,
			loops.Loop{Name: loopReports, Pass: k.report, Wake: changed(record.Deployments.Name)},
			loops.Loop{Name: loopComments, Pass: k.comment, Wake: changed(record.Deployments.Name)},
			loops.Loop{Name: loopMissed, Pass: k.missed, Every: loops.ExpiryEvery})
	}
	return all
}

// act begins the work for each event that waits for it.
func (k *keeper) act(ctx context.Context) {
	now := k.Clock()
	for _, h := range raftstore.Find(k.Store.View(), record.GitHeads, "pending", "yes") {
		if !h.NextAttemptAt.After(now) {
			k.Begin(loops.Job{What: loopEvents, ID: h.ID}, atOnce, func() { k.actOn(ctx, h) })
		}
	}
}

func (k *keeper) actOn(ctx context.Context, h *record.GitHead) {
	err := k.g.deliver(ctx, k.Store.View(), h)
	if ctx.Err() != nil {
		return // whoever leads next does it
	}
	k.Update(ctx, loopEvents, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.GitHeads, h.ID)
		if !ok || row.ModifyIndex != h.ModifyIndex {
			return nil // a newer event has taken its place
		}
		row = row.Clone()
		row.AcceptedIndex = acceptedIndex(row)
		switch {
		case errors.Is(err, errHeld):
			row.NextAttemptAt = k.Clock().Add(heldPause)
		case err == nil, final(err), row.Tries >= len(k.g.cfg.Delays):
			row.Pending, row.Tries, row.NextAttemptAt = false, 0, time.Time{}
		default:
			row.NextAttemptAt = k.Clock().Add(max(k.g.cfg.Delays[row.Tries], apierror.As(err).RetryAfter))
			row.Tries++
		}
		raftstore.Put(tx, record.GitHeads, row)
		return nil
	})
	switch {
	case errors.Is(err, errHeld) && h.AcceptedIndex != 0: // said before
	case err != nil:
		k.Logger.WarnContext(ctx, "event of a git host could not be acted on", "repository", h.Repo, "tries", h.Tries+1, "error", err)
	}
}

// errHeld is of an event that waits until a workspace may deploy again: it was suspended,
// or has not paid. Its owner would otherwise have to push once more, and to know that.
var errHeld = errors.New("its workspace may not deploy for now")

// heldPause is between two looks whether it may.
const heldPause = 5 * time.Minute

// held reports whether an error ends when its workspace is let go on.
func held(err error) bool {
	return errors.Is(err, core.ErrSuspended) || apierror.CodeOf(err) == apierror.EQuota
}

// final reports whether an error is one that another try does not cure.
func final(err error) bool {
	switch apierror.CodeOf(err) {
	case apierror.EInvalid, apierror.EForbidden, apierror.ENotFound, apierror.EUnprocessable, apierror.ETooLarge, apierror.ENotImplemented, apierror.EConflict:
		return true
	}
	return false
}

// acceptedIndex is the index of the write that accepted what a row is of.
func acceptedIndex(h *record.GitHead) uint64 { return cmp.Or(h.AcceptedIndex, h.ModifyIndex) }

// deliver gives an event to the apps.
func (g *GitHosts) deliver(ctx context.Context, r raftstore.Reader, h *record.GitHead) error {
	repo := Repo{
		Provider: h.Provider, URL: h.Repo, ID: h.RepoID, FullName: h.FullName, DefaultBranch: h.DefaultBranch,
		InstallationID: h.InstallationID, Private: h.Private,
	}
	var workspaces []string
	if !scope(r, &repo, &workspaces) {
		return nil // disconnected meanwhile
	}
	if h.PullRequest != 0 {
		return g.apps.PullRequest(ctx, PullRequest{
			Repo: repo, Workspaces: workspaces, Number: h.PullRequest, Branch: h.Branch, Commit: h.Commit, Message: h.Message, Author: h.Author,
			Fork: h.Fork, Closed: h.Closed, At: h.At, AcceptedIndex: acceptedIndex(h),
		})
	}
	_, err := g.apps.Pushed(ctx, Push{
		Repo: repo, Workspaces: workspaces, Branch: h.Branch, Commit: h.Commit, Message: h.Message, Author: h.Author, At: h.At, AcceptedIndex: acceptedIndex(h),
	})
	return err
}

// prune forgets what nobody needs: of repositories without apps, of pull requests that
// are long closed, of deployments that are gone, and receipts that are too many.
func (k *keeper) prune(ctx context.Context) {
	view, now := k.Store.View(), k.Clock()
	remove(ctx, k, view, record.GitHeads, func(r raftstore.Reader, h *record.GitHead) bool {
		if h.Closed && now.Sub(h.UpdatedAt) > closedKept {
			return !h.Pending
		}
		return !h.Pending && len(raftstore.Find(r, record.Apps, "git_url", h.Repo)) == 0
	})
	k.endReports(ctx, view)
	remove(ctx, k, view, record.GitReports, func(r raftstore.Reader, row *record.GitReport) bool {
		_, there := raftstore.Get(r, record.Deployments, row.ID)
		return !there && !unended(row)
	})
	if receipts := raftstore.All(view, record.GitReceipts); len(receipts) > maxReceipts {
		slices.SortFunc(receipts, func(a, b *record.GitReceipt) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
		oldest := receipts[len(receipts)-maxReceipts-1].CreateIndex
		remove(ctx, k, view, record.GitReceipts, func(_ raftstore.Reader, r *record.GitReceipt) bool { return r.CreateIndex <= oldest })
	}
	if apps, ok := k.g.apps.(*recordedApps); ok {
		if err := apps.orphans(ctx); err != nil && ctx.Err() == nil {
			k.Logger.WarnContext(ctx, "previews without an app stay for now", "error", err)
		}
	}
}

// remove deletes the rows of a table that are old.
func remove[T record.Row](ctx context.Context, k *keeper, view *raftstore.Snapshot, table record.Table[T], old func(r raftstore.Reader, row T) bool) {
	var ids []string
	for _, row := range raftstore.All(view, table) {
		if old(view, row) {
			ids = append(ids, row.RowMeta().ID)
		}
	}
	loops.InParts(ctx, k.Term, loopPrune, ids, func(tx *raftstore.Tx, part []string) error {
		for _, id := range part {
			if row, ok := raftstore.Get(tx, table, id); ok && old(tx, row) {
				raftstore.Delete(tx, table, id)
			}
		}
		return nil
	}, nil)
}
