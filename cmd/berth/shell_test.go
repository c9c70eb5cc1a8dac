package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// What does not take the first Ctrl-D gets another.
func TestEndOfInputOfATerminal(t *testing.T) {
	for typed, want := range map[string]string{"": "\x04\x04", "exit\n": "exit\n\x04\x04", "exit": "exit\n\x04\x04"} {
		var got strings.Builder
		w := &lastByte{w: writes(func(p []byte) (int, error) {
			if strings.HasSuffix(got.String(), "\x04\x04") {
				return 0, errors.New("it has ended")
			}
			return got.Write(p)
		})}
		if _, err := w.Write([]byte(typed)); err != nil {
			t.Fatal(err)
		}
		endInput(context.Background(), w)
		if got.String() != want {
			t.Errorf("after %q: %q", typed, got.String())
		}
	}
}

type writes func(p []byte) (int, error)

func (w writes) Write(p []byte) (int, error) { return w(p) }

// planeProcess gives all output of a command at its end.
type planeProcess struct {
	sandbox.Process // the rest is not used
	run             func() (api.ExecResult, error)
	pieces          []sandbox.Piece
}

func (p planeCommands) Stream(ctx context.Context, c core.Caller, id string, in api.Exec, _ bool) (sandbox.Process, error) {
	if _, err := p.plane.Get(ctx, c, id); err != nil {
		return nil, err
	}
	return &planeProcess{run: func() (api.ExecResult, error) { return p.Exec(ctx, c, id, in) }}, nil
}

func (p *planeProcess) Next() (sandbox.Piece, error) {
	if p.pieces == nil {
		r, err := p.run()
		if err != nil {
			return sandbox.Piece{}, err
		}
		p.pieces = []sandbox.Piece{
			{Stream: "stdout", Data: []byte(r.Stdout)}, {Stream: "stderr", Data: []byte(r.Stderr)},
			{Exit: &api.Exit{ExitCode: r.ExitCode, DurationMS: r.DurationMS, TimedOut: r.TimedOut}},
		}
	}
	next := p.pieces[0]
	p.pieces = p.pieces[1:]
	return next, nil
}

func (*planeProcess) Close() error { return nil }
