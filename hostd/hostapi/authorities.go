package hostapi

import (
	"context"
	"crypto/tls"
	"encoding/hex"
)

// PathAuthorities tells a replica what a host or a router knows of the cluster's certificate
// authorities, and asks which count: POST AuthoritiesKnown → Authorities. Every replica
// answers.
const PathAuthorities = "/internal/v1/authorities"

// AuthoritiesKnown is what a member says of itself. An authority is named by the first 16 hex
// digits of the SHA-256 of its certificate. Both would hold after a restart of the member.
type AuthoritiesKnown struct {
	Trusts []string `json:"trusts"`
	Issuer string   `json:"issuer"` // of its own certificate; empty: none that it trusts
}

// Authorities are those whose certificates count.
type Authorities struct {
	Bundle string `json:"bundle"` // PEM
	Signs  string `json:"signs"`  // the one that signs new certificates
}

// AskAuthorities asks one replica after the other, by their peer ports, until one answers.
func AskAuthorities(ctx context.Context, peers []string, config *tls.Config, known AuthoritiesKnown) (Authorities, error) {
	return askAny[Authorities](ctx, "no replica said which authorities count", peers, config, PathAuthorities, known)
}

// JoinServerName is the server name by which a host that joins asks a replica for a
// certificate of the authority that its token names: while the cluster's authority is
// exchanged, a replica's usual one may be of another. caDigest is a SHA-256.
func JoinServerName(caDigest []byte) string {
	return hex.EncodeToString(caDigest[:min(len(caDigest), 8)]) + JoinServerSuffix
}

// JoinServerSuffix ends such a name; an authority's name is before it.
const JoinServerSuffix = ".authority.berth"
