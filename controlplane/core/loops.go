package core

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Loops remove what all things leave behind: idempotency keys and outcomes of
// flows that are of no more use.
func (c *Core) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{
		loops.Expiry(t, record.IdempotencyKeys, func(now time.Time, k *record.IdempotencyKey) bool { return !now.Before(k.ExpiresAt) }),
		loops.Expiry(t, record.Outcomes, func(now time.Time, o *record.Outcome) bool { return now.Sub(o.CreatedAt) >= flow.OutcomeKept }),
	}
}
