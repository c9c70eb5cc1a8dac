package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"reflect"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// maxDepth limits the nesting of a body, because programs with lower limits read
// what is stored.
const maxDepth = 64

// mayHoldNUL are the fields that may contain U+0000. In any other it would truncate
// a path, an argument or a variable in the guest.
var mayHoldNUL = map[string]bool{"stdin": true}

// bind decodes the body into a T. raw is the body as received. It ignores members
// that T does not have, so that a client may be newer than the service.
func bind[T any](c *gin.Context, limit int64) (in T, raw []byte, err error) {
	raw, err = readBody(c, limit)
	if err != nil {
		return in, nil, err
	}
	if err := decodeJSON(raw, &in); err != nil {
		return in, nil, withMediaType(c, err)
	}
	return in, raw, nil
}

// decodeJSON accepts one object in UTF-8, with no repeated members, no halves of
// characters and nothing after it.
func decodeJSON(raw []byte, out any) error {
	switch {
	case len(bytes.TrimSpace(raw)) == 0:
		return invalidJSON("the body is empty; send {} where there is nothing to say")
	case bytes.IndexByte(raw, 0) >= 0:
		return invalidJSON("the body holds a NUL byte")
	case !utf8.Valid(raw):
		return invalidJSON("the body is not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil {
		return invalidJSON(describe(err))
	}
	if first := bytes.TrimSpace(raw)[0]; first != '{' {
		return invalidJSON("the body must be an object")
	}
	if at := halfCharacter(raw); at >= 0 {
		return invalidJSON(fmt.Sprintf("at byte %d: half a character (an unpaired surrogate)", at+1))
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := walk(d, "", 0); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Type == reflect.TypeFor[api.StringMap]() {
			// The contract has a text of its own for env, and for nothing else.
			if field, _, _ := strings.Cut(wrong.Field, "."); field == "env" {
				return invalid("env must be a string map", describe(err))
			}
		}
		return invalidJSON(describe(err))
	}
	return nil
}

// halfCharacter returns where an escape of valid JSON is a surrogate without its other
// half, or -1. JavaScript makes one when it cuts a string in a character. encoding/json
// reads it as U+FFFD, but stricter readers refuse a document that contains one: what is
// kept as it was sent would make a whole list unreadable for them.
func halfCharacter(raw []byte) int {
	for at := 0; ; {
		next := bytes.IndexByte(raw[at:], '\\')
		if next < 0 {
			return -1
		}
		at += next
		r, size := escaped(raw[at:])
		if utf16.IsSurrogate(r) {
			other, more := escaped(raw[at+size:])
			if utf16.DecodeRune(r, other) == unicode.ReplacementChar {
				return at
			}
			size += more
		}
		at += size
	}
}

// escaped decodes an escape at the beginning of b, part of valid JSON, and returns its
// size in bytes. The rune is 0 if it is not of the form \uXXXX.
func escaped(b []byte) (r rune, size int) {
	switch {
	case b[0] != '\\':
		return 0, 0
	case b[1] != 'u':
		return 0, 2
	}
	n, _ := strconv.ParseUint(string(b[2:6]), 16, 16) // valid JSON has four hexadecimal digits here
	return rune(n), 6
}

// walk reads one value and refuses what encoding/json would accept. path is the
// beginning of the value's path, as much as an answer may contain.
func walk(d *json.Decoder, path string, depth int) error {
	if depth > maxDepth {
		return invalidJSON(fmt.Sprintf("%s nests deeper than %d levels", topOf(path), maxDepth))
	}
	tok, err := d.Token()
	if err != nil {
		return invalidJSON(describe(err))
	}
	switch t := tok.(type) {
	case string:
		if strings.IndexByte(t, 0) >= 0 && !mayHoldNUL[path] {
			return invalidJSON(shorten(path) + " holds a NUL character")
		}
	case json.Delim:
		if t == '{' {
			return walkObject(d, path, depth)
		}
		for d.More() {
			if err := walk(d, path, depth+1); err != nil {
				return err
			}
		}
		_, err = d.Token()
	}
	return err
}

func walkObject(d *json.Decoder, path string, depth int) error {
	seen := map[string]bool{}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return invalidJSON(describe(err))
		}
		name, _ := tok.(string)
		at := name
		if path != "" {
			at = path + "." + name
		}
		if strings.IndexByte(name, 0) >= 0 {
			return invalidJSON("the name of a member of " + topOf(path) + " holds a NUL character")
		}
		if seen[name] {
			return invalidJSON(shorten(at) + " is given twice")
		}
		seen[name] = true
		// Only the beginning: it is copied for each member, and names may be as long
		// as the body.
		if err := walk(d, at[:min(len(at), maxShown+1)], depth+1); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// topOf returns the top-level field of a path, or "the body".
func topOf(path string) string {
	if path == "" {
		return "the body"
	}
	field, _, _ := strings.Cut(path, ".")
	return shorten(field)
}

// maxShown limits how much of a client's own text an answer contains, in bytes.
const maxShown = 80

// shorten truncates a client's text to maxShown.
func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}

// describe describes what is wrong with a body, and names the field.
func describe(err error) string {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong):
		field := shorten(wrong.Field)
		if field == "" {
			field = "the body"
		}
		want := wanted(wrong.Type)
		if wrong.Type == reflect.TypeFor[api.StringMap]() && strings.Contains(field, ".") {
			want = "a string" // the field is one of the map's values
		}
		return fmt.Sprintf("%s must be %s, not %s", field, want, shorten(wrong.Value))
	case errors.As(err, &syntax):
		return fmt.Sprintf("at byte %d: %s", syntax.Offset, syntax.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the body ended early"
	}
	return "the body cannot be read"
}

// wanted describes the values that a field of this type accepts.
func wanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[api.Command]():
		return "a string or an array of strings"
	case reflect.TypeFor[api.StringMap]():
		return "an object whose values are strings"
	case reflect.TypeFor[api.Bytes]():
		return "a string in base64"
	case reflect.TypeFor[api.Time]():
		return "an RFC 3339 time"
	case reflect.TypeFor[api.Object]():
		return "an object"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

// withMediaType adds a hint to the error for a body that was not declared as JSON.
// Valid JSON is accepted whatever its declared type, because curl -d declares
// everything as a form.
func withMediaType(c *gin.Context, err error) error {
	var hint string
	media, _, _ := mime.ParseMediaType(c.GetHeader("Content-Type"))
	if enc := c.GetHeader("Content-Encoding"); enc != "" && enc != "identity" {
		hint = "Content-Encoding " + shorten(enc) + " is not supported"
	} else if media != "application/json" && !strings.HasSuffix(media, "+json") {
		hint = "send JSON with Content-Type: application/json"
	}
	if hint == "" {
		return err
	}
	e := *apierror.As(err)
	e.Detail = strings.TrimPrefix(e.Detail+"; "+hint, "; ")
	return &e
}
