package org

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore/record"
)

// expiredKeyShown is how long lists show an API key that has expired.
const expiredKeyShown = 30 * 24 * time.Hour

// Loops remove API keys that expired long ago.
func (s *Orgs) Loops(t *loops.Term) []loops.Loop {
	return []loops.Loop{loops.Expiry(t, record.APIKeys, func(now time.Time, k *record.APIKey) bool {
		return !k.ExpiresAt.IsZero() && now.Sub(k.ExpiresAt) >= expiredKeyShown
	})}
}
