package raftstore

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// levels map the levels of the Raft library's log, from the lowest.
var levels = []struct {
	from hclog.Level
	to   slog.Level
}{
	{hclog.Trace, slog.LevelDebug}, {hclog.Debug, slog.LevelDebug}, {hclog.Info, slog.LevelInfo},
	{hclog.Warn, slog.LevelWarn}, {hclog.Error, slog.LevelError},
}

// newHCLog returns a logger for the Raft library that passes its lines to l.
func newHCLog(l *slog.Logger) hclog.Logger {
	level := hclog.Error
	for i := len(levels) - 1; i > 0 && l.Enabled(context.Background(), levels[i].to); i-- {
		level = levels[i].from
	}
	h := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: level, Output: io.Discard})
	h.RegisterSink(hcSink{l.With("component", "raft")})
	return h
}

type hcSink struct{ log *slog.Logger }

// Accept implements hclog.SinkAdapter.
func (s hcSink) Accept(_ string, level hclog.Level, msg string, args ...any) {
	for _, l := range levels {
		if l.from != level {
			continue
		}
		out := make([]any, len(args))
		for i, a := range args {
			if f, ok := a.(hclog.Format); ok { // a format and its arguments, not rendered yet
				a = fmt.Sprintf(f[0].(string), f[1:]...)
			}
			out[i] = a
		}
		s.log.Log(context.Background(), l.to, msg, out...) //nolint:sloglint // the library's messages, constant where they are written
	}
}
