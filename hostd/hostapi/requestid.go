package hostapi

import (
	"context"
	"log/slog"
	"slices"
)

type requestIDKey struct{}

// WithRequestID notes under ctx which public request it serves: calls to hosts
// carry it in HeaderRequestID, and log lines have it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID is the id that WithRequestID put into ctx, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

const requestIDAttr = "request_id"

// WithRequestIDs has every line of a log that is written for a request say which,
// unless it says so itself.
func WithRequestIDs(h slog.Handler) slog.Handler { return &requestIDs{Handler: h} }

type requestIDs struct {
	slog.Handler
	named bool // every line says it
}

func (h *requestIDs) Handle(ctx context.Context, r slog.Record) error {
	id, named := RequestID(ctx), h.named
	r.Attrs(func(a slog.Attr) bool {
		named = named || a.Key == requestIDAttr
		return !named
	})
	if id != "" && !named {
		r = r.Clone()
		r.AddAttrs(slog.String(requestIDAttr, id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h *requestIDs) WithAttrs(attrs []slog.Attr) slog.Handler {
	named := slices.ContainsFunc(attrs, func(a slog.Attr) bool { return a.Key == requestIDAttr })
	return &requestIDs{h.Handler.WithAttrs(attrs), h.named || named}
}

func (h *requestIDs) WithGroup(name string) slog.Handler {
	return &requestIDs{h.Handler.WithGroup(name), h.named}
}
