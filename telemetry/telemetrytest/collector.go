package telemetrytest

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as a collector received it.
type Span struct {
	Name              string
	Trace, ID, Parent string // Parent is "" for the first of a trace
	Kind              string // "SERVER", "CLIENT", "INTERNAL"
	Failed            bool
	Message           string // of the error
	Attributes        map[string]string
	Resource          map[string]string
}

// Collector is a receiver of OTLP over HTTP.
type Collector struct {
	URL string // its base

	// Answer, where it is set before the first request, answers instead.
	Answer http.HandlerFunc

	mu      sync.Mutex
	spans   []Span
	headers []http.Header
}

// NewCollector returns one that listens until the test ends.
func NewCollector(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.Answer != nil {
		c.Answer(w, r)
		return
	}
	if err := c.take(r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *Collector) take(r *http.Request) error {
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		return fmt.Errorf("%s %s of %s is no batch of traces", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = unpacked
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var data tracepb.TracesData
	if err := proto.Unmarshal(raw, &data); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, r.Header.Clone())
	for _, of := range data.GetResourceSpans() {
		resource := map[string]string{}
		for _, kv := range of.GetResource().GetAttributes() {
			resource[kv.GetKey()] = text(kv.GetValue().String())
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, spanOf(s, resource))
			}
		}
	}
	return nil
}

func spanOf(s *tracepb.Span, resource map[string]string) Span {
	out := Span{
		Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Kind: strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_"), Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
		Message: s.GetStatus().GetMessage(), Attributes: map[string]string{}, Resource: resource,
	}
	for _, kv := range s.GetAttributes() {
		out.Attributes[kv.GetKey()] = text(kv.GetValue().String())
	}
	return out
}

// text is the value of what protobuf prints as string_value:"x" or int_value:3.
func text(s string) string {
	_, v, _ := strings.Cut(s, ":")
	return strings.Trim(strings.TrimSpace(v), `"`)
}

// Spans returns what has been received.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Headers returns those of the batches.
func (c *Collector) Headers() []http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.headers)
}
