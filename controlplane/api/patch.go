package api

import "encoding/json"

// Patch is a field of a PATCH that may be absent, null or a value. Its zero
// value is absent.
type Patch[T any] struct {
	Set   bool // it was in the body
	Value *T   // nil: null
}

// SetTo is a Patch that sets v.
func SetTo[T any](v T) Patch[T] { return Patch[T]{Set: true, Value: &v} }

// SetNull is a Patch that sets null.
func SetNull[T any]() Patch[T] { return Patch[T]{Set: true} }

// IsZero reports whether the field was absent.
func (p Patch[T]) IsZero() bool { return !p.Set }

// MarshalJSON implements json.Marshaler.
func (p Patch[T]) MarshalJSON() ([]byte, error) { return encode(p.Value) }

// UnmarshalJSON implements json.Unmarshaler.
func (p *Patch[T]) UnmarshalJSON(b []byte) error {
	p.Set, p.Value = true, nil
	return json.Unmarshal(b, &p.Value)
}
