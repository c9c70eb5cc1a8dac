package hosts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Joiner exchanges one-time tokens for host certificates, on the leader.
type Joiner struct {
	Store *raftstore.Store
	CA    *pki.CA
	Clock func() time.Time
	Audit func(tx *raftstore.Tx, hostID string) // writes that a host has joined; nil: nothing does
}

// Errors of Join.
var (
	ErrJoinToken  = errors.New("join token is unknown, used or expired")
	ErrAgentTaken = errors.New("an agent of this id has joined already; remove it first")
	errBadJoin    = errors.New("bad join request")
)

// JoinTokenID returns the id of a token's row.
func JoinTokenID(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Join signs the host's certificate and uses up the token. It refuses an id that is
// in use, because a token must not be enough to take over a host.
func (j *Joiner) Join(ctx context.Context, in hostapi.Join) (hostapi.Joined, error) {
	if err := pki.ValidName(in.HostID); err != nil {
		return hostapi.Joined{}, fmt.Errorf("%w: agent_id: %w", errBadJoin, err)
	}
	// Guessing a token must cost no more than a lookup.
	if !joinable(j.Store.View(), in.Token, j.Clock()) {
		return hostapi.Joined{}, fmt.Errorf("join of %s: %w", in.HostID, ErrJoinToken)
	}
	cert, err := j.CA.SignCSR([]byte(in.CSR), pki.Identity{Role: pki.RoleHost, Name: in.HostID}, j.Clock())
	if err != nil {
		return hostapi.Joined{}, fmt.Errorf("%w: %w", errBadJoin, err)
	}
	err = j.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if !joinable(tx, in.Token, tx.Now()) {
			return ErrJoinToken
		}
		token, _ := raftstore.Get(tx, record.JoinTokens, JoinTokenID(in.Token))
		if _, taken := raftstore.Get(tx, record.Hosts, in.HostID); taken {
			return ErrAgentTaken
		}
		used := *token
		used.UsedBy, used.UsedAt = in.HostID, tx.Now()
		raftstore.Put(tx, record.JoinTokens, &used)
		// It is lost until its first heartbeat, which contains the address.
		raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: in.HostID}, State: record.HostLost})
		if j.Audit != nil {
			j.Audit(tx, in.HostID)
		}
		return nil
	})
	if err != nil {
		return hostapi.Joined{}, fmt.Errorf("join of %s: %w", in.HostID, err)
	}
	out := hostapi.Joined{Certificate: string(cert), CA: string(j.CA.CertPEM())}
	for _, p := range j.Store.Status().Peers {
		out.Peers = append(out.Peers, p.Address)
	}
	return out, nil
}

// joinable reports whether a token is valid and unused.
func joinable(r raftstore.Reader, token string, now time.Time) bool {
	row, ok := raftstore.Get(r, record.JoinTokens, JoinTokenID(token))
	return ok && row.UsedBy == "" && now.Before(row.ExpiresAt)
}

// maxJoin limits the body of an unauthenticated request, in bytes.
const maxJoin = 64 << 10

// ServeHTTP handles hostapi.PathJoin.
func (j *Joiner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		answerError(w, http.StatusMethodNotAllowed, hostapi.CodeInvalid, "POST only")
		return
	}
	var in hostapi.Join
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJoin)).Decode(&in); err != nil {
		answerError(w, http.StatusBadRequest, hostapi.CodeInvalid, "join request is not valid JSON")
		return
	}
	out, err := j.Join(r.Context(), in)
	switch {
	case err == nil:
		answer(w, http.StatusOK, out)
	case errors.Is(err, errBadJoin):
		answerError(w, http.StatusBadRequest, hostapi.CodeInvalid, err.Error())
	case errors.Is(err, ErrJoinToken):
		answerError(w, http.StatusUnauthorized, hostapi.CodeUnauthorized, ErrJoinToken.Error())
	case errors.Is(err, ErrAgentTaken):
		answerError(w, http.StatusConflict, hostapi.CodeIllegalState, ErrAgentTaken.Error())
	default: // there is no leader, or the outcome is unknown and the token may be used up
		w.Header().Set("Retry-After", "1")
		answerError(w, http.StatusServiceUnavailable, hostapi.CodeInternal, "no leader answered; try again, with another token if this one is refused")
	}
}
