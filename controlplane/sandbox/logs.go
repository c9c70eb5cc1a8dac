package sandbox

import (
	"context"
	"io"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// LogLine is a line of a log and the name of its stream.
type LogLine struct {
	Stream string
	api.LogLine
}

// Logs contains the use cases of a sandbox's logs and events.
type Logs struct {
	*reach
	history History
}

// Text returns the existing lines as text. The console's can be read whether or not
// the sandbox runs.
func (l *Logs) Text(ctx context.Context, c core.Caller, id string, q api.LogQuery) (io.ReadCloser, error) {
	var out opened[io.ReadCloser]
	err := l.onLogs(ctx, c, id, q, open(l.reach, &out, func(ctx context.Context, t target) (io.ReadCloser, error) {
		return t.client.Logs(ctx, id, hostapi.LogQuery{Stream: q.Stream, Tail: q.Tail})
	}))
	if err != nil {
		return nil, err
	}
	return &core.Body{ReadCloser: out.it, Release: out.release}, nil
}

// stream is what a client follows, which counts as one of its workspace's.
type stream[T any] struct {
	opened[*hostapi.Follower[T]]
	leave func()
}

// followed counts a stream that is about to be opened.
func followed[T any](r *reach, c core.Caller) (*stream[T], error) {
	leave, err := r.core.Streams.Enter(c.WorkspaceID)
	return &stream[T]{leave: leave}, err
}

func (s *stream[T]) end() {
	s.release()
	s.leave()
}

// Follow returns the existing lines, and then new ones.
func (l *Logs) Follow(ctx context.Context, c core.Caller, id string, q api.LogQuery) (core.Follower[LogLine], error) {
	out, err := followed[hostapi.LogLine](l.reach, c)
	if err != nil {
		return nil, err
	}
	err = l.onLogs(ctx, c, id, q, open(l.reach, &out.opened, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.LogLine], error) {
		return t.client.FollowLogs(ctx, id, hostapi.LogQuery{Stream: q.Stream, Tail: q.Tail})
	}))
	if err != nil {
		out.leave()
		return nil, err
	}
	return &core.Converted[hostapi.LogLine, LogLine]{From: out.it, Release: out.end, Convert: func(l hostapi.LogLine) LogLine {
		return LogLine{l.Stream, api.LogLine{Line: l.Line, TS: api.NewTime(l.Time), Partial: l.Partial}}
	}}, nil
}

// onLogs calls fn with a sandbox's host. Except for the console, it wakes the
// sandbox first, because the logs are in the guest; but only its owner wakes a
// managed sandbox.
func (l *Logs) onLogs(ctx context.Context, c core.Caller, id string, q api.LogQuery, fn func(ctx context.Context, t target) error) error {
	row, err := l.find(ctx, c, id)
	switch {
	case err != nil:
		return err
	case q.Stream == "console", row.Owner != nil:
		return l.onHost(ctx, c, id, fn)
	}
	return l.onRunning(ctx, c, id, fn)
}
