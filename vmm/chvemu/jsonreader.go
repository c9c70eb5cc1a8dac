package chvemu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
)

// Configuration is read the way serde reads it for Cloud Hypervisor: a field
// that is missing where it has no default, null where a value belongs, a wrong
// type or an unknown variant is refused; a field that nobody knows is ignored.
// encoding/json alone is laxer than that in each of these.

// reader collects the first thing that is wrong.
type reader struct{ err error }

func (r *reader) failf(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// object is a JSON object that is being read.
type object struct {
	r    *reader
	path string
	m    map[string]any
}

// parseObject reads one JSON object and nothing behind it.
func parseObject(raw []byte) (*reader, object) {
	r := &reader{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		r.failf("%w", err)
	} else if _, err := dec.Token(); err != io.EOF {
		r.failf("trailing characters")
	}
	m, ok := v.(map[string]any)
	if !ok {
		r.failf("invalid type: expected a struct")
	}
	return r, object{r: r, m: m}
}

func (o object) name(key string) string {
	if o.path == "" {
		return key
	}
	return o.path + "." + key
}

// get returns a field's value, and false when it is absent.
func (o object) get(key string) (any, bool) {
	v, ok := o.m[key]
	return v, ok
}

// present reports whether an optional field has a value.
func (o object) present(key string) bool {
	v, ok := o.m[key]
	return ok && v != nil
}

func (o object) wrong(key, want string) {
	o.r.failf("invalid type at %s: expected %s", o.name(key), want)
}

func (o object) require(key string) (any, bool) {
	v, ok := o.m[key]
	if !ok {
		o.r.failf("missing field `%s`", o.name(key))
	}
	return v, ok
}

func toUint(v any, max uint64) (uint64, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return 0, false
	}
	u, err := strconv.ParseUint(n.String(), 10, 64)
	return u, err == nil && u <= max
}

// uintReq reads an unsigned integer that must be there.
func (o object) uintReq(key string, max uint64) uint64 {
	v, ok := o.require(key)
	if !ok {
		return 0
	}
	u, ok := toUint(v, max)
	if !ok {
		o.wrong(key, "an unsigned integer")
	}
	return u
}

// uintOr reads an unsigned integer that has a default.
func (o object) uintOr(key string, def, max uint64) uint64 {
	if _, ok := o.get(key); !ok {
		return def
	}
	return o.uintReq(key, max)
}

// uintOpt reads an unsigned integer that may be absent or null.
func (o object) uintOpt(key string, max uint64) *uint64 {
	if !o.present(key) {
		return nil
	}
	u := o.uintReq(key, max)
	return &u
}

func (o object) boolOr(key string, def bool) bool {
	v, ok := o.get(key)
	if !ok {
		return def
	}
	b, ok := v.(bool)
	if !ok {
		o.wrong(key, "a boolean")
	}
	return b
}

func (o object) stringReq(key string) string {
	v, ok := o.require(key)
	if !ok {
		return ""
	}
	s, ok := v.(string)
	if !ok {
		o.wrong(key, "a string")
	}
	return s
}

// stringOpt reads a string that may be absent or null.
func (o object) stringOpt(key string) *string {
	if !o.present(key) {
		return nil
	}
	s := o.stringReq(key)
	return &s
}

// variantOr reads one of a set of names.
func (o object) variantOr(key, def string, known ...string) string {
	v, ok := o.get(key)
	if !ok {
		return def
	}
	s, ok := v.(string)
	if !ok || !slices.Contains(known, s) {
		o.r.failf("unknown variant at %s: %v, expected one of %v", o.name(key), v, known)
	}
	return s
}

func (o object) mac(key string) string {
	s := o.stringReq(key)
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		o.r.failf("invalid MAC address at %s: %q", o.name(key), s)
	}
	return hw.String()
}

// object reads a nested object. It returns false when the field is absent.
func (o object) object(key string) (object, bool) {
	v, ok := o.get(key)
	if !ok {
		return object{}, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		o.wrong(key, "a struct")
	}
	return object{r: o.r, path: o.name(key), m: m}, true
}

// objectOpt is object for a field that may be null.
func (o object) objectOpt(key string) (object, bool) {
	if !o.present(key) {
		return object{}, false
	}
	return o.object(key)
}

// listOpt reads a list of objects that may be absent or null, and says which.
func (o object) listOpt(key string) (items []object, present bool) {
	if !o.present(key) {
		return nil, false
	}
	v, _ := o.get(key)
	list, ok := v.([]any)
	if !ok {
		o.wrong(key, "a sequence")
	}
	for i, item := range list {
		m, ok := item.(map[string]any)
		path := fmt.Sprintf("%s[%d]", o.name(key), i)
		if !ok {
			o.r.failf("invalid type at %s: expected a struct", path)
		}
		items = append(items, object{r: o.r, path: path, m: m})
	}
	return items, true
}

const (
	maxU8  = math.MaxUint8
	maxU16 = math.MaxUint16
	maxU32 = math.MaxUint32
	maxU64 = math.MaxUint64
)
