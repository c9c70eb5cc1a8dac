package githost

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// stateTime is how long a person has to install the app.
const stateTime = 15 * time.Minute

// state says who asked for an installation. It goes through the browser of a person, so
// it is sealed, and is taken once.
type state struct {
	Workspace string    `json:"w"`
	By        string    `json:"b"` // key, or user of a JWT
	Nonce     string    `json:"n"`
	Issued    time.Time `json:"i"`
	Expires   time.Time `json:"e"`
}

var stateContext = []byte("githost.state")

// newState returns the state of a caller who begins now.
func newState(sealer core.Sealer, c core.Caller, now time.Time) (string, error) {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	raw, err := json.Marshal(state{Workspace: c.WorkspaceID, By: cmp.Or(c.KeyID, c.UserID), Nonce: hex.EncodeToString(nonce), Issued: now.UTC(), Expires: now.Add(stateTime).UTC()})
	if err != nil {
		return "", fmt.Errorf("encode a state: %w", err)
	}
	sealed, err := sealer.Seal(raw, stateContext)
	if err != nil {
		return "", fmt.Errorf("seal a state: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}

const beginAgain = "begin again with GET /v1/github/connect"

// openState reads a state that comes back.
func openState(sealer core.Sealer, text string, now time.Time) (state, error) {
	var s state
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		raw, err = sealer.Open(raw, stateContext)
	}
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	switch {
	case err != nil || s.Workspace == "" || s.Nonce == "":
		return state{}, (&apierror.Error{Code: apierror.EForbidden, Message: "invalid state"}).With(beginAgain, err)
	case !now.Before(s.Expires):
		return state{}, (&apierror.Error{Code: apierror.EForbidden, Message: "state has expired"}).With(beginAgain, nil)
	}
	return s, nil
}
