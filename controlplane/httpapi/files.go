package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/stall"
)

// queryOf parses the query. It refuses a malformed one, and repeated parameters
// among names.
func queryOf(c *gin.Context, names ...string) (url.Values, error) {
	q, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return nil, invalid("invalid query", "the query string is malformed")
	}
	for _, name := range names {
		if len(q[name]) > 1 {
			return nil, invalid("invalid "+name, name+" is given more than once")
		}
	}
	return q, nil
}

// filterOf returns the value by which a list is filtered, or "" if it is absent. An empty
// one is refused: a script whose variable is not set would get everybody's.
func filterOf(q url.Values, name string) (string, error) {
	if q.Has(name) && q.Get(name) == "" {
		return "", invalid("invalid "+name, name+" is empty; leave it out for all")
	}
	return q.Get(name), nil
}

// timeOf returns a parameter's time, or the zero time if it is absent. In a query, a
// plus sign that is not escaped means a space, which no RFC 3339 time has: it is that
// of an offset such as +00:00.
func timeOf(q url.Values, name string) (time.Time, error) {
	if !q.Has(name) {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, strings.ReplaceAll(q.Get(name), " ", "+"))
	if err != nil {
		return time.Time{}, invalid("invalid "+name, "want an RFC 3339 time such as 2026-11-20T13:05:09.412Z")
	}
	return t.UTC(), nil
}

// integerOf returns a parameter's number, or nil if it is absent.
func integerOf(q url.Values, name string, least, most int) (*int, error) {
	if !q.Has(name) {
		return nil, nil
	}
	n, err := strconv.ParseUint(q.Get(name), 10, 31)
	if err != nil || int(n) < least || int(n) > most {
		return nil, invalid("invalid "+name, fmt.Sprintf("%s must be an integer from %d to %d", name, least, most))
	}
	out := int(n)
	return &out, nil
}

// booleanOf returns a parameter's value, false if it is absent.
func booleanOf(q url.Values, name string) (bool, error) {
	if !q.Has(name) {
		return false, nil
	}
	switch q.Get(name) {
	case "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	}
	return false, invalid("invalid "+name, name+" is true or false")
}

// fileTarget returns the sandbox's id and the query of a file route. The use case
// checks the path, after it has checked that the caller may see the sandbox.
func fileTarget(c *gin.Context, names ...string) (id string, q url.Values, err error) {
	if id, err = sandboxParam(c); err != nil {
		return "", nil, err
	}
	q, err = queryOf(c, append(names, "path")...)
	return id, q, err
}

func (a *API) readFile(c *gin.Context) error {
	id, q, err := fileTarget(c)
	if err != nil {
		return err
	}
	f, err := a.cfg.Files.Read(c.Request.Context(), callerOf(c), id, q.Get("path"), c.Request.Header)
	if err != nil {
		return err
	}
	defer f.Body.Close()
	for k, v := range f.Header {
		c.Writer.Header()[k] = v
	}
	return passOn(c, f.Status, f.Body, false)
}

// passOn streams a host's body of any size to the client. It disconnects a client
// that stalls. If flushed is set, it sends each piece at once.
func passOn(c *gin.Context, status int, body io.Reader, flushed bool) error {
	c.Status(status)
	if c.Request.Method == http.MethodHead || status == http.StatusNotModified {
		c.Writer.WriteHeaderNow()
		return nil
	}
	out := stall.New(c.Writer, stallTimeout)
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, werr := out.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler) // the client is gone
			}
			if flushed {
				_ = out.FlushError() // it fails as the next write will
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			c.Writer.WriteHeaderNow() // the body may be empty
			return nil
		case err != nil:
			return &apierror.Error{Code: apierror.EBadGateway, Message: "agent unreachable", Detail: "the answer broke off", Err: err}
		}
	}
}

func (a *API) writeFile(c *gin.Context) error {
	id, q, err := fileTarget(c, "mode")
	if err != nil {
		return err
	}
	if q.Has("mode") && q.Get("mode") == "" {
		return invalid("invalid mode", "mode is octal, such as 0644")
	}
	body := newStream(c, math.MaxInt64)
	defer body.leave()
	isNew, err := a.cfg.Files.Write(c.Request.Context(), callerOf(c), id, q.Get("path"), q.Get("mode"), body, c.Request.ContentLength)
	switch {
	case err != nil && body.failure() != nil:
		return body.failure()
	case err != nil:
		drain(c, body)
		return err
	case isNew:
		c.Status(http.StatusCreated)
		c.Writer.WriteHeaderNow()
		return nil
	}
	return noContent(c)
}

// drain reads a refused body, so that a client that reads only after sending sees the
// refusal. But if part of it was passed on, another goroutine may still read it.
func drain(c *gin.Context, body *stream) {
	if c.GetHeader("Expect") == "" && !body.begun.Load() {
		_, _ = io.CopyN(io.Discard, body, maxDrain)
	}
}

func (a *API) removeFile(c *gin.Context) error {
	id, q, err := fileTarget(c, "recursive")
	if err != nil {
		return err
	}
	recursive, err := booleanOf(q, "recursive")
	if err != nil {
		return err
	}
	if err := a.cfg.Files.Remove(c.Request.Context(), callerOf(c), id, q.Get("path"), recursive); err != nil {
		return err
	}
	return noContent(c)
}

func (a *API) statFile(c *gin.Context) error {
	id, q, err := fileTarget(c)
	if err != nil {
		return err
	}
	st, err := a.cfg.Files.Stat(c.Request.Context(), callerOf(c), id, q.Get("path"))
	if err != nil {
		return err
	}
	return ok(c, st)
}

func (a *API) listDir(c *gin.Context) error {
	id, q, err := fileTarget(c)
	if err != nil {
		return err
	}
	out := &large{c: c}
	out.held.WriteString(`{"path":`)
	out.json(q.Get("path"))
	out.held.WriteString(`,"entries":[`)
	first := true
	err = a.cfg.Files.List(c.Request.Context(), callerOf(c), id, q.Get("path"), func(s api.FileStat) error {
		if !first {
			out.held.WriteByte(',')
		}
		first = false
		_, err := out.Write(bytes.TrimSuffix(core.Marshal(s), []byte("\n")))
		return err
	})
	if err != nil {
		return out.fail(err)
	}
	out.held.WriteString("]}\n")
	out.end()
	return nil
}

func (a *API) makeDir(c *gin.Context) error {
	id, q, err := fileTarget(c)
	if err != nil {
		return err
	}
	if _, _, err := bind[api.Empty](c, maxJSONBody); err != nil {
		return err
	}
	if err := a.cfg.Files.MakeDir(c.Request.Context(), callerOf(c), id, q.Get("path")); err != nil {
		return err
	}
	c.Status(http.StatusCreated)
	c.Writer.WriteHeaderNow()
	return nil
}
