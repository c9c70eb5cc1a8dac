package template

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// buildsKept is how many old builds of a template are kept, and buildAge for how
	// long. The current build is kept in addition.
	buildsKept = 20
	buildAge   = 30 * 24 * time.Hour
)

// Drop removes a template. The rows of its builds are hidden at once, and removed
// when the snapshot store has none of their products.
func Drop(tx *raftstore.Tx, t *record.Template) {
	for _, b := range raftstore.Find(tx, record.Builds, "template", t.WorkspaceID+"/"+t.Name) {
		b = b.Clone()
		b.Dropped, b.SpecSealed = true, nil
		if b.FinishedAt.IsZero() {
			b.FinishedAt = tx.Now()
		}
		raftstore.Put(tx, record.Builds, b)
	}
	raftstore.Delete(tx, record.Templates, t.ID)
}

// prune removes old builds.
func (k *keeper) prune(ctx context.Context) {
	view := k.Store.View()
	current, inUse := map[string]bool{}, map[string]bool{}
	for _, t := range raftstore.All(view, record.Templates) {
		current[t.BuildID] = true
		if b, ok := raftstore.Get(view, record.Builds, t.BuildID); ok {
			for _, digest := range b.Digests() {
				inUse[digest] = true
			}
		}
	}
	held := map[string]bool{}
	for _, hb := range kinds(k.Hosts.Sessions()) {
		for _, t := range hb.Templates {
			held[t.BuildID] = true
		}
	}
	over := map[string][]*record.Build{}
	for _, b := range raftstore.All(view, record.Builds) {
		if !b.FinishedAt.IsZero() && !current[b.ID] {
			of := b.WorkspaceID + "/" + b.Template
			over[of] = append(over[of], b)
		}
	}
	now := k.Clock()
	for _, builds := range over {
		slices.SortFunc(builds, func(a, b *record.Build) int { return b.FinishedAt.Compare(a.FinishedAt) })
		kept := 0
		for _, b := range builds {
			if ctx.Err() != nil {
				return
			}
			remove := b.Dropped || kept >= buildsKept || now.Sub(b.FinishedAt) > buildAge
			if !remove {
				kept++
			}
			k.retire(ctx, b, inUse, held, remove)
		}
	}
}

// retire removes what is not needed any more of a build that is not current, or the
// whole build. inUse are the products of current builds, held those that hosts still
// have under a template's name.
func (k *keeper) retire(ctx context.Context, b *record.Build, inUse, held map[string]bool, remove bool) {
	for i, p := range b.Products {
		switch {
		case !p.Stored, inUse[p.Digest]: // another build has the same product
			continue
		case held[p.Digest]:
			remove = false // its host would store it again
			continue
		case !k.unstore(ctx, p.Digest):
			return // the next pass tries again
		}
		k.write(ctx, "product of a build that is over", true, func(tx *raftstore.Tx) error {
			if row, ok := raftstore.Get(tx, record.Builds, b.ID); ok && i < len(row.Products) {
				row = row.Clone()
				row.Products[i].Stored = false
				raftstore.Put(tx, record.Builds, row)
			}
			return nil
		})
	}
	k.write(ctx, "build that is over", remove || len(b.SpecSealed) > 0, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.Builds, b.ID)
		switch {
		case !ok:
		case remove:
			raftstore.Delete(tx, record.Builds, row.ID)
		default:
			row = row.Clone()
			row.SpecSealed = nil
			raftstore.Put(tx, record.Builds, row)
		}
		return nil
	})
}

// unstore removes a product from the snapshot store.
func (k *keeper) unstore(ctx context.Context, digest string) bool {
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	return k.Hosts.DeleteStored(ctx, hostapi.StoredBuild(digest)) == nil
}
