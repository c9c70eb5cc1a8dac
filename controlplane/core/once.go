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
//
// If the answers of a workspace's keys take more than answersMost bytes, the oldest answers
// go. Their keys stay.
const (
	idempotencyKept  = 24 * time.Hour
	idempotencyLeast = time.Hour
	idempotencyMost  = 10_000
	answersMost      = 64 << 20
)

// Idempotency makes a create repeatable.
type Idempotency struct {
	Key        string // the value of the header Idempotency-Key, empty without one
	BodySHA256 []byte // the digest of the request's body
	Owner      string // the workspace whose key it is, or the person who has none; "" for operators
	By         string // who sends it, by Sender; "" only in tests: then nothing but its own route finds the key

	// Shown returns what the edge makes of the answer, such as complete URLs; nil: nothing.
	Shown func(answer any) any
	// Body receives the body of the first answer, unless it is nil. It stays empty if the key
	// does not keep it.
	Body *[]byte
}

// Sender returns who a caller is, for Idempotency.By: a person, an API key or an operator.
func Sender(c Caller) string {
	kind, id := actorOf(c)
	return kind + "/" + id
}

// errKeyTaken aborts a create whose key another one has claimed meanwhile.
var errKeyTaken = errors.New("idempotency key is taken")

// Once runs a create. If a create with the same key has run, it returns the answer to that
// one; if one is running, it waits for it. The same key with another body, sender or route
// is a conflict. A route has one status of success, so an answer is its body.
//
// create gets the id of the key's row ("" without a key), which its transaction claims:
// with ClaimAnswer if the transaction is the whole create, otherwise with Claim. Then there
// is no answer yet. The flow may keep one at its end (KeepAnswer); otherwise Once keeps
// what create has returned, before it is sent. If the replica dies in between, the key says
// what was created, and replay returns the answer from that. So no second one is created,
// and whoever repeats the request gets what everybody gets who repeats it again. replay also
// answers if the answer is not kept: it was too large, or the key is of an earlier version.
//
// Creates with the same key run one at a time, because even before its transaction a
// create may take a resource that exists only once, such as the last memory on a host.
// A create that fails leaves its key free.
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
		if key, ok := i.find(view, keyID, core.Clock()); ok {
			if err := i.reused(key, keyID); err != nil {
				return none, err
			}
			leave()
			if len(key.Answer) > 0 {
				return kept[T](core, i, key)
			}
			out, err := replay(ctx, view, key)
			if err != nil {
				return none, err
			}
			return keep(ctx, core, i, keyID, out)
		}
		if !mine {
			if leave, err = core.creates.lock(ctx, i.turn(keyID)); err != nil {
				leave = func() {}
				return none, StoreError(err)
			}
			mine = true
			continue // another request may have had its turn since the view, and created it
		}
		out, err := create(keyID)
		switch {
		case err == nil:
			return keep(ctx, core, i, keyID, out)
		case !errors.Is(err, errKeyTaken):
			return none, err
		}
		// Another request with the same key was first: return its result.
	}
}

// Claimed reports whether a create with this key has begun, for a use case that has to do
// something before Once.
func Claimed(ctx context.Context, core *Core, c Caller, route string, i Idempotency) (bool, error) {
	if i.Key == "" {
		return false, nil
	}
	view, err := core.Current(ctx)
	if err != nil {
		return false, err
	}
	_, ok := i.find(view, idempotencyID(c.WorkspaceID, route, i.Key), core.Clock())
	return ok, nil
}

// Known reports whether a create with this key has begun, on any route.
func Known(core *Core, i Idempotency) bool {
	if i.Key == "" {
		return false
	}
	_, ok := i.find(core.Store.View(), "", core.Clock())
	return ok
}

// find returns the valid row of a key: that of the same route, or else that of another one
// in the same workspace.
func (i Idempotency) find(view *raftstore.Snapshot, keyID string, now time.Time) (*record.IdempotencyKey, bool) {
	if k, ok := raftstore.Get(view, record.IdempotencyKeys, keyID); ok && now.Before(k.ExpiresAt) {
		return k, true
	}
	if i.By != "" {
		for _, k := range raftstore.Find(view, record.IdempotencyKeys, "key", i.digest()) {
			if now.Before(k.ExpiresAt) {
				return k, true
			}
		}
	}
	return nil, false
}

// reused refuses a key that was sent with another request.
func (i Idempotency) reused(k *record.IdempotencyKey, keyID string) error {
	e := apierror.Error{Code: apierror.EConflict, Message: "idempotency key reused"}
	switch {
	case i.By != "" && k.By != "" && i.By != k.By:
		e.Detail = "this Idempotency-Key was sent by another user or API key"
	case k.ID != keyID:
		e.Detail = "this Idempotency-Key was sent to another route"
	case subtle.ConstantTimeCompare(k.BodySHA256, i.BodySHA256) != 1:
		e.Detail = "this Idempotency-Key was sent with another body"
	default:
		return nil
	}
	return &e
}

