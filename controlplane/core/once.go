package core

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// idempotencyKept is how long a key is remembered.
const idempotencyKept = 24 * time.Hour

// Idempotency is what makes a create repeatable: the Idempotency-Key header's
// value, empty without one, and the digest of the request body as it came.
type Idempotency struct {
	Key        string
	BodySHA256 []byte
}

// errKeyTaken aborts a create whose key another one has just claimed.
var errKeyTaken = errors.New("idempotency key is taken")

// Once runs a create, or answers with what an earlier one with the same key
// made, waiting for it when it is still under way. create gets the id of the
// key's row ("" without a key), which its transaction claims. Before it does, it may
// take what there is but once, such as the last room on a host, so of the requests
// with one key one at a time creates.
func Once[T any](ctx context.Context, core *Core, c Caller, route string, i Idempotency,
	replay func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (T, error), create func(keyID string) (T, error),
) (T, error) {
	var none T
	if i.Key == "" {
		return create("")
	}
	keyID := idempotencyID(c.WorkspaceID, route, i.Key)
	leave := func() {}
	defer func() { leave() }()
	for mine := false; ; {
		view, err := core.Current(ctx)
		if err != nil {
			return none, err
		}
		if key, ok := raftstore.Get(view, record.IdempotencyKeys, keyID); ok && core.Clock().Before(key.ExpiresAt) {
			if subtle.ConstantTimeCompare(key.BodySHA256, i.BodySHA256) != 1 {
				return none, &apierror.Error{Code: apierror.EConflict, Message: "idempotency key reused", Detail: "this Idempotency-Key was sent with another body"}
			}
			leave()
			return replay(ctx, view, key)
		}
		if !mine {
			own, waited, err := core.creates.take(ctx, keyID)
			if err != nil {
				return none, StoreError(err)
			}
			if leave, mine = own, true; waited {
				continue // whoever had it may have made it
			}
		}
		out, err := create(keyID)
		if !errors.Is(err, errKeyTaken) {
			return out, err
		}
		// Another request with the same key came first: its result is ours.
	}
}

// Claim notes in a create's transaction what its key makes. Without a key it
// does nothing.
func (i Idempotency) Claim(tx *raftstore.Tx, keyID, resourceID string) error {
	return i.ClaimWith(tx, keyID, resourceID, nil)
}

// ClaimWith notes also what the answer says beyond the resource's own row.
func (i Idempotency) ClaimWith(tx *raftstore.Tx, keyID, resourceID string, result json.RawMessage) error {
	if keyID == "" {
		return nil
	}
	if k, taken := raftstore.Get(tx, record.IdempotencyKeys, keyID); taken && tx.Now().Before(k.ExpiresAt) {
		return errKeyTaken
	}
	raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{
		Meta: record.Meta{ID: keyID}, BodySHA256: i.BodySHA256, ResourceID: resourceID, Result: result, ExpiresAt: tx.Now().Add(idempotencyKept),
	})
	return nil
}

// ErrKeyGone is for a key whose resource has been deleted since.
func ErrKeyGone(what string) *apierror.Error {
	return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the " + what + " that this Idempotency-Key made has been deleted"}
}

func idempotencyID(workspace, route, key string) string {
	sum := sha256.Sum256([]byte(workspace + "\x00" + route + "\x00" + key))
	return hex.EncodeToString(sum[:])
}
