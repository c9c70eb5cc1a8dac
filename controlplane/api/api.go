// Package api contains Berth's public interface as Go types: the body of every
// request and response, and a Client that sends and receives them.
//
// The names of fields contain the unit of sizes and durations. A field of a response
// that is a pointer is null in the JSON if it has no value, or absent if its tag has
// omitempty.
// Fields may be added at any time; none is renamed.
package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"time"
)

// Version is the version segment of every resource route.
const Version = "v1"

// Headers that the service reads or writes beyond HTTP's own.
const (
	HeaderRequestID      = "X-Request-Id"    // on every response; a request's own id is reused if it has at most MaxRequestIDLength characters, or as many as the operator allows
	HeaderIdempotencyKey = "Idempotency-Key" // on creates; kept 24 h per workspace
)

// QueryPreviewToken is the query parameter that carries the token in the link to a
// private preview.
const QueryPreviewToken = "berth_token"

// Limits of a request.
const (
	MaxRequestIDLength      = 64
	MaxIdempotencyKeyLength = 255
	DefaultListLimit        = 100
	MaxListLimit            = 1000
)

// TimeLayout is the format of timestamps: RFC 3339 in UTC with milliseconds.
const TimeLayout = "2006-01-02T15:04:05.000Z"

// Time is an instant, written in TimeLayout and read from any RFC 3339 form.
type Time struct{ time.Time }

// NewTime returns t as a Time, or nil for the zero time, which becomes null in JSON.
func NewTime(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	return &Time{t}
}

// String returns the time in TimeLayout.
func (t Time) String() string { return t.UTC().Format(TimeLayout) }

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.String())
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Time) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return wrongType[Time](b)
	}
	parsed, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return &json.UnmarshalTypeError{Value: "string", Type: reflect.TypeFor[Time]()}
	}
	t.Time = parsed
	return nil
}

// Object is a JSON object, kept exactly as its owner wrote it. The zero value
// becomes {}.
type Object json.RawMessage

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) {
	if len(o) == 0 {
		return []byte("{}"), nil
	}
	return o, nil
}

// UnmarshalJSON implements json.Unmarshaler. It accepts only an object or null.
func (o *Object) UnmarshalJSON(b []byte) error {
	switch kindOf(b) {
	case "object":
		*o = append(Object(nil), b...)
	case "null":
		*o = nil
	default:
		return wrongType[Object](b)
	}
	return nil
}

// StringMap is an object whose values are all strings.
type StringMap map[string]string

// UnmarshalJSON implements json.Unmarshaler. Unlike a plain map, it refuses null as
// a value instead of reading it as an empty string.
func (m *StringMap) UnmarshalJSON(b []byte) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(b, &values); err != nil {
		return wrongType[StringMap](b)
	}
	*m = nil
	for _, k := range slices.Sorted(maps.Keys(values)) {
		var s *string
		if json.Unmarshal(values[k], &s) != nil || s == nil {
			return &json.UnmarshalTypeError{Value: kindOf(values[k]), Type: reflect.TypeFor[StringMap](), Field: k}
		}
		if *m == nil {
			*m = make(StringMap, len(values))
		}
		(*m)[k] = *s
	}
	return nil
}

// Bytes is arbitrary bytes, encoded as base64 in JSON.
type Bytes []byte

// UnmarshalJSON implements json.Unmarshaler. It refuses an array of numbers, which
// encoding/json accepts as bytes.
func (b *Bytes) UnmarshalJSON(raw []byte) error {
	var v []byte
	if kind := kindOf(raw); kind != "string" && kind != "null" {
		return wrongType[Bytes](raw)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return wrongType[Bytes](raw)
	}
	*b = v
	return nil
}

// kindOf returns the JSON type of the value that starts at b.
func kindOf(b []byte) string {
	if len(b) == 0 {
		return "nothing"
	}
	switch b[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// wrongType returns an error to which encoding/json adds the field's path.
func wrongType[T any](b []byte) error {
	return &json.UnmarshalTypeError{Value: kindOf(b), Type: reflect.TypeFor[T]()}
}

// VersionInfo is the answer of GET /version.
type VersionInfo struct {
	Version   string `json:"version"`    // of the control plane, "v0.1.0" or "devel"
	Commit    string `json:"commit"`     // of the source it was built from
	GoVersion string `json:"go_version"` // that built it
	API       string `json:"api"`        // "v1"
}

// Health is the answer of GET /healthz and GET /readyz.
type Health struct {
	Status string `json:"status"` // "ok"
}

// Empty is the body of a POST without parameters: {}.
type Empty struct{}
