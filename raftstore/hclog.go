package raftstore

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// hcLog passes the Raft library's log lines to slog.
type hcLog struct {
	log  *slog.Logger
	name string
	args []any
}

func newHCLog(l *slog.Logger) hclog.Logger { return &hcLog{log: l.With("component", "raft")} }

var hcLevels = map[hclog.Level]slog.Level{
	hclog.Trace: slog.LevelDebug, hclog.Debug: slog.LevelDebug, hclog.Info: slog.LevelInfo,
	hclog.Warn: slog.LevelWarn, hclog.Error: slog.LevelError,
}

func (h *hcLog) Log(level hclog.Level, msg string, args ...any) {
	l, ok := hcLevels[level]
	if !ok || !h.log.Enabled(context.Background(), l) {
		return
	}
	out := make([]any, len(args))
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok { // a format and its arguments, not rendered yet
			a = fmt.Sprintf(f[0].(string), f[1:]...)
		}
		out[i] = a
	}
	h.log.Log(context.Background(), l, msg, out...) //nolint:sloglint // the library's messages, constant where they are written
}

func (h *hcLog) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hcLog) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hcLog) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hcLog) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hcLog) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hcLog) enabled(l slog.Level) bool { return h.log.Enabled(context.Background(), l) }
func (h *hcLog) IsTrace() bool             { return false }
func (h *hcLog) IsDebug() bool             { return h.enabled(slog.LevelDebug) }
func (h *hcLog) IsInfo() bool              { return h.enabled(slog.LevelInfo) }
func (h *hcLog) IsWarn() bool              { return h.enabled(slog.LevelWarn) }
func (h *hcLog) IsError() bool             { return h.enabled(slog.LevelError) }

func (h *hcLog) ImpliedArgs() []any { return h.args }
func (h *hcLog) Name() string       { return h.name }

func (h *hcLog) With(args ...any) hclog.Logger {
	return &hcLog{log: h.log.With(args...), name: h.name, args: append(append([]any(nil), h.args...), args...)}
}

func (h *hcLog) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h *hcLog) ResetNamed(name string) hclog.Logger {
	return &hcLog{log: h.log, name: name, args: h.args}
}

func (h *hcLog) SetLevel(hclog.Level) {}

func (h *hcLog) GetLevel() hclog.Level {
	switch {
	case h.IsDebug():
		return hclog.Debug
	case h.IsInfo():
		return hclog.Info
	case h.IsWarn():
		return hclog.Warn
	default:
		return hclog.Error
	}
}

func (h *hcLog) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(o), "", 0)
}

func (h *hcLog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return hcWriter{h} }

type hcWriter struct{ h *hcLog }

func (w hcWriter) Write(b []byte) (int, error) {
	w.h.Info(strings.TrimSpace(string(b)))
	return len(b), nil
}
