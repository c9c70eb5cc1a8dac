package core

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A key is valid for idempotencyKept. Of a workspace with more than idempotencyMost keys
// the oldest go earlier, and of one that is gone all, but none before idempotencyLeast: kept
// for a day, those of 500 creates a second would be 43 million, and take tens of gigabytes
// on every replica.
const (
	idempotencyKept  = 24 * time.Hour
	idempotencyLeast = time.Hour
	idempotencyMost  = 10_000
)

// Idempotency makes a create repeatable. It contains the value of the header
// Idempotency-Key, empty without one, the digest of the request's body, and the
// workspace among whose keys it counts, or the person who has none.
type Idempotency struct {
	Key        string
	BodySHA256 []byte
	Owner      string
}

// errKeyTaken aborts a create whose key another one has claimed meanwhile.
var errKeyTaken = errors.New("idempotency key is taken")

// Once runs a create. If a create with the same key has run, it returns that result;
// if one is running, it waits for it. create gets the id of the key's row (""
// without a key), which its transaction claims. Creates with the same key run one at
// a time, because even before its transaction a create may take a resource that
// exists only once, such as the last memory on a host.
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
			if leave, err = core.creates.take(ctx, keyID); err != nil {
				leave = func() {}
				return none, StoreError(err)
			}
			mine = true
			continue // another request may have had its turn since the view, and created it
		}
		out, err := create(keyID)
		if !errors.Is(err, errKeyTaken) {
			return out, err
		}
		// Another request with the same key was first: return its result.
	}
}

// Claim records in a create's transaction what the key creates. Without a key it
// does nothing.
func (i Idempotency) Claim(tx *raftstore.Tx, keyID, resourceID string) error {
	return i.ClaimWith(tx, keyID, resourceID, nil)
}

// ClaimWith also records the part of the answer that is not in the resource's row.
func (i Idempotency) ClaimWith(tx *raftstore.Tx, keyID, resourceID string, result json.RawMessage) error {
	if keyID == "" {
		return nil
	}
	if k, taken := raftstore.Get(tx, record.IdempotencyKeys, keyID); taken && tx.Now().Before(k.ExpiresAt) {
		return errKeyTaken
	}
	raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{
		Meta: record.Meta{ID: keyID}, BodySHA256: i.BodySHA256, ResourceID: resourceID, Result: result, WorkspaceID: i.Owner, ExpiresAt: tx.Now().Add(idempotencyKept),
	})
	return nil
}

// ClaimAnswer is Claim for a create that answers before what it creates is there. It keeps
// the answer, sealed, because the resource's row soon says something else.
func ClaimAnswer[T any](tx *raftstore.Tx, core *Core, i Idempotency, keyID, resourceID string, answer T) error {
	if keyID == "" {
		return nil
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return fmt.Errorf("encode an answer: %w", err)
	}
	result, err := core.SealAnswer(string(raw), answerContext(keyID))
	if err != nil {
		return err
	}
	return i.ClaimWith(tx, keyID, resourceID, result)
}

// Answered returns the answer that ClaimAnswer has kept. A key of an earlier version has
// none: then it is what the resource's row says now.
func Answered[T any](core *Core, key *record.IdempotencyKey, now func() (T, error)) (out T, err error) {
	if len(key.Result) == 0 {
		return now()
	}
	raw, err := core.OpenAnswer(key.Result, answerContext(key.ID))
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		return out, fmt.Errorf("decode an answer: %w", err)
	}
	return out, nil
}

func answerContext(keyID string) string { return "answer/" + keyID }

// SealAnswer seals a secret that only the answer to a create contains, as a result for
// ClaimWith. The context, such as "api-key/" and the row's id, binds it to its row.
func (c *Core) SealAnswer(secret, context string) (json.RawMessage, error) {
	sealed, err := c.Sealer.Seal([]byte(secret), []byte(context))
	if err != nil {
		return nil, fmt.Errorf("seal an answer: %w", err)
	}
	return json.Marshal(sealed)
}

// OpenAnswer returns the secret that SealAnswer sealed for the same context.
func (c *Core) OpenAnswer(result json.RawMessage, context string) (string, error) {
	var sealed []byte
	if err := json.Unmarshal(result, &sealed); err != nil {
		return "", fmt.Errorf("decode a sealed answer: %w", err)
	}
	secret, err := c.Sealer.Open(sealed, []byte(context))
	if err != nil {
		return "", fmt.Errorf("open a sealed answer: %w", err)
	}
	return string(secret), nil
}

// ErrKeyGone is the error for a key whose resource has been deleted.
func ErrKeyGone(what string) *apierror.Error {
	return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the " + what + " that this Idempotency-Key made has been deleted"}
}

func idempotencyID(workspace, route, key string) string {
	sum := sha256.Sum256([]byte(workspace + "\x00" + route + "\x00" + key))
	return hex.EncodeToString(sum[:])
}
