package core

import (
	"context"
	"io"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Follower returns items as they occur. io.EOF means that there will be no more.
type Follower[T any] interface {
	Next() (T, error)
	io.Closer
}

// Body is a host's response body, under a context that Release ends.
type Body struct {
	io.ReadCloser
	Release context.CancelFunc
}

// Close implements io.Closer.
func (b *Body) Close() error {
	defer b.Release()
	return b.ReadCloser.Close()
}

// Converted converts a host's stream of messages. Release ends its context.
type Converted[H, T any] struct {
	From    *hostapi.Follower[H]
	Convert func(H) T
	Release context.CancelFunc
}

// Next implements Follower.
func (f *Converted[H, T]) Next() (T, error) {
	in, err := f.From.Next()
	if err != nil {
		var zero T
		return zero, err
	}
	return f.Convert(in), nil
}

// Close implements Follower.
func (f *Converted[H, T]) Close() error {
	defer f.Release()
	return f.From.Close()
}

// Event converts an event of a host.
func Event(e hostapi.Event) api.Event {
	return api.Event{
		TS: api.Time{Time: e.Time}, SandboxID: e.SandboxID, AgentID: e.HostID, Type: string(e.Type), Code: api.EventCode(e.Code),
		Message: e.Message, Metadata: api.Object(e.Metadata),
	}
}

// Bounds of api.EventQuery.Tail.
const (
	DefaultEventTail = hostapi.DefaultEventTail
	MaxEventTail     = hostapi.MaxEventTail
)
