package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// client sends batches to the collector. It implements otlptrace.Client.
type client struct {
	settings
	http *http.Client

	life context.Context // ends with abort, and every batch with it
	end  context.CancelFunc
}

var _ otlptrace.Client = (*client)(nil)

func newClient(s settings) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1
	if s.tls != nil {
		transport.TLSClientConfig = s.tls
	}
	life, end := context.WithCancel(context.Background())
	return &client{settings: s, life: life, end: end, http: &http.Client{
		Transport: transport,
		// A redirect would send the headers, which are secrets, elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Start implements otlptrace.Client. The first batch connects.
func (c *client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// abort gives up what is being sent, and all that comes.
func (c *client) abort() { c.end() }

// Between the attempts to send a batch, which the timeout ends.
const (
	firstPause = 250 * time.Millisecond
	maxPause   = 4 * time.Second
)

// UploadTraces implements otlptrace.Client.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// On the wire the same as an ExportTraceServiceRequest, whose package imports gRPC:
	// its only field has the same number and type.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	if c.gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(body); err != nil {
			return fmt.Errorf("compress spans: %w", err)
		}
		if err := w.Close(); err != nil {
			return fmt.Errorf("compress spans: %w", err)
		}
		body = packed.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		after, err := c.send(ctx, body)
		if err == nil || after < 0 {
			return err
		}
		t := time.NewTimer(max(pause, after))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return errors.Join(err, ctx.Err())
		}
	}
}

// never is the pause after what need not be repeated.
const never = time.Duration(-1)

// send sends a batch once. After an error it returns how long to wait at least, or never.
func (c *client) send(ctx context.Context, body []byte) (again time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return never, err
	}
	for k, v := range c.header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	if c.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("send spans: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch {
	case resp.StatusCode < http.StatusMultipleChoices:
		return 0, nil
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusBadGateway,
		resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // a date is 0
		again = time.Duration(min(max(seconds, 0), 3600)) * time.Second
	default:
		again = never
	}
	return again, fmt.Errorf("send spans: the collector answered %s", resp.Status)
}
