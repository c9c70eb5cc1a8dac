package authn

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
)

// ErrPreviewToken is returned for a token that opens nothing: forged, of another
// sandbox or port, or past its time.
var ErrPreviewToken = errors.New("preview token is not valid")

// PreviewTokens are what shows a private sandbox's ports. A token carries all
// that is to be checked and is sealed with the cluster's keys, so that any
// replica can check it by itself and nothing of it is stored. It is bound to
// one sandbox and ends with its time, or when the keys are rotated out.
type PreviewTokens struct {
	Sealer core.Sealer
	Clock  func() time.Time
}

// previewClaims is what is sealed.
type previewClaims struct {
	Port    int   `json:"p,omitempty"` // 0: every port
	Expires int64 `json:"e"`           // Unix seconds
}

func previewContext(sandboxID string) []byte { return []byte("preview/" + sandboxID) }

// Issue makes a token for one port of a sandbox, or for every port (0).
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

// maxPreviewToken is longer than any token, in characters.
const maxPreviewToken = 1024

// Check returns when the token ends, or ErrPreviewToken.
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
