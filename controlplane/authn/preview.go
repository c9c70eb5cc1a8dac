package authn

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
)

// ErrPreviewToken is returned for a token that is forged, expired, or for another
// sandbox or port.
var ErrPreviewToken = errors.New("preview token is not valid")

// PreviewTokens issues and checks tokens for private previews. A token contains all
// that is to be checked, sealed with the cluster's keys, so any replica can check it
// and none stores it. It is bound to one sandbox, and is valid until it expires or
// its sealing key is removed.
type PreviewTokens struct {
	Sealer core.Sealer
	Clock  func() time.Time
}

// previewClaims is the sealed content of a token.
type previewClaims struct {
	Port    int   `json:"p,omitempty"` // 0: every port
	Expires int64 `json:"e"`           // Unix seconds
}

func previewContext(sandboxID string) []byte { return []byte("preview/" + sandboxID) }

// Issue returns a token for one port of a sandbox, or for every port (0).
func (t PreviewTokens) Issue(sandboxID string, port int, expires time.Time) (string, error) {
	raw, err := json.Marshal(previewClaims{Port: port, Expires: expires.Unix()})
	if err != nil {
		return "", fmt.Errorf("encode preview token: %w", err)
	}
	sealed, err := t.Sealer.Seal(raw, previewContext(sandboxID))
	if err != nil {
		return "", fmt.Errorf("seal preview token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}

// maxPreviewToken is a length that no valid token reaches.
const maxPreviewToken = 1024

// Check returns when the token expires, or ErrPreviewToken.
func (t PreviewTokens) Check(sandboxID string, port int, token string) (expires time.Time, err error) {
	if len(token) > maxPreviewToken {
		return time.Time{}, ErrPreviewToken
	}
	sealed, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return time.Time{}, ErrPreviewToken
	}
	raw, err := t.Sealer.Open(sealed, previewContext(sandboxID))
	if err != nil {
		return time.Time{}, ErrPreviewToken
	}
	var c previewClaims
	if err := json.Unmarshal(raw, &c); err != nil {
		return time.Time{}, ErrPreviewToken
	}
	expires = time.Unix(c.Expires, 0)
	if !t.Clock().Before(expires) || (c.Port != 0 && c.Port != port) {
		return time.Time{}, ErrPreviewToken
	}
	return expires, nil
}
