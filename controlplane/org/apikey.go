package org

import (
	"crypto/sha256"
	"strings"

	"github.com/berth-cloud/berth/controlplane/core"
)

// An API key is brt_<prefix>_<secret>: the prefix finds its row and is shown in
// lists, the secret has 160 random bits, and of the whole only a digest is kept.
const (
	apiKeyPrefix  = 8
	apiKeySecret  = 32
	apiKeyBegin   = "brt_"
	apiKeyLength  = len(apiKeyBegin) + apiKeyPrefix + 1 + apiKeySecret
	maxTokenName  = 100
	tokenAttempts = 3 // a prefix that is taken is one in 2^40
)

func newAPIKey() (key, prefix string) {
	prefix = core.RandomText(apiKeyPrefix)
	return apiKeyBegin + prefix + "_" + core.RandomText(apiKeySecret), prefix
}

// APIKeyPrefix is the prefix in something that has the form of an API key.
func APIKeyPrefix(key string) (prefix string, ok bool) {
	rest, ok := strings.CutPrefix(key, apiKeyBegin)
	if !ok || len(key) != apiKeyLength || rest[apiKeyPrefix] != '_' {
		return "", false
	}
	return rest[:apiKeyPrefix], true
}

// APIKeyDigest is what the store keeps of a key.
func APIKeyDigest(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}
