package core

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// maxAnswer bounds the answer that an idempotency key keeps, compressed and sealed, and
// maxAnswerBeside the one that is kept in the transaction of its create. A transaction has
// 512 KiB at most, this is a third more as the base64 of a row, and an app with its
// variables takes up to 350 KiB.
const (
	maxAnswer       = 256 << 10
	maxAnswerBeside = 64 << 10
)

// Marshal returns the body of an answer: v as JSON with a final newline. All answers are
// made by it, so that what a key keeps is what was sent.
func Marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	// Programs' output is easier to read without escapes, and no answer is HTML.
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // one of our own types cannot be encoded: a bug, answered with 500
	}
	return b.Bytes()
}

// compressors are kept because a new one takes half a megabyte.
var compressors = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(io.Discard, flate.BestSpeed) // fails only for an invalid level
	return w
}}

// seal returns an answer as its key keeps it, or nil if it is too large. It is sealed
// because it may contain a secret that is shown once.
func (c *Core) seal(keyID string, body []byte) ([]byte, error) {
	var packed bytes.Buffer
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&packed)
	_, _ = w.Write(body) // a bytes.Buffer takes everything
	_ = w.Close()
	sealed, err := c.Sealer.Seal(packed.Bytes(), []byte(answerContext(keyID)))
	if err != nil {
		return nil, fmt.Errorf("seal an answer: %w", err)
	}
	if len(sealed) > maxAnswer {
		return nil, nil
	}
	return sealed, nil
}

func (c *Core) open(key *record.IdempotencyKey) ([]byte, error) {
	packed, err := c.Sealer.Open(key.Answer, []byte(answerContext(key.ID)))
	if err != nil {
		return nil, fmt.Errorf("open an answer: %w", err)
	}
	body, err := io.ReadAll(flate.NewReader(bytes.NewReader(packed)))
	if err != nil {
		return nil, fmt.Errorf("unpack an answer: %w", err)
	}
	return body, nil
}

func answerContext(keyID string) string { return "idempotency-key/" + keyID }

// KeepAnswer keeps the first answer to a create that has claimed its key before, in the
// transaction after which there is one. A second one changes nothing. It returns the key's
// row, nil if there is none: without a key it does nothing.
func (c *Core) KeepAnswer(tx *raftstore.Tx, keyID string, answer any) (*record.IdempotencyKey, error) {
	if keyID == "" {
		return nil, nil
	}
	key, ok := raftstore.Get(tx, record.IdempotencyKeys, keyID)
	if !ok || len(key.Answer) > 0 {
		return key, nil
	}
	sealed, err := c.seal(keyID, Marshal(answer))
	if err != nil || sealed == nil {
		return nil, err
	}
	key = key.Clone()
	key.Answer = sealed
	raftstore.Put(tx, record.IdempotencyKeys, key)
	return key, nil
}
