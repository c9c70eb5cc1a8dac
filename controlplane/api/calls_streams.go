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

// ExecStream runs a command and writes what it writes as it comes; either
// writer may be nil. A writer that is slow slows the command. Cancelling ctx,
// or a writer that fails, kills the command's process group.
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

// Bytes returns exactly what the command wrote.
func (o Output) Bytes() ([]byte, error) { return decodeData(o.Data, o.Encoding) }

// encodeData is the reverse of Bytes: text as it is, anything else in base64.
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

// LogQuery says which lines are asked for. The zero value is all that the
// template's start command wrote.
type LogQuery struct {
	Stream string // stdout, stderr, both or console; "" is both
	Tail   int    // at most so many of the lines that are there; 0: all
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

// Logs returns the lines that are there, as text. The caller closes it.
func (c *Client) Logs(ctx context.Context, id string, q LogQuery) (io.ReadCloser, error) {
	resp, err := c.do(ctx, q.call(id))
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// FollowLogs gives the lines that are there and those to come, each with the
// stream it is of, until ctx ends, line fails, or the stream ends.
func (c *Client) FollowLogs(ctx context.Context, id string, q LogQuery, line func(stream string, l LogLine) error) error {
	cl := q.call(id)
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

// EventQuery says which events are asked for; the zero value is the last 100.
type EventQuery struct {
	Tail  *int      // the last so many; of those after Since where it is given
	Since time.Time // only what came after it
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

// Events reads a sandbox's events, oldest first.
func (c *Client) Events(ctx context.Context, id string, q EventQuery) ([]Event, error) {
	out, err := into[[]Event](ctx, c, q.call(Version, "sandboxes", id, "events"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// How long to wait before a stream that broke off is taken up again.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 5 * time.Second
)

// FollowEvents gives the events asked for and then those to come, oldest first,
// until the sandbox is deleted or ctx ends. A stream that breaks off is taken
// up where it was, on another replica if need be, without a gap or a double. It
// gives one error at most, as the last thing: when the sandbox cannot be
// followed at all, or ctx ends.
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
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
			pause = min(2*pause, longPause)
		}
	}
}

// errEnough means that the reader wants no more.
var errEnough = errors.New("enough")

// passing reports whether what went wrong may be over soon. Before the stream
// has ever begun only a service that is starting or electing is waited for.
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
