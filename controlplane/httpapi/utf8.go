package httpapi

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/berth-cloud/berth/controlplane/api"
)

// splitter turns a stream of bytes that comes in pieces into pieces of text. A
// character that is cut in two is held back until the rest of it has come, so
// that only what is not UTF-8 at all is given as base64.
type splitter struct {
	held []byte // the beginning of a character, at most 3 bytes
}

// next takes a piece. ok is false when there is nothing to give out yet.
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

// end gives out what was held back when there is no more to come.
func (s *splitter) end() (out api.Output, ok bool) {
	if len(s.held) == 0 {
		return api.Output{}, false
	}
	out = api.Output{Data: base64.StdEncoding.EncodeToString(s.held), Encoding: "base64"}
	s.held = nil
	return out, true
}

// cut splits off the beginning of a character at the end of p.
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
