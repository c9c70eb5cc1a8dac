package org

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore/record"
)

// expiredKeyShown is how long lists contain an expired API key.
const expiredKeyShown = 30 * 24 * time.Hour

// Loops remove API keys that expired long ago, and invitations that nobody accepted.
func (s *Orgs) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{loops.Expiry(t, record.Invitations, func(now time.Time, i *record.Invitation) bool {
		return !now.Before(i.ExpiresAt)
	}), loops.Expiry(t, record.APIKeys, func(now time.Time, k *record.APIKey) bool {
		return !k.ExpiresAt.IsZero() && now.Sub(k.ExpiresAt) >= expiredKeyShown
	})}
}
