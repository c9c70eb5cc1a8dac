package hostd

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// boxID finds sandbox ids in text: 26 characters of base32 that stand alone.
var boxID = regexp.MustCompile(`\b([a-z2-7]{8})[a-z2-7]{18}\b`)

// NewLogger returns the daemon's logger. A sandbox id is a bearer credential
// (of preview URLs), so no line has a whole one, wherever it comes from. What is
// written for a request has the request's id.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: redact}
	if format == "json" {
		return slog.New(hostapi.WithRequestIDs(slog.NewJSONHandler(w, opts)))
	}
	return slog.New(hostapi.WithRequestIDs(slog.NewTextHandler(w, opts)))
}

func redact(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(shorten(a.Value.String()))
	case slog.KindAny:
		if v, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(shorten(v.Error()))
		} else if v, ok := a.Value.Any().(fmt.Stringer); ok {
			a.Value = slog.StringValue(shorten(v.String()))
		}
	default:
	}
	return a
}

func shorten(s string) string { return boxID.ReplaceAllString(s, "$1") }
