package appapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/berth-cloud/berth/plainjson"
)

// Dial connects to a guest's Port.
type Dial func(ctx context.Context) (net.Conn, error)

// Client calls one guest. Every call has a connection of its own: a guest may be
// paused, restored or gone between two calls, and a kept connection with it.
type Client struct{ http *http.Transport }

// NewClient returns a client of the guest that dial reaches.
func NewClient(dial Dial) *Client {
	return &Client{http: &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 16 << 10,
	}}
}

// The guest is not trusted: maxAnswer bounds what is read of an answer, maxText what of
// it comes into an error. In bytes.
const (
	maxAnswer = 1 << 20
	maxText   = 1 << 10
)

// Refusal is guestapp's refusal of a call.
type Refusal struct {
	Status int // HTTP
	Body   Error
}

func (r *Refusal) Error() string { return "guestapp: " + r.Body.Error }

// HasCode reports whether an error is a refusal with a code.
func HasCode(err error, code string) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && r.Body.Code == code
}

// Status returns the state of the build and of the app.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return c.status(ctx, http.MethodGet, PathStatus, nil)
}

// PutSource hands over the tar.gz of an app's source.
func (c *Client) PutSource(ctx context.Context, tarball io.Reader) error {
	resp, err := c.do(ctx, http.MethodPut, PathSource, tarball)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// PutCache hands over the caches of an earlier build.
func (c *Client) PutCache(ctx context.Context, cache io.Reader) error {
	resp, err := c.do(ctx, http.MethodPut, PathCache, cache)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Cache reads the caches of the build that has succeeded; the caller closes it. What is
// cut off ends with an error, and not with io.EOF.
func (c *Client) Cache(ctx context.Context) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, PathCache, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Build begins a build, unless the one with its ID was begun before.
func (c *Client) Build(ctx context.Context, b Build) (Status, error) {
	return c.status(ctx, http.MethodPut, PathBuild, b)
}

// StopBuild ends the build that runs.
func (c *Client) StopBuild(ctx context.Context) (Status, error) {
	return c.status(ctx, http.MethodPost, PathBuildStop, struct{}{})
}

// Run starts the app, unless it was started with the same ID before.
func (c *Client) Run(ctx context.Context, r Run) (Status, error) {
	return c.status(ctx, http.MethodPut, PathRun, r)
}

// StopRun ends the app's processes, within StopGrace.
func (c *Client) StopRun(ctx context.Context) (Status, error) {
	return c.status(ctx, http.MethodPost, PathRunStop, struct{}{})
}

// LogQuery says what is read of a log.
type LogQuery struct {
	From   int64 // offset in bytes
	Tail   int   // lines at most of those that there are; 0: all. Not with From
	Follow bool  // until the build, or the guest, ends
}

// BuildLog reads the build's log; the caller closes it. offset is that of its first
// byte.
func (c *Client) BuildLog(ctx context.Context, q LogQuery) (log io.ReadCloser, offset int64, err error) {
	return c.log(ctx, PathBuildLog, q)
}

// RunLog reads what the app has written; the caller closes it.
func (c *Client) RunLog(ctx context.Context, q LogQuery) (log io.ReadCloser, offset int64, err error) {
	return c.log(ctx, PathRunLog, q)
}

func (c *Client) log(ctx context.Context, path string, q LogQuery) (io.ReadCloser, int64, error) {
	v := url.Values{}
	if q.From > 0 {
		v.Set("from", strconv.FormatInt(q.From, 10))
	}
	if q.Tail > 0 {
		v.Set("tail", strconv.Itoa(q.Tail))
	}
	if q.Follow {
		v.Set("follow", "true")
	}
	resp, err := c.do(ctx, http.MethodGet, path+"?"+v.Encode(), nil)
	if err != nil {
		return nil, 0, err
	}
	offset, err := strconv.ParseInt(resp.Header.Get(HeaderOffset), 10, 64)
	if err != nil || offset < 0 {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("guestapp %s: it names no offset", path)
	}
	return resp.Body, offset, nil
}

func (c *Client) status(ctx context.Context, method, path string, in any) (Status, error) {
	var st Status
	var body io.Reader
	if in != nil {
		raw, err := plainjson.Marshal(in)
		if err != nil {
			return st, fmt.Errorf("guestapp %s: %w", path, err)
		}
		body = bytes.NewReader(raw)
	}
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&st); err != nil {
		return st, errors.New(shorten("guestapp " + path + ": decode answer: " + err.Error()))
	}
	return st, nil
}

// do makes a request. A refusal is a *Refusal; the caller closes the body of anything
// else.
func (c *Client) do(ctx context.Context, method, target string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+target, body)
	if err != nil {
		return nil, fmt.Errorf("guestapp %s: %w", target, err)
	}
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("guestapp %s: %w", req.URL.Path, errors.Join(context.Cause(ctx), err))
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // the context no longer ends its body
		resp.Body.Close()
		return nil, fmt.Errorf("guestapp %s: it switches protocols", req.URL.Path)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // a part says as much
	refusal := &Refusal{Status: resp.StatusCode}
	if json.Unmarshal(raw, &refusal.Body) != nil || refusal.Body.Error == "" {
		refusal.Body.Error = "status " + strconv.Itoa(resp.StatusCode)
	}
	refusal.Body.Error, refusal.Body.Code = shorten(refusal.Body.Error), shorten(refusal.Body.Code)
	return nil, refusal
}

func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "") }
