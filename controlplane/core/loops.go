package core

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const loopKeys = "expired idempotency keys"

// Loops remove old idempotency keys, the oldest answers of workspaces whose answers take too
// much, and outcomes of flows.
func (c *Core) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{
		{Name: loopKeys, Every: loops.ExpiryEvery, Pass: func(ctx context.Context) {
			view := t.Store.View()
			ids := expiredKeys(raftstore.All(view, record.IdempotencyKeys), t.Clock(), idempotencyMost, func(owner string) bool {
				_, workspace := raftstore.Get(view, record.Workspaces, owner)
				_, person := raftstore.Get(view, record.Users, owner)
				return workspace || person
			})
			loops.InParts(ctx, t, loopKeys, ids, func(tx *raftstore.Tx, part []string) error {
				for _, id := range part {
					// The key may have been claimed again meanwhile: its row is young then.
					if k, ok := raftstore.Get(tx, record.IdempotencyKeys, id); ok && mayExpire(k, tx.Now()) {
						raftstore.Delete(tx, record.IdempotencyKeys, id)
					}
				}
				return nil
			}, nil)
			heavy := heavyAnswers(raftstore.All(t.Store.View(), record.IdempotencyKeys), answersMost)
			loops.InParts(ctx, t, loopKeys, heavy, func(tx *raftstore.Tx, part []string) error {
				for _, id := range part {
					if k, ok := raftstore.Get(tx, record.IdempotencyKeys, id); ok {
						k = k.Clone()
						k.Answer = nil
						raftstore.Put(tx, record.IdempotencyKeys, k)
					}
				}
				return nil
			}, nil)
		}},
		loops.Expiry(t, record.Outcomes, func(now time.Time, o *record.Outcome) bool { return now.Sub(o.CreatedAt) >= flow.OutcomeKept }),
	}
}

func mayExpire(k *record.IdempotencyKey, now time.Time) bool {
	return !now.Before(k.ExpiresAt) || now.Sub(keyedAt(k)) >= idempotencyLeast
}

// keyedAt is when a key was claimed, perhaps again, by what it says itself: the row may be
// written later, with the create's result.
func keyedAt(k *record.IdempotencyKey) time.Time { return k.ExpiresAt.Add(-idempotencyKept) }

// expiredKeys returns the ids of keys that are to go: those that are over, the oldest of
// workspaces that have more than most, and those of workspaces that are not there any more,
// of which a person may have made and deleted any number.
func expiredKeys(rows []*record.IdempotencyKey, now time.Time, most int, there func(owner string) bool) (ids []string) {
	kept, allowed := map[string]int{}, map[string]int{} // by workspace
	for _, k := range rows {
		if !now.Before(k.ExpiresAt) {
			ids = append(ids, k.ID)
		} else if k.WorkspaceID != "" {
			kept[k.WorkspaceID]++
		}
	}
	for owner := range kept {
		if there(owner) {
			allowed[owner] = most
		}
	}
	may := map[string][]*record.IdempotencyKey{}
	for _, k := range rows {
		if kept[k.WorkspaceID] > allowed[k.WorkspaceID] && now.Before(k.ExpiresAt) && mayExpire(k, now) {
			may[k.WorkspaceID] = append(may[k.WorkspaceID], k)
		}
	}
	for owner, keys := range may {
		slices.SortFunc(keys, func(a, b *record.IdempotencyKey) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
		for _, k := range keys[:min(kept[owner]-allowed[owner], len(keys))] {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// heavyAnswers returns the ids of keys whose answers are to go: the oldest of workspaces
// whose answers take more than most bytes. A create whose answer is gone is still known, and
// answers what there is.
func heavyAnswers(rows []*record.IdempotencyKey, most int) (ids []string) {
	size, answered := map[string]int{}, map[string][]*record.IdempotencyKey{} // by workspace
	for _, k := range rows {
		if k.WorkspaceID == "" || len(k.Answer) == 0 {
			continue
		}
		size[k.WorkspaceID] += len(k.Answer)
		answered[k.WorkspaceID] = append(answered[k.WorkspaceID], k)
	}
	for owner, keys := range answered {
		if size[owner] <= most {
			continue
		}
		slices.SortFunc(keys, func(a, b *record.IdempotencyKey) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
		for _, k := range keys {
			if size[owner] <= most {
				break
			}
			size[owner] -= len(k.Answer)
			ids = append(ids, k.ID)
		}
	}
	return ids
}
