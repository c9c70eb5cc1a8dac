package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// maxDepth bounds how deep a body may nest: what is stored is read again by
// programs with less patience than ours.
const maxDepth = 64

// mayHoldNUL are the fields whose text may hold U+0000. Anywhere else it would
// cut a path, an argument or a variable short on its way into the guest.
var mayHoldNUL = map[string]bool{"stdin": true}

// bind reads the body as JSON into a T. raw is the body as it came. Members
// that T does not have are ignored, so that a client may be newer than the
// service.
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

// decodeJSON is strict about what JSON leaves open: one object, in UTF-8, each
// member once, nothing after it.
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
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := walk(d, "", 0); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Type == reflect.TypeFor[api.StringMap]() {
			field, _, _ := strings.Cut(wrong.Field, ".")
			return invalid(field+" must be a string map", describe(err))
		}
		return invalidJSON(describe(err))
	}
	return nil
}

// walk reads one value and refuses what encoding/json would let through. path is
// the beginning of the value's, as much as an answer may show.
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
		// Not all of it: it would be copied for each member, and names may be as long
		// as the body.
		if err := walk(d, at[:min(len(at), maxShown+1)], depth+1); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// topOf names the top-level field of a path, or the body.
func topOf(path string) string {
	if path == "" {
		return "the body"
	}
	field, _, _ := strings.Cut(path, ".")
	return shorten(field)
}

// maxShown is how much of a client's own words an answer shows, in bytes.
const maxShown = 80

// shorten keeps a client's own words in an answer short.
func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "…"
}

// describe says in a sentence what is wrong with a body, naming the field.
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

// wanted names what a field of this type takes.
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

// withMediaType adds a hint to the refusal of a body that never claimed to be
// JSON. A body that parses is taken whatever it is called: curl -d calls
// everything a form.
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
