package org

import (
	"context"
	"crypto/sha256"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// An API key is brt_<prefix>_<secret>. The prefix identifies its row and is shown in
// lists. The secret has 160 random bits. Only a digest of the whole key is stored.
const (
	apiKeyPrefix  = 8
	apiKeySecret  = 32
	apiKeyBegin   = "brt_"
	apiKeyLength  = len(apiKeyBegin) + apiKeyPrefix + 1 + apiKeySecret
	maxTokenName  = 100
	tokenAttempts = 3 // the chance that a prefix is taken is one in 2^40 for each key
)

func newAPIKey() (key, prefix string) {
	prefix = core.RandomText(apiKeyPrefix)
	return apiKeyBegin + prefix + "_" + core.RandomText(apiKeySecret), prefix
}

// APIKeyPrefix returns the prefix of key, and whether key has the form of an API
// key.
func APIKeyPrefix(key string) (prefix string, ok bool) {
	rest, ok := strings.CutPrefix(key, apiKeyBegin)
	if !ok || len(key) != apiKeyLength || rest[apiKeyPrefix] != '_' {
		return "", false
	}
	return rest[:apiKeyPrefix], true
}

// usedEvery is how often the time of a key's last use is written.
const usedEvery = time.Hour

// usePatience limits how long a request is held up by that, once an hour.
const usePatience = time.Second

// Used records that a key is used. Only the leader can, and only the first of many
// requests does. That it fails is no reason to refuse the request.
func (s *Orgs) Used(ctx context.Context, k *record.APIKey) {
	now := s.core.Clock()
	if now.Sub(k.LastUsedAt) < usedEvery || !s.core.Store.IsLeader() {
		return
	}
	if _, busy := s.marking.LoadOrStore(k.ID, nil); busy {
		return
	}
	defer s.marking.Delete(k.ID)
	ctx, cancel := context.WithTimeout(ctx, usePatience)
	defer cancel()
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.APIKeys, k.ID)
		if !ok || now.Sub(row.LastUsedAt) < usedEvery {
			return nil
		}
		c := row.Clone()
		c.LastUsedAt = now.UTC()
		raftstore.Put(tx, record.APIKeys, c)
		if row.LastUsedAt.IsZero() {
			s.core.PutShare(ctx, tx, row, record.AuditEntry{
				Chain: row.WorkspaceID, ActorType: core.ActorKey, ActorID: row.ID, Action: "firstUseOfToken", Resource: "tokens/" + row.Prefix, Outcome: core.OutcomeOK,
			})
		}
		return nil
	})
	if err != nil {
		s.core.Logger.DebugContext(ctx, "the use of a key was not recorded", "key_id", k.ID, "error", err)
	}
}

// APIKeyDigest returns the digest of a key that the store contains.
func APIKeyDigest(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}
