package httpapi

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
)

// splitter converts a stream of bytes, which arrives in pieces, to pieces of text.
// It holds back an incomplete character until the rest arrives, so that only what is
// not UTF-8 becomes base64.
type splitter struct {
	held []byte // beginning of a character, at most 3 bytes
}

// next converts a piece. ok is false if there is no output yet.
func (s *splitter) next(p []byte) (out api.Output, ok bool) {
	if len(s.held) > 0 {
		p = append(s.held, p...)
		s.held = nil
	}
	text, rest := cut(p)
	switch {
	case !utf8.Valid(text):
		return api.Output{Data: base64.StdEncoding.EncodeToString(p), Encoding: "base64"}, true
	case len(rest) > 0:
		s.held = append(make([]byte, 0, utf8.UTFMax), rest...)
	}
	return api.Output{Data: string(text)}, len(text) > 0
}

// end returns what was held back, at the end of the stream.
func (s *splitter) end() (out api.Output, ok bool) {
	if len(s.held) == 0 {
		return api.Output{}, false
	}
	out = api.Output{Data: base64.StdEncoding.EncodeToString(s.held), Encoding: "base64"}
	s.held = nil
	return out, true
}

// cut splits off an incomplete character at the end of p.
func cut(p []byte) (text, rest []byte) {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		at := len(p) - n
		if b := p[at]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p[at:]) {
				return p[:at], p[at:]
			}
			break
		}
	}
	return p, nil
}
