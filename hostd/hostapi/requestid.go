package hostapi

import (
	"context"
	"log/slog"
)

type requestIDKey struct{}

// WithRequestID notes under ctx which public request it serves: calls to hosts
// carry it in HeaderRequestID, and a host's log lines have it.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID is the id that WithRequestID put into ctx, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// WithRequestIDs has every line of a log that is written for a request say which.
func WithRequestIDs(h slog.Handler) slog.Handler { return &requestIDs{h} }

type requestIDs struct{ slog.Handler }

func (h *requestIDs) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h *requestIDs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &requestIDs{h.Handler.WithAttrs(attrs)}
}

func (h *requestIDs) WithGroup(name string) slog.Handler {
	return &requestIDs{h.Handler.WithGroup(name)}
}
