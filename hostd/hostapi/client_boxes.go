package hostapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Hibernate writes a running box's memory to disk and ends its VMM.
func (c *Client) Hibernate(ctx context.Context, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/hibernate", struct{}{}, &out)
}

// Wake lets a hibernated box go on. A running box is left as it is.
func (c *Client) Wake(ctx context.Context, id string) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPost, PathBoxes+"/"+id+"/wake", struct{}{}, &out)
}

// UpdateBox changes what may change while a box lives.
func (c *Client) UpdateBox(ctx context.Context, id string, u BoxUpdate) (Box, error) {
	var out Box
	return out, c.do(ctx, http.MethodPatch, PathBoxes+"/"+id, u, &out)
}

// Ports returns what in the guest listens.
func (c *Client) Ports(ctx context.Context, id string) ([]Port, error) {
	var out []Port
	return out, c.do(ctx, http.MethodGet, PathBoxes+"/"+id+"/ports", nil, &out)
}

// The parts of a guest's file system that FS addresses.
const (
	FSFile = ""     // the bytes of a file: GET, PUT, DELETE
	FSStat = "stat" // GET → guestapi.FileStat
	FSDir  = "dir"  // GET → guestapi.Directory, POST
)

// FS passes one request on to the guest's file system and returns its answer,
// whose body the caller closes; a refusal is a *Error, with CodeGuestSays and
// the guest's status where the guest refused. The body is streamed in and out;
// its length is that of the header's Content-Length, or not known. An upload
// whose body or context ends early leaves the old file.
func (c *Client) FS(ctx context.Context, method, id, sub string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	path := PathBoxes + "/" + id + "/fs"
	if sub != FSFile {
		path += "/" + sub
	}
	r := request{method: method, path: path + "?" + query.Encode(), header: http.Header{}, body: body, length: -1}
	for k, v := range header {
		r.header[k] = v
	}
	if raw := header.Get("Content-Length"); raw != "" {
		n, err := strconv.ParseInt(raw, 10, 64)
		if err != nil || n < 0 {
			return nil, &Error{Code: CodeInvalid, Message: fmt.Sprintf("content length %q", raw), HTTPStatus: http.StatusBadRequest}
		}
		r.length = n
		r.header.Del("Content-Length")
	}
	if method == http.MethodPut {
		// A refusal comes before the body is sent, not in the middle of it.
		r.header.Set("Expect", "100-continue")
	}
	return c.stream(ctx, r)
}

// LogQuery says which lines are asked for.
type LogQuery struct {
	Stream string // stdout, stderr, both or console
	Tail   int    // at most so many lines of what is there; 0: all that is kept
}

func (q LogQuery) values() url.Values {
	v := url.Values{"stream": {q.Stream}}
	if q.Tail > 0 {
		v.Set("tail", strconv.Itoa(q.Tail))
	}
	return v
}

// LogLine is one line of a followed log, without its line end. A very long one
// comes in pieces, of which all but the last are partial.
type LogLine struct {
	Stream  string    `json:"stream"`      // stdout, stderr, console or build
	Time    time.Time `json:"ts,omitzero"` // unknown of a console's
	Line    string    `json:"line"`
	Partial bool      `json:"partial,omitempty"`
}

// Logs returns the lines that are there as text. The caller closes it.
func (c *Client) Logs(ctx context.Context, id string, q LogQuery) (io.ReadCloser, error) {
	return c.text(ctx, PathBoxes+"/"+id+"/logs?"+q.values().Encode())
}

// FollowLogs returns the lines that are there and those to come. The caller
// closes it.
func (c *Client) FollowLogs(ctx context.Context, id string, q LogQuery) (*Follower[LogLine], error) {
	values := q.values()
	values.Set("follow", "true")
	return follow[LogLine](ctx, c, PathBoxes+"/"+id+"/logs?"+values.Encode())
}

func (c *Client) text(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.stream(ctx, request{method: http.MethodGet, path: path})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
