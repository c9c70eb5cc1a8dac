package controlplane

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
)

// NewLogger makes a logger that writes no whole sandbox id: an id opens its
// ports to whoever reads it, and the errors of HTTP calls have URLs in them.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l, ReplaceAttr: redact}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	}
	return nil, fmt.Errorf("log format %q: want text or json", format)
}

var sandboxID = regexp.MustCompile(`\b([a-z2-7]{8})[a-z2-7]{18}\b`)

func redact(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		if s := a.Value.String(); len(s) >= 26 {
			a.Value = slog.StringValue(sandboxID.ReplaceAllString(s, "$1…"))
		}
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(sandboxID.ReplaceAllString(err.Error(), "$1…"))
		}
	}
	return a
}
