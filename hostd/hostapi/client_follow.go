package hostapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// HeartbeatInterval is how often a host says on a quiet stream of server-sent
// events that it is still there.
const HeartbeatInterval = 15 * time.Second

// silence ends a stream that has said nothing, not even that it is there.
const silence = 3 * HeartbeatInterval

// errSilent is why a stream was given up.
var errSilent = errors.New("host is silent")

// maxMessage bounds one line of a stream of server-sent events, in bytes.
const maxMessage = 1 << 20

// Follower reads a host's stream of server-sent events. It ends with its
// context, when it is closed, or when the host has been silent for too long.
type Follower[T any] struct {
	body  io.ReadCloser
	lines *bufio.Scanner
	watch *time.Timer
	ctx   context.Context
	end   context.CancelCauseFunc
}

func follow[T any](ctx context.Context, c *Client, path string) (*Follower[T], error) {
	ctx, end := context.WithCancelCause(ctx)
	resp, err := c.stream(ctx, request{
		method: http.MethodGet, path: path, header: http.Header{"Accept": {"text/event-stream"}},
	})
	if err != nil {
		end(nil)
		return nil, err
	}
	f := &Follower[T]{
		body: resp.Body, lines: bufio.NewScanner(resp.Body), ctx: ctx, end: end,
		watch: time.AfterFunc(silence, func() { end(errSilent) }),
	}
	f.lines.Buffer(make([]byte, 4<<10), maxMessage)
	return f, nil
}

// Next waits for the next message. io.EOF means that the host ended the stream
// in an orderly way. It must not be called by two goroutines at once.
func (f *Follower[T]) Next() (T, error) {
	var out T
	for f.lines.Scan() {
		f.watch.Reset(silence)
		// Each message is one line of data; its name and id are in the data.
		data, ok := bytes.CutPrefix(f.lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if err := json.Unmarshal(data, &out); err != nil {
			return out, fmt.Errorf("decode message of host: %w", err)
		}
		return out, nil
	}
	err := f.lines.Err()
	switch {
	case f.ctx.Err() != nil:
		return out, fmt.Errorf("follow: %w", context.Cause(f.ctx))
	case err != nil:
		return out, fmt.Errorf("follow: %w", err)
	}
	return out, io.EOF
}

// Close ends the stream. It may be called while Next waits.
func (f *Follower[T]) Close() error {
	f.watch.Stop()
	f.end(context.Canceled)
	return f.body.Close()
}
