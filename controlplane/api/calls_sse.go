package api

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

// silence is how long a stream of server-sent events may receive nothing, not even
// the comment that the service sends every 15 seconds, before it is ended.
const silence = 45 * time.Second

// maxEventLine limits a line of a stream. The longest is a piece of output, as JSON.
const maxEventLine = 4 << 20

var errSilent = errors.New("the service is silent")

// serverEvents reads a stream of server-sent events.
type serverEvents struct {
	body  io.ReadCloser
	lines *bufio.Scanner
	ctx   context.Context
	end   context.CancelCauseFunc
	watch *time.Timer
}

// listen opens a stream of server-sent events. The caller closes it.
func (c *Client) listen(ctx context.Context, cl call) (*serverEvents, error) {
	ctx, end := context.WithCancelCause(ctx)
	if cl.header == nil {
		cl.header = http.Header{}
	}
	cl.header.Set("Accept", "text/event-stream")
	resp, err := c.do(ctx, cl)
	if err != nil {
		end(nil)
		return nil, err
	}
	return newServerEvents(ctx, end, resp.Body), nil
}

// newServerEvents reads body, which the end of ctx closes.
func newServerEvents(ctx context.Context, end context.CancelCauseFunc, body io.ReadCloser) *serverEvents {
	s := &serverEvents{body: body, lines: bufio.NewScanner(body), ctx: ctx, end: end}
	s.lines.Buffer(make([]byte, 4<<10), maxEventLine)
	s.watch = time.AfterFunc(silence, func() { end(errSilent) })
	return s
}

func (s *serverEvents) close() {
	s.watch.Stop()
	s.end(context.Canceled)
	s.body.Close()
}

// next waits for the next event. io.EOF means that the service ended the stream.
func (s *serverEvents) next() (name string, data []byte, err error) {
	// How long the caller takes with an event says nothing of the service.
	s.watch.Reset(silence)
	defer s.watch.Stop()
	var lines [][]byte
	for s.lines.Scan() {
		s.watch.Reset(silence)
		line := s.lines.Bytes()
		switch {
		case len(line) == 0:
			if lines != nil {
				return name, bytes.Join(lines, []byte("\n")), nil
			}
			name = ""
		case line[0] == ':': // a comment
		default:
			field, value, _ := bytes.Cut(line, []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(field) {
			case "event":
				name = string(value)
			case "data":
				lines = append(lines, bytes.Clone(value))
			}
		}
	}
	err = s.lines.Err()
	switch {
	case s.ctx.Err() != nil:
		return "", nil, fmt.Errorf("stream: %w", context.Cause(s.ctx))
	case err != nil:
		return "", nil, fmt.Errorf("stream: %w", err)
	}
	return "", nil, io.EOF
}

// StreamError is the error with which the service ends a stream.
type StreamError struct {
	Message string
	Detail  string
}

// Error implements error.
func (e *StreamError) Error() string {
	if e.Detail == "" {
		return e.Message
	}
	return e.Message + ": " + e.Detail
}

func decodeEvent(data []byte, out any) error {
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("decode an event of the stream: %w", err)
	}
	return nil
}

func streamError(data []byte) error {
	var body ErrorBody
	if err := decodeEvent(data, &body); err != nil {
		return err
	}
	return &StreamError{Message: body.Error, Detail: body.Detail}
}
