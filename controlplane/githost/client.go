package githost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
)

const (
	apiVersion = "2022-11-28"
	// maxAnswer bounds an answer of GitHub, in bytes: a page of 100 repositories has
	// about 600 KB.
	maxAnswer = 8 << 20
	// maxPause bounds for how long GitHub is believed to refuse calls.
	maxPause = time.Hour
	// unsaidPause is for a refusal that names no time, as GitHub's documentation asks.
	unsaidPause = time.Minute
)

// client calls the API of GitHub.
type client struct {
	app   App
	http  *http.Client
	clock func() time.Time

	mu     sync.Mutex
	paused map[string]time.Time // by whose limit it is: until when GitHub refuses calls
	tokens map[string]token
}

func newClient(cfg Config, clock func() time.Time) *client {
	transport := cfg.Transport
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: cfg.Timeout, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: 30 * time.Second,
		}
	}
	return &client{
		app: *cfg.App, clock: clock, paused: map[string]time.Time{}, tokens: map[string]token{},
		http: &http.Client{Transport: transport, Timeout: cfg.Timeout, CheckRedirect: sameHost},
	}
}

// sameHost follows a redirect of a renamed repository, and none that leads elsewhere.
func sameHost(r *http.Request, via []*http.Request) error {
	if len(via) > 3 || r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
		return http.ErrUseLastResponse
	}
	return nil
}

// request is one call.
type request struct {
	method string
	url    string // below the API; or whole, with https://
	auth   string // the Authorization header
	limit  string // whose rate limit it counts against; "": that of a person, of whom no other call is
	in     any    // nil: no body
}

// answerError is an answer of GitHub that is no success.
type answerError struct {
	status  int
	message string
}

func (e *answerError) Error() string {
	return fmt.Sprintf("github answered %d: %s", e.status, e.message)
}

// answered is the status of GitHub's refusal that err comes from, 0: there was none.
func answered(err error) int {
	var a *answerError
	if errors.As(err, &a) {
		return a.status
	}
	return 0
}

// do makes a call and decodes the answer into out unless that is nil. Its error is an
// *apierror.Error.
func (c *client) do(ctx context.Context, q request, out any) error {
	if err := c.refused(q.limit); err != nil {
		return err
	}
	var body io.Reader
	if q.in != nil {
		raw, err := json.Marshal(q.in)
		if err != nil {
			return fmt.Errorf("encode a request to github: %w", err)
		}
		body = bytes.NewReader(raw)
	}
	target := q.url
	if strings.HasPrefix(target, "/") {
		target = c.app.API + target
	}
	r, err := http.NewRequestWithContext(ctx, q.method, target, body)
	if err != nil {
		return fmt.Errorf("build a request to github: %w", err)
	}
	r.Header.Set("Accept", "application/vnd.github+json")
	if strings.HasPrefix(target, c.app.Web+"/login/") {
		r.Header.Set("Accept", "application/json") // this path knows no other
	}
	r.Header.Set("X-GitHub-Api-Version", apiVersion)
	r.Header.Set("User-Agent", "Berth")
	if q.auth != "" {
		r.Header.Set("Authorization", q.auth)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return unreachable(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return unreachable(err)
	case len(raw) > maxAnswer:
		return unreachable(fmt.Errorf("its answer has more than %d bytes", maxAnswer))
	case resp.StatusCode < 200 || resp.StatusCode >= 300:
		return c.failure(q.limit, resp, raw)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return unreachable(fmt.Errorf("decode its answer: %w", err))
	}
	return nil
}

// unreachable is the error where GitHub does not answer, or nothing sensible.
func unreachable(err error) error {
	return &apierror.Error{Code: apierror.EBadGateway, Message: "github unreachable", RetryAfter: 5 * time.Second, Err: err}
}

// errBusy is the error while GitHub refuses calls because there were too many.
var errBusy = &apierror.Error{Code: apierror.EUnavailable, Message: "github rate limit reached"}

func busy(wait time.Duration, cause error) error {
	e := errBusy.With("github allows no more calls for now", cause)
	e.RetryAfter = max(wait, time.Second)
	return e
}

// refused is the error of a call that GitHub would refuse: calls during a limit make it
// longer.
func (c *client) refused(limit string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until, ok := c.paused[limit]
	if wait := until.Sub(c.clock()); ok && wait > 0 {
		return busy(wait, nil)
	}
	delete(c.paused, limit)
	return nil
}

// failure is the error for an answer that is no success.
func (c *client) failure(limit string, resp *http.Response, raw []byte) error {
	var said struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(raw, &said) // what is no JSON has no message
	cause := &answerError{status: resp.StatusCode, message: oneLine(said.Message, 200)}
	if wait, ok := c.limited(resp, said.Message); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if limit != "" {
			c.paused[limit] = c.clock().Add(wait)
		}
		return busy(wait, cause)
	}
	switch status := resp.StatusCode; {
	case status == http.StatusUnauthorized:
		return &apierror.Error{Code: apierror.EBadGateway, Message: "github refused the app's credential", Err: cause}
	case status == http.StatusNotFound || status == http.StatusGone:
		return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "github does not know it, or does not show it", Err: cause}
	case status == http.StatusForbidden:
		return &apierror.Error{Code: apierror.EConflict, Message: "github refused", Detail: cause.message, Err: cause}
	case status >= 400 && status < 500:
		return &apierror.Error{Code: apierror.EUnprocessable, Message: "github refused", Detail: cause.message, Err: cause}
	}
	return unreachable(cause)
}

// limited reports whether an answer is about a rate limit, and for how long. GitHub says
// so with a 403 or 429, and for secondary limits only in Retry-After or the text.
func (c *client) limited(resp *http.Response, message string) (time.Duration, bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusForbidden {
		return 0, false
	}
	h := resp.Header
	if seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, maxPause), true
	}
	if h.Get("X-Ratelimit-Remaining") == "0" {
		if reset, err := strconv.ParseInt(h.Get("X-Ratelimit-Reset"), 10, 64); err == nil {
			return min(max(time.Unix(reset, 0).Sub(c.clock()), time.Second), maxPause), true
		}
		return unsaidPause, true
	}
	return unsaidPause, resp.StatusCode == http.StatusTooManyRequests || strings.Contains(strings.ToLower(message), "rate limit")
}
