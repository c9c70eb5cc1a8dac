package httpapi

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// execStream runs a command and sends what it writes as it comes.
func (a *API) execStream(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, release, err := a.bindExec(c)
	if err != nil {
		return err
	}
	p, err := a.cfg.Commands.Stream(c.Request.Context(), callerOf(c), id, in, false)
	release() // the host has it
	if err != nil {
		return err
	}
	defer p.Close()
	e := beginEvents(c)
	defer e.end()
	err = pump(p, func(stream string, o api.Output) error { return e.send(stream, "", o) },
		func(x *api.Exit) error { return e.send("exit", "", x) })
	e.fail(c, err)
	return nil
}

// fail says in the stream what went wrong with it, to a client that is there.
func (e *events) fail(c *gin.Context, err error) {
	var own *apierror.Error
	switch {
	case err == nil, e.err != nil, c.Request.Context().Err() != nil:
	case errors.As(err, &own):
		_ = e.send("error", "", api.ErrorBody{Error: own.Message, Detail: own.Detail})
	default:
		_ = e.send("error", "", api.ErrorBody{Error: "agent unreachable", Detail: "the stream broke off"})
	}
}

// maxLogTail is more lines than are kept of any log.
const maxLogTail = 100_000

func (a *API) showLogs(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "stream", "tail", "follow")
	if err != nil {
		return err
	}
	in := api.LogQuery{Stream: "both"}
	if q.Has("stream") {
		in.Stream = q.Get("stream")
	}
	switch in.Stream {
	case "stdout", "stderr", "both", "console":
	default:
		return invalid("invalid stream", "stream is stdout, stderr, both or console")
	}
	tail, err := integerOf(q, "tail", 1, math.MaxInt32)
	if err != nil {
		return err
	}
	if tail != nil {
		in.Tail = min(*tail, maxLogTail)
	}
	following, err := booleanOf(q, "follow")
	if err != nil {
		return err
	}
	if !following {
		text, err := a.cfg.Logs.Text(c.Request.Context(), callerOf(c), id, in)
		if err != nil {
			return err
		}
		defer text.Close()
		c.Header("Content-Type", "text/plain; charset=utf-8")
		return passOn(c, http.StatusOK, text)
	}
	lines, err := a.cfg.Logs.Follow(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return follow(c, lines, func(e *events, l sandbox.LogLine) error {
		return e.send(l.Stream, "", l.LogLine)
	})
}

// follow sends one event after the other until there are no more or the client
// has gone. Over HEAD there is nothing to follow.
func follow[T any](c *gin.Context, from core.Follower[T], send func(*events, T) error) error {
	defer from.Close()
	e := beginEvents(c)
	defer e.end()
	if c.Request.Method == http.MethodHead {
		return nil
	}
	// The host's connection may be quiet for long; the client's end is noticed
	// by the server, which ends the context.
	stop := context.AfterFunc(c.Request.Context(), func() { _ = from.Close() })
	defer stop()
	for {
		v, err := from.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			e.fail(c, err)
			return nil
		}
		if send(e, v) != nil {
			return nil // the client has gone
		}
	}
}

func (a *API) showEvents(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "tail", "since", "follow")
	if err != nil {
		return err
	}
	in, err := eventQuery(c, q)
	if err != nil {
		return err
	}
	following, err := booleanOf(q, "follow")
	if err != nil {
		return err
	}
	if !following {
		found, err := a.cfg.Logs.Events(c.Request.Context(), callerOf(c), id, in)
		if err != nil {
			return err
		}
		return ok(c, orEmpty(found))
	}
	found, err := a.cfg.Logs.FollowEvents(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return follow(c, found, func(e *events, ev api.Event) error {
		return e.send("ev", ev.TS.String(), ev)
	})
}

// eventQuery reads tail and since.
func eventQuery(c *gin.Context, q url.Values) (in api.EventQuery, err error) {
	if in.Tail, err = integerOf(q, "tail", 0, math.MaxInt32); err != nil {
		return in, err
	}
	if in.Tail != nil {
		*in.Tail = min(*in.Tail, core.MaxEventTail) // no more is kept
	}
	since, given := q.Get("since"), q.Has("since")
	// A browser that connects again says itself how far it has come.
	if last := c.GetHeader("Last-Event-ID"); last != "" {
		since, given = last, true
	}
	if given {
		if in.Since, err = time.Parse(time.RFC3339Nano, since); err != nil {
			return in, invalid("invalid since", "want an RFC 3339 time, as an event's ts")
		}
	}
	return in, nil
}

func (a *API) listPorts(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	ports, err := a.cfg.Ports.List(c.Request.Context(), callerOf(c), id)
	if err != nil {
		return err
	}
	return ok(c, orEmpty(ports))
}

func (a *API) addPort(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	in, _, err := bind[api.AddPort](c, maxJSONBody)
	if err != nil {
		return err
	}
	port, err := a.cfg.Ports.Add(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return created(c, port)
}

func (a *API) removePort(c *gin.Context) error {
	id, err := sandboxParam(c)
	if err != nil {
		return err
	}
	q, err := queryOf(c, "port")
	if err != nil {
		return err
	}
	port, err := integerOf(q, "port", 1, 65535)
	switch {
	case err != nil:
		return err
	case port == nil:
		return invalid("port required", "the query parameter port says which")
	}
	if err := a.cfg.Ports.Remove(c.Request.Context(), callerOf(c), id, *port); err != nil {
		return err
	}
	return noContent(c)
}
