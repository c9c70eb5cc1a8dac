// Package redact keeps credentials out of logs. Whoever reads a sandbox id can reach
// its ports, so a log line has only the beginning of one, also where an error has it
// in a URL.
package redact

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
)

// shown is how many characters of a sandbox id are logged: enough to tell two apart,
// and 90 bits are left to guess.
const shown = 8

// whole is a sandbox id that stands alone: 26 characters of lower-case base32.
var whole = regexp.MustCompile(`\b([a-z2-7]{8})[a-z2-7]{18}\b`)

// ID returns the part of a sandbox id that may be shown to people and in logs.
func ID(id string) string {
	if len(id) <= shown {
		return id
	}
	return id[:shown]
}

// Text shortens every sandbox id in a text as ID does, so that a search finds it
// in the logs of all programs.
func Text(s string) string { return whole.ReplaceAllString(s, "$1") }

// NewHandler writes lines without a whole sandbox id, as JSON or as text.
func NewHandler(w io.Writer, level slog.Leveler, json bool) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: attr}
	if json {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

func attr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(Text(a.Value.String()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = slog.StringValue(Text(v.Error()))
		case fmt.Stringer:
			a.Value = slog.StringValue(Text(v.String()))
		}
	default:
	}
	return a
}