// keep keeps the answer to a create, unless its transaction has, and returns what is kept.
func keep[T any](ctx context.Context, core *Core, i Idempotency, keyID string, out T) (T, error) {
	key, ok := raftstore.Get(core.Store.View(), record.IdempotencyKeys, keyID)
	if ok && len(key.Answer) == 0 {
		// Not Core.Update: this is no act of the caller, and has no entry in the audit log.
		err := core.Store.Update(ctx, func(tx *raftstore.Tx) (err error) {
			key, err = core.KeepAnswer(tx, keyID, i.shown(out))
			return err
		})
		if err != nil {
			var none T
			return none, lost(err)
		}
	}
	if key == nil || len(key.Answer) == 0 {
		return out, nil
	}
	return kept[T](core, i, key)
}

// kept returns the answer that a key keeps.
func kept[T any](core *Core, i Idempotency, key *record.IdempotencyKey) (out T, err error) {
	body, err := core.open(key)
	if err != nil {
		return out, apierror.As(err)
	}
	if i.Body != nil {
		*i.Body = body
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return out, apierror.As(fmt.Errorf("decode an answer: %w", err))
	}
	return out, nil
}

func (i Idempotency) shown(answer any) any {
	if i.Shown == nil {
		return answer
	}
	return i.Shown(answer)
}

// Claim records in a create's transaction what the key creates. Without a key it
// does nothing.
func (i Idempotency) Claim(tx *raftstore.Tx, keyID, resourceID string) error {
	return i.claim(tx, keyID, resourceID, nil)
}

// ClaimAnswer is Claim for a create that is complete with its transaction. It keeps the
// answer, too, unless that is large: then Once keeps it in a transaction of its own, because
// what is created may be as large.
func ClaimAnswer(tx *raftstore.Tx, core *Core, i Idempotency, keyID, resourceID string, answer any) error {
	if keyID == "" {
		return nil
	}
	sealed, err := core.seal(keyID, Marshal(i.shown(answer)))
	if err != nil {
		return err
	}
	if len(sealed) > maxAnswerBeside {
		sealed = nil
	}
	return i.claim(tx, keyID, resourceID, sealed)
}

func (i Idempotency) claim(tx *raftstore.Tx, keyID, resourceID string, answer []byte) error {
	if keyID == "" {
		return nil
	}
	if k, taken := raftstore.Get(tx, record.IdempotencyKeys, keyID); taken && tx.Now().Before(k.ExpiresAt) {
		return errKeyTaken
	}
	key := &record.IdempotencyKey{
		Meta: record.Meta{ID: keyID}, BodySHA256: i.BodySHA256, ResourceID: resourceID, Answer: answer, WorkspaceID: i.Owner, ExpiresAt: tx.Now().Add(idempotencyKept),
	}
	if i.By != "" {
		key.By, key.Key = i.By, i.digest()
	}
	raftstore.Put(tx, record.IdempotencyKeys, key)
	return nil
}

// digest is what the rows of a workspace's key have in common, whatever the route.
func (i Idempotency) digest() string { return idempotencyID(i.Owner, "", i.Key) }

// turn is the name under which creates run one at a time. It is the same for all routes, so
// that the view of whoever has it shows a create with the same key on any of them: the
// claim's transaction looks only for its own route's.
func (i Idempotency) turn(keyID string) string {
	if i.By == "" {
		return keyID
	}
	return i.digest()
}

// Answered returns the answer that a key of an earlier version keeps as its result. If it
// has none, the answer is what the resource's row says now.
func Answered[T any](core *Core, key *record.IdempotencyKey, now func() (T, error)) (out T, err error) {
	if len(key.Result) == 0 {
		return now()
	}
	raw, err := core.OpenAnswer(key.Result, "answer/"+key.ID)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal([]byte(raw), &out); err != nil {
		return out, fmt.Errorf("decode an answer: %w", err)
	}
	return out, nil
}

// OpenAnswer returns the secret that a key of an earlier version keeps as its result. The
// context, such as "api-key/" and the row's id, binds it to its row.
func (c *Core) OpenAnswer(result json.RawMessage, context string) (string, error) {
	if len(result) == 0 {
		return "", errNotKept
	}
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

// errNotKept is the error for a key whose answer is not kept, but had a secret that nothing
// else has.
var errNotKept = &apierror.Error{
	Code: apierror.EConflict, Message: "answer not kept", Detail: "only the first answer to this Idempotency-Key had the secret, and it is not kept any more: repeat the request with another key",
}

// ErrKeyGone is the error for a key whose answer is not kept, and whose resource has been
// deleted.
func ErrKeyGone(what string) *apierror.Error {
	return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the " + what + " that this Idempotency-Key made has been deleted"}
}

func idempotencyID(workspace, route, key string) string {
	sum := sha256.Sum256([]byte(workspace + "\x00" + route + "\x00" + key))
	return hex.EncodeToString(sum[:])
}
