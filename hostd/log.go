package hostd

import (
	"io"
	"log/slog"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/redact"
)

// NewLogger returns the daemon's logger, whose lines have no whole sandbox id. What
// is written for a request has the request's id.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	return slog.New(hostapi.WithRequestIDs(redact.NewHandler(w, level, format == "json")))
}
