package httpapi

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
)

// keySandboxID is set on routes of one sandbox, for the access log.
const keySandboxID = "berth.sandbox_id"

// maxID is longer than any id, name or prefix of the service.
const maxID = 128

// pathID returns a path parameter. What cannot be an id, whatever its bytes,
// is an unknown one and goes no further: 404.
func pathID(c *gin.Context, name string) (string, error) {
	id := c.Param(name)
	if id == "" || len(id) > maxID {
		return "", apierror.NotFound()
	}
	for i := 0; i < len(id); i++ {
		b := id[i]
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case b == '-', b == '_', b == '.' && i > 0:
		default:
			return "", apierror.NotFound()
		}
	}
	return id, nil
}

// sandboxParam is pathID for a sandbox, named in the access log.
func sandboxParam(c *gin.Context) (string, error) {
	id, err := pathID(c, "id")
	if err == nil {
		c.Set(keySandboxID, id)
	}
	return id, err
}

// idempotencyKey returns the Idempotency-Key of a create, or "" without one.
func idempotencyKey(c *gin.Context) (string, error) {
	values := c.Request.Header.Values(api.HeaderIdempotencyKey)
	if len(values) == 0 {
		return "", nil
	}
	key := values[0]
	switch {
	case len(values) > 1:
		return "", invalid("invalid idempotency key", "the header is given more than once")
	case key == "":
		return "", invalid("invalid idempotency key", "the header is empty")
	case strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }):
		return "", invalid("invalid idempotency key", "want printable ASCII characters")
	case len(key) > api.MaxIdempotencyKeyLength:
		return "", invalid("invalid idempotency key", fmt.Sprintf("at most %d characters", api.MaxIdempotencyKeyLength))
	}
	return key, nil
}

// listOptions reads limit and cursor.
func listOptions(c *gin.Context) (core.ListOptions, error) {
	o := core.ListOptions{Limit: core.DefaultLimit}
	q, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return o, invalid("invalid query", "the query string is malformed")
	}
	for _, name := range []string{"limit", "cursor"} {
		if len(q[name]) > 1 {
			return o, invalid("invalid "+name, name+" is given more than once")
		}
	}
	if q.Has("limit") {
		n, err := strconv.ParseUint(q.Get("limit"), 10, 16)
		if err != nil || n < 1 || n > core.MaxLimit {
			return o, invalid("invalid limit", fmt.Sprintf("want an integer from 1 to %d", core.MaxLimit))
		}
		o.Limit = int(n)
	}
	o.Cursor = q.Get("cursor")
	const maxCursor = 512
	visible := !strings.ContainsFunc(o.Cursor, func(r rune) bool { return r <= ' ' || r > '~' })
	if len(o.Cursor) > maxCursor || !visible {
		return o, errCursor
	}
	return o, nil
}

var errCursor = invalid("invalid cursor", "want the cursor of a Link header, unchanged")

// linkNext announces the next page. The target is relative, so that it holds
// behind any proxy and under any name of the service. What else the list was asked
// for comes as names and values; those that are empty were not given.
func linkNext(c *gin.Context, o core.ListOptions, next string, filters ...string) {
	if next == "" {
		return
	}
	q := url.Values{"cursor": {next}, "limit": {strconv.Itoa(o.Limit)}}
	for f := range slices.Chunk(filters, 2) {
		if f[1] != "" {
			q.Set(f[0], f[1])
		}
	}
	c.Header("Link", "<"+c.Request.URL.EscapedPath()+"?"+q.Encode()+`>; rel="next"`)
}
