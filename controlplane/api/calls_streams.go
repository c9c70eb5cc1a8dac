package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"
)

// ExecStream runs a command and writes its output as it arrives; either writer may
// be nil. A slow writer slows down the command. Cancelling ctx, or an error of a
// writer, kills the command's process group.
func (c *Client) ExecStream(ctx context.Context, id string, in Exec, stdout, stderr io.Writer) (*Exit, error) {
	cl, err := post(in, Version, "sandboxes", id, "exec", "stream")
	if err != nil {
		return nil, err
	}
	s, err := c.listen(ctx, cl)
	if err != nil {
		return nil, err
	}
	defer s.close()
	writers := map[string]io.Writer{"stdout": stdout, "stderr": stderr}
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
		switch name {
		case "stdout", "stderr":
			var o Output
			if err := decodeEvent(data, &o); err != nil {
				return nil, err
			}
			raw, err := o.Bytes()
			if err != nil {
				return nil, err
			}
			if w := writers[name]; w != nil {
				if _, err := w.Write(raw); err != nil {
					return nil, fmt.Errorf("write %s: %w", name, err)
				}
			}
		case "exit":
			exit := new(Exit)
			return exit, decodeEvent(data, exit)
		case "error":
			return nil, streamError(data)
		}
	}
}

// Bytes returns the exact bytes of the output.
func (o Output) Bytes() ([]byte, error) { return decodeData(o.Data, o.Encoding) }

// encodeData is the inverse of decodeData: UTF-8 stays text, anything else becomes
// base64.
func encodeData(p []byte) Output {
	if utf8.Valid(p) {
		return Output{Data: string(p)}
	}
	return Output{Data: base64.StdEncoding.EncodeToString(p), Encoding: "base64"}
}

func decodeData(data, encoding string) ([]byte, error) {
	switch encoding {
	case "":
		return []byte(data), nil
	case "base64":
		raw, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, fmt.Errorf("decode output: %w", err)
		}
		return raw, nil
	}
	return nil, fmt.Errorf("output in an unknown encoding %q", encoding)
}

// LogQuery selects lines of a log. The zero value selects all output of the
// template's start command.
type LogQuery struct {
	Stream string // stdout, stderr, both or console; "" is both
	Tail   int    // at most this many of the existing lines; 0: all
}

func (q LogQuery) call(id string) call {
	cl := get(Version, "sandboxes", id, "logs")
	cl.query = url.Values{}
	if q.Stream != "" {
		cl.query.Set("stream", q.Stream)
	}
	if q.Tail > 0 {
		cl.query.Set("tail", strconv.Itoa(q.Tail))
	}
	return cl
}

// Logs returns the existing lines as text. The caller closes it.
func (c *Client) Logs(ctx context.Context, id string, q LogQuery) (io.ReadCloser, error) {
	resp, err := c.do(ctx, q.call(id))
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// FollowLogs calls line with the existing lines and then with new ones, each with
// the name of its stream, until ctx ends, line fails, or the stream ends.
func (c *Client) FollowLogs(ctx context.Context, id string, q LogQuery, line func(stream string, l LogLine) error) error {
	return c.followLines(ctx, q.call(id), line)
}

func (c *Client) followLines(ctx context.Context, cl call, line func(stream string, l LogLine) error) error {
	cl.query.Set("follow", "true")
	s, err := c.listen(ctx, cl)
	if err != nil {
		return err
	}
	defer s.close()
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case name == "error":
			return streamError(data)
		}
		var l LogLine
		if err := decodeEvent(data, &l); err != nil {
			return err
		}
		if err := line(name, l); err != nil {
			return err
		}
	}
}

// EventQuery selects events. The zero value selects the last 100.
type EventQuery struct {
	Tail  *int      // only the last of them, after Since if it is given
	Since time.Time // only events after it
}

func (q EventQuery) call(segments ...string) call {
	cl := get(segments...)
	cl.query = url.Values{}
	if q.Tail != nil {
		cl.query.Set("tail", strconv.Itoa(*q.Tail))
	}
	if !q.Since.IsZero() {
		cl.query.Set("since", Time{q.Since}.String())
	}
	return cl
}

// Events returns a sandbox's events, oldest first.
func (c *Client) Events(ctx context.Context, id string, q EventQuery) ([]Event, error) {
	out, err := into[[]Event](ctx, c, q.call(Version, "sandboxes", id, "events"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// The delays before a broken stream is opened again.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
)

// FollowEvents iterates over the selected events and then over new ones, oldest
// first, until the sandbox is deleted or ctx ends. If the stream breaks, it
// continues where it was, on another replica if necessary, without gaps or
// duplicates. It yields at most one error, as the last element: the sandbox cannot
// be followed, or ctx has ended.
func (c *Client) FollowEvents(ctx context.Context, id string, q EventQuery) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		begun, pause := false, firstPause
		for {
			err := c.followEvents(ctx, id, &q, func(e Event) bool {
				pause = firstPause
				return yield(e, nil)
			}, &begun)
			switch {
			case errors.Is(err, errEnough):
				return
			case ctx.Err() != nil:
				yield(Event{}, ctx.Err())
				return
			case begun && StatusOf(err) == http.StatusNotFound:
				return // it was deleted
			case err != nil && !passing(err, begun):
				yield(Event{}, err)
				return
			}
			sleep(ctx, pause)
			pause = min(2*pause, longPause)
		}
	}
}

// errEnough means that the reader has stopped iterating.
var errEnough = errors.New("enough")

// passing reports whether an error may be temporary. Before a stream was ever
// opened, only a service that is starting or electing a leader is waited for.
func passing(err error, begun bool) bool {
	status := StatusOf(err)
	if !begun {
		return status == http.StatusServiceUnavailable
	}
	return status == 0 || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

func (c *Client) followEvents(ctx context.Context, id string, q *EventQuery, yield func(Event) bool, begun *bool) error {
	cl := q.call(Version, "sandboxes", id, "events")
	cl.query.Set("follow", "1")
	s, err := c.listen(ctx, cl)
	if err != nil {
		return err
	}
	defer s.close()
	*begun = true
	for {
		name, data, err := s.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case name == "error":
			return streamError(data)
		case name != "ev":
			continue
		}
		var e Event
		if err := decodeEvent(data, &e); err != nil {
			return err
		}
		q.Since, q.Tail = e.TS.Time, nil
		if !yield(e) {
			return errEnough
		}
	}
}
