package webhook

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
)

// Limits, for tests.
const (
	MaxEnded   = maxEnded
	MaxWaiting = maxWaiting
	EndedKept  = endedKept
	MaxData    = maxData
)

// Due returns the endpoints that get a turn, in order. served tells when each had its last
// turn.
func (s *Webhooks) Due(t *loops.Term, served map[string]time.Time) []string {
	k := s.keeper(t)
	k.served = served
	return k.due()
}

// Prune runs one pass of the loop that removes old deliveries.
func (s *Webhooks) Prune(ctx context.Context, t *loops.Term) { s.keeper(t).prune(ctx) }
