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
	"time"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
)

// queryOf reads the query and refuses what can be read in two ways.
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

// integerOf is a parameter's number, or nil where it is not given.
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

// booleanOf is false where the parameter is not given.
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

// fileTarget reads what every file route has: the sandbox and the path. What is
// wrong with the path the use case says, once it is known that the caller may
// see the sandbox.
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
	return passOn(c, f.Status, f.Body)
}

// passOn sends a body of a host as it comes, whatever its size. A client that
// stalls ends it.
func passOn(c *gin.Context, status int, body io.Reader) error {
	c.Status(status)
	if c.Request.Method == http.MethodHead || status == http.StatusNotModified {
		c.Writer.WriteHeaderNow()
		return nil
	}
	control := http.NewResponseController(c.Writer)
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(stallTimeout))
			if _, werr := c.Writer.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler) // the client has gone
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			c.Writer.WriteHeaderNow() // of an empty body
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
	body := &stream{c: c, limit: math.MaxInt64}
	isNew, err := a.cfg.Files.Write(c.Request.Context(), callerOf(c), id, q.Get("path"), q.Get("mode"), body, c.Request.ContentLength)
	switch {
	case err != nil && body.failure() != nil:
		return body.failure()
	case err != nil:
		// A client that sends first and reads afterwards sees the refusal. A body
		// of which some was passed on may be read by the other side still.
		if c.GetHeader("Expect") == "" && !body.begun.Load() {
			_, _ = io.CopyN(io.Discard, body, maxDrain)
		}
		return err
	case isNew:
		c.Status(http.StatusCreated)
		c.Writer.WriteHeaderNow()
		return nil
	}
	return noContent(c)
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
		_, err := out.Write(bytes.TrimSuffix(marshal(s), []byte("\n")))
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
