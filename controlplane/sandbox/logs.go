package sandbox

import (
	"context"
	"io"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// LogLine is one line of a log, with the stream that it is of.
type LogLine struct {
	Stream string
	api.LogLine
}

// Logs are the use cases of what a sandbox has written, and of what happened to it.
type Logs struct{ *reach }

// Text returns the lines that are there, as text. What the console wrote can be
// read whether or not the sandbox runs.
func (l *Logs) Text(ctx context.Context, c core.Caller, id string, q api.LogQuery) (io.ReadCloser, error) {
	var out opened[io.ReadCloser]
	err := l.forLogs(q)(ctx, c, id, open(l.reach, &out, func(ctx context.Context, t target) (io.ReadCloser, error) {
		return t.client.Logs(ctx, id, hostapi.LogQuery{Stream: q.Stream, Tail: q.Tail})
	}))
	if err != nil {
		return nil, err
	}
	return &core.Body{ReadCloser: out.it, Release: out.release}, nil
}

// Follow returns the lines that are there, and those to come.
func (l *Logs) Follow(ctx context.Context, c core.Caller, id string, q api.LogQuery) (core.Follower[LogLine], error) {
	var out opened[*hostapi.Follower[hostapi.LogLine]]
	err := l.forLogs(q)(ctx, c, id, open(l.reach, &out, func(ctx context.Context, t target) (*hostapi.Follower[hostapi.LogLine], error) {
		return t.client.FollowLogs(ctx, id, hostapi.LogQuery{Stream: q.Stream, Tail: q.Tail})
	}))
	if err != nil {
		return nil, err
	}
	return &core.Converted[hostapi.LogLine, LogLine]{From: out.it, Release: out.release, Convert: func(l hostapi.LogLine) LogLine {
		return LogLine{l.Stream, api.LogLine{Line: l.Line, TS: api.NewTime(l.Time), Partial: l.Partial}}
	}}, nil
}

type onHostFunc func(ctx context.Context, c core.Caller, id string, fn func(ctx context.Context, t target) error) error

func (l *Logs) forLogs(q api.LogQuery) onHostFunc {
	if q.Stream == "console" {
		return l.onHost
	}
	return l.onRunning
}
