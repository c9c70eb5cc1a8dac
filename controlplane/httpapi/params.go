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

// keySandboxID is the context key of the sandbox's id, for the access log.
const keySandboxID = "berth.sandbox_id"

// keyFirstAnswer is the context key of the body of the first answer with an idempotency key.
const keyFirstAnswer = "berth.first_answer"

// maxID is longer than any id, name or prefix of the service.
const maxID = 128

// unescapeParams decodes the parameters of a path that was matched as it was sent. The
// router itself would decode them as parts of a query, where a plus sign is a space, and
// "a+b%2Cc" would name another volume than "a+b,c".
func unescapeParams(c *gin.Context) {
	if c.Request.URL.RawPath == "" {
		return // the router has matched the decoded path
	}
	for i := range c.Params {
		if v, err := url.PathUnescape(c.Params[i].Value); err == nil { // net/http refuses what cannot be decoded
			c.Params[i].Value = v
		}
	}
}

// pathID returns a path parameter. If it has characters that no id has, it is
// unknown: 404.
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

// sandboxParam is pathID for a sandbox's id, which it adds to the access log.
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

// idempotency returns what makes a create repeatable, without the digest of its body. The
// key is the caller's workspace's, even if the request creates something elsewhere.
func idempotency(c *gin.Context) (core.Idempotency, error) {
	key, err := idempotencyKey(c)
	caller := callerOf(c)
	of := caller.WorkspaceID
	if of == "" && caller.ViaJWT { // who is a member of no organization
		of = caller.UserID
	}
	if key == "" {
		return core.Idempotency{}, err
	}
	i := core.Idempotency{Key: key, Owner: of, By: core.Sender(caller), Body: new([]byte)}
	c.Set(keyFirstAnswer, i.Body)
	return i, nil
}

// listOptions parses limit and cursor.
func listOptions(c *gin.Context) (core.ListOptions, error) {
	o := core.ListOptions{Limit: core.DefaultLimit}
	q, err := queryOf(c, "limit", "cursor")
	if err != nil {
		return o, err
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

// linkNext adds the header that names the next page. Its target is relative, so that
// it is valid behind any proxy and under any name. filters are the names and values
// of the list's other parameters; empty values were not given.
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
