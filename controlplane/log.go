package controlplane

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/redact"
)

// NewLogger creates the replica's logger, which shortens sandbox ids. What is written
// for a request, also by the flow that it began, has the request's id.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("BERTH_LOG_LEVEL is %q, want debug, info, warn or error", level)
	}
	if format != "json" && format != "text" {
		return nil, fmt.Errorf("BERTH_LOG_FORMAT is %q, want text or json", format)
	}
	return slog.New(hostapi.WithRequestIDs(redact.NewHandler(w, l, format == "json"))), nil
}
