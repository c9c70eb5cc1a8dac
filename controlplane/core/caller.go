package core

import (
	"cmp"
	"crypto/rand"
	"encoding/base32"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Caller is the authenticated sender of a request. Everybody except an operator has
// a workspace.
type Caller struct {
	WorkspaceID string
	UserID      string      // of a JWT, empty for an API key
	KeyID       string      // record id of the API key, empty for a JWT
	Role        record.Role // of the person, or of who made the key; empty: a key of the workspace's own
	Scopes      []string    // of the key; empty: it has none, which is all
	Admin       bool        // operator token or operator client certificate
	ViaJWT      bool
	RequestID   string // X-Request-Id of this request, passed on to hosts
}

// RequireWorkspace refuses a caller without a workspace.
func (c Caller) RequireWorkspace() error {
	switch {
	case c.WorkspaceID != "":
		return nil
	case c.ViaJWT: // a person who has left the last organization
		return errNoOrg
	}
	return apierror.Unauthorized(apierror.DetailInvalidToken)
}

var errNoOrg = forbidden("you are a member of no organization: create one, or accept an invitation")

// RequireJWT refuses a caller without a JWT.
func (c Caller) RequireJWT() error {
	if !c.ViaJWT {
		return apierror.Unauthorized(apierror.DetailJWTRequired)
	}
	return nil
}

// RequireAdmin refuses a caller who is not an operator.
func (c Caller) RequireAdmin() error {
	if !c.Admin {
		return apierror.Unauthorized(apierror.DetailInvalidToken)
	}
	return nil
}

// The operator sets the maximum length of a client's X-Request-Id: DefaultRequestID is the
// specification's. Replicas reuse each other's ids, which have at least LeastRequestID
// characters, and hosts know no longer ones than hostapi.MaxRequestID.
const (
	DefaultRequestID = 64
	LeastRequestID   = 24
)

// RequestID returns the client's X-Request-Id if it is valid, otherwise a new one. A
// valid one has 1 to most visible ASCII characters, so that it cannot forge a log line
// or a header; 0: DefaultRequestID.
func RequestID(client string, most int) string {
	ok := len(client) > 0 && len(client) <= cmp.Or(most, DefaultRequestID)
	for i := 0; ok && i < len(client); i++ {
		ok = client[i] > ' ' && client[i] < 0x7f
	}
	if ok {
		return client
	}
	return "req_" + RandomText(20)
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// RandomText returns n characters of lower-case base32, 5 random bits each.
func RandomText(n int) string {
	raw := make([]byte, (n*5+7)/8)
	rand.Read(raw) // never fails: crypto/rand ends the process instead
	return LowerBase32(raw)[:n]
}

// LowerBase32 encodes in lower-case base32, without padding.
func LowerBase32(raw []byte) string { return lowerBase32.EncodeToString(raw) }
