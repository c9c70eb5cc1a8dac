package core

import (
	"crypto/rand"
	"encoding/base32"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

// Caller is who asks, as authn found out. An operator has no workspace; everybody
// else has one.
type Caller struct {
	WorkspaceID string
	UserID      string // of a JWT, empty for an API key
	KeyID       string // record id of the API key, empty for a JWT
	Admin       bool   // operator token or operator client certificate
	ViaJWT      bool
	RequestID   string // X-Request-Id of this request, passed on to hosts
}

// RequireWorkspace refuses a caller that has no workspace.
func (c Caller) RequireWorkspace() error {
	if c.WorkspaceID == "" {
		return apierror.Unauthorized(apierror.DetailInvalidToken)
	}
	return nil
}

// RequireJWT refuses a caller that came without a JWT.
func (c Caller) RequireJWT() error {
	if !c.ViaJWT {
		return apierror.Unauthorized(apierror.DetailJWTRequired)
	}
	return nil
}

// RequireAdmin refuses a caller that is no operator.
func (c Caller) RequireAdmin() error {
	if !c.Admin {
		return apierror.Unauthorized(apierror.DetailInvalidToken)
	}
	return nil
}

// MaxRequestID is the longest X-Request-Id of a client that is kept.
const MaxRequestID = 64

// RequestID returns the client's X-Request-Id when it can be reused (1 to 64
// visible ASCII characters, so that it cannot forge a log line or a header),
// else a new one.
func RequestID(client string) string {
	ok := len(client) > 0 && len(client) <= MaxRequestID
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
	rand.Read(raw) // never fails: crypto/rand ends the process first
	return LowerBase32(raw)[:n]
}

// LowerBase32 encodes in lower-case base32, without padding.
func LowerBase32(raw []byte) string { return lowerBase32.EncodeToString(raw) }
