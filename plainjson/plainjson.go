// Package plainjson encodes JSON that is not for a web page. json.Marshal writes each
// '<', '>' and '&' as six bytes, so that a text within its limit would not fit into what
// carries it.
package plainjson

import (
	"bytes"
	"encoding/json"
)

// Marshal is json.Marshal without the escapes for HTML.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
