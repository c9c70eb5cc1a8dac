package guestclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/berth-cloud/berth/timescale"
)

// maxHead bounds the header of an answer, in bytes: the guest is not trusted. In
// short lines it takes fifty times that, for as long as its body lasts.
const maxHead = 8 << 10

// continueWait is how long a body waits for the guest's answer to Expect:
// 100-continue; then it is sent, in case the answer was lost.
var continueWait = timescale.Limit(10 * time.Second)

// Transport passes requests on to the guest as they are, whatever host their URL
// names: for a relay that does not interpret them. Bodies stream both ways. Each
// request has a connection of its own, which ends with the request's context; the
// guest then stops its work on it.
func (c *Client) Transport() http.RoundTripper { return c.http }

func newTransport(dial Dial) *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ExpectContinueTimeout:  continueWait,
		MaxResponseHeaderBytes: maxHead,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}
}

// target is a route with its query.
func target(path string, query url.Values) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// stream sends a request by the transport. A refusal is an *Error; the caller
// closes the body of anything else.
func (c *Client) stream(req *http.Request) (*http.Response, error) {
	req.Header.Set("User-Agent", "")
	resp, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("guest %s: %w", req.URL.Path, errors.Join(context.Cause(req.Context()), err))
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // the context no longer ends its body
		resp.Body.Close()
		return nil, fmt.Errorf("guest %s: it switches protocols", req.URL.Path)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		defer resp.Body.Close()
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return nil, asError(resp.StatusCode, raw)
	}
	return resp, nil
}

// get reads a JSON answer of up to limit bytes.
func (c *Client) get(ctx context.Context, target string, limit int64, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+target, nil)
	if err != nil {
		return err
	}
	resp, err := c.stream(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	limited := &io.LimitedReader{R: resp.Body, N: limit}
	if err := json.NewDecoder(limited).Decode(into); err != nil {
		if limited.N <= 0 {
			err = fmt.Errorf("answer over %d bytes", limit)
		}
		return fmt.Errorf("guest %s: decode answer: %w", req.URL.Path, errors.Join(context.Cause(ctx), err))
	}
	return nil
}
