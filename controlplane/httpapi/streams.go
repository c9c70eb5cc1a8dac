package httpapi

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
)

// execStream runs a command and streams its output.
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
	release() // the host has the input
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

// fail sends an error event if the stream failed and the client is still there. After a
// write that failed nothing is sent.
func (e *events) fail(c *gin.Context, err error) {
	var own *apierror.Error
	switch {
	case err == nil, c.Request.Context().Err() != nil:
	case errors.As(err, &own):
		_ = e.send("error", "", api.ErrorBody{Error: own.Message, Detail: own.Detail})
	default:
		_ = e.send("error", "", api.ErrorBody{Error: "agent unreachable", Detail: "the stream broke off"})
	}
}

// maxLogTail is more lines than any log keeps.
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
	var following bool
	if in.Tail, following, err = linesOf(q); err != nil {
		return err
	}
	if !following {
		text, err := a.cfg.Logs.Text(c.Request.Context(), callerOf(c), id, in)
		if err != nil {
			return err
		}
		defer text.Close()
		c.Header("Content-Type", "text/plain; charset=utf-8")
		return passOn(c, http.StatusOK, text, false)
	}
	lines, err := a.cfg.Logs.Follow(c.Request.Context(), callerOf(c), id, in)
	if err != nil {
		return err
	}
	return followLines(c, lines)
}

// linesOf parses which lines of a log are requested.
func linesOf(q url.Values) (tail int, following bool, err error) {
	n, err := integerOf(q, "tail", 1, math.MaxInt32)
	if err != nil {
		return 0, false, err
	}
	if n != nil {
		tail = min(*n, maxLogTail)
	}
	following, err = booleanOf(q, "follow")
	return tail, following, err
}

// logs are the logs of what is known by an id: of databases, and of apps.
type logs interface {
	Logs(ctx context.Context, c core.Caller, id string, tail int) (io.ReadCloser, error)
	FollowLogs(ctx context.Context, c core.Caller, id string, tail int) (core.Follower[sandbox.LogLine], error)
}

// showLines answers with the lines of a log that a request wants.
func showLines(c *gin.Context, of logs, id string) error {
	q, err := queryOf(c, "tail", "follow")
	if err != nil {
		return err
	}
	tail, following, err := linesOf(q)
	if err != nil {
		return err
	}
	if !following {
		text, err := of.Logs(c.Request.Context(), callerOf(c), id, tail)
		if err != nil {
			return err
		}
		defer text.Close()
		c.Header("Content-Type", "text/plain; charset=utf-8")
		return passOn(c, http.StatusOK, text, false)
	}
	lines, err := of.FollowLogs(c.Request.Context(), callerOf(c), id, tail)
	if err != nil {
		return err
	}
	return followLines(c, lines)
}

func followLines(c *gin.Context, lines core.Follower[sandbox.LogLine]) error {
	return follow(c, lines, func(e *events, l sandbox.LogLine) error { return e.send(l.Stream, "", l.LogLine) })
}

// follow sends events until there are no more or the client is gone. For HEAD it
// sends only the header.
func follow[T any](c *gin.Context, from core.Follower[T], send func(*events, T) error) error {
	defer from.Close()
	e := beginEvents(c)
	defer e.end()
	if c.Request.Method == http.MethodHead {
		return nil
	}
	// The host's connection may be quiet for long. The server notices that the
	// client has left and ends the context.
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
			return nil // the client is gone
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

// eventQuery parses tail and since, or Last-Event-ID, which takes precedence.
func eventQuery(c *gin.Context, q url.Values) (in api.EventQuery, err error) {
	if in.Tail, err = integerOf(q, "tail", 0, math.MaxInt32); err != nil {
		return in, err
	}
	if in.Tail != nil {
		*in.Tail = min(*in.Tail, core.MaxEventTail) // no more is kept
	}
	// A browser that reconnects sends the last id it has seen, to the same URL. It has
	// the tail already, and wants all that came after it.
	if last := c.GetHeader("Last-Event-ID"); last != "" {
		q, in.Tail = url.Values{"since": {last}}, nil
	}
	in.Since, err = timeOf(q, "since")
	return in, err
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
