package service

import (
	"context"
	"io"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// LogQuery says which lines are asked for.
type LogQuery struct {
	Stream string // stdout, stderr, both or console
	Tail   int    // at most so many of those that are there; 0: all
}

// LogLine is one line.
type LogLine struct {
	Stream  string
	Time    time.Time // zero where it is not known
	Line    string
	Partial bool // it goes on in the next
}

// Follower gives one thing after the other as they happen. io.EOF means that
// there will be no more.
type Follower[T any] interface {
	Next() (T, error)
	io.Closer
}

// Logs returns the lines that are there, as text. What the console wrote can be
// read whether or not the sandbox runs.
func (s *Sandboxes) Logs(ctx context.Context, c Caller, id string, q LogQuery) (io.ReadCloser, error) {
	var out opened[io.ReadCloser]
	err := s.forLogs(q)(ctx, c, id, open(s, &out, func(ctx context.Context, t target) (io.ReadCloser, error) {
		return t.client.Logs(ctx, id, hostapi.LogQuery{Stream: q.Stream, Tail: q.Tail})
	}))
	if err != nil {
		return nil, err
	}
	return &releasing{ReadCloser: out.it, release: out.release}, nil
}

// FollowLogs returns the lines that are there, and those to come.
func (s *Sandboxes) FollowLogs(ctx context.Context, c Caller, id string, q LogQuery) (Follower[LogLine], error) {
	var out opened[*hostapi.Follower[hostapi.LogLine]]
	err := s.forLogs(q)(ctx, c, id, open(s, &out, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.LogLine], error) {
		return t.client.FollowLogs(ctx, id, hostapi.LogQuery{Stream: q.Stream, Tail: q.Tail})
	}))
	if err != nil {
		return nil, err
	}
	return &follower[hostapi.LogLine, LogLine]{from: out.it, release: out.release, convert: func(l hostapi.LogLine) LogLine {
		return LogLine{Stream: l.Stream, Time: l.Time, Line: l.Line, Partial: l.Partial}
	}}, nil
}

type onHostFunc func(ctx context.Context, c Caller, id string, fn func(ctx context.Context, t target) error) error

func (s *Sandboxes) forLogs(q LogQuery) onHostFunc {
	if q.Stream == "console" {
		return s.onHost
	}
	return s.onRunning
}

// releasing is a body of a host, whose context ends with it.
type releasing struct {
	io.ReadCloser
	release context.CancelFunc
}

// Close implements io.Closer.
func (r *releasing) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
}

// follower is a host's stream of messages in the terms of this package.
type follower[H, T any] struct {
	from    *hostapi.Follower[H]
	release context.CancelFunc
	convert func(H) T
}

// Next implements Follower.
func (f *follower[H, T]) Next() (T, error) {
	in, err := f.from.Next()
	if err != nil {
		var zero T
		return zero, err
	}
	return f.convert(in), nil
}

// Close implements Follower.
func (f *follower[H, T]) Close() error {
	defer f.release()
	return f.from.Close()
}
