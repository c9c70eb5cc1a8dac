package telemetry_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/telemetry"
)

const id = "abcdefgh234567abcdefgh2345"

// on has spans recorded until the test ends.
func on(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(r)))
	t.Cleanup(func() { telemetry.Use(nil) })
	return r
}

func TestOffItCostsNothing(t *testing.T) {
	ctx, header := t.Context(), http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	failed, now := errors.New("failed"), time.Now()
	allocations := testing.AllocsPerRun(100, func() {
		ctx, request := telemetry.Serve(ctx, header, "request")
		ctx, span := telemetry.Start(ctx, "part")
		ctx = telemetry.Carry(telemetry.Under(ctx, telemetry.Parent(ctx)), ctx)
		span.Set(telemetry.KeyRequestID, id)
		span.SetSandbox(id)
		span.SetDatabase(id)
		span.Link(telemetry.Parent(telemetry.Without(ctx)))
		span.SetInt(telemetry.KeyTries, 1)
		span.SetBool(telemetry.KeyTimedOut, true)
		telemetry.Current(ctx).Status(500)
		telemetry.Inject(ctx, header)
		telemetry.Did(ctx, now, now, true, "stage ", "restore")
		span.End(failed)
		request.End(nil)
	})
	if allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
	if telemetry.Parent(ctx) != "" {
		t.Error("there is a parent")
	}
}

func TestATraceGoesOnElsewhereAndLater(t *testing.T) {
	r := on(t)
	header := http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
	ctx, request := telemetry.Serve(t.Context(), header, "request")
	sent := http.Header{}
	callCtx, call := telemetry.Call(ctx, "call")
	telemetry.Inject(callCtx, sent)
	_, served := telemetry.Serve(context.Background(), sent, "served")
	later := telemetry.Under(context.Background(), telemetry.Parent(ctx))
	_, step := telemetry.Start(later, "step")
	_, detached := telemetry.Start(telemetry.Carry(context.Background(), ctx), "detached")
	telemetry.Did(ctx, time.Unix(1, 0), time.Unix(3, 0), true, "st", "age")
	for _, s := range []telemetry.Span{served, call, step, detached, request} {
		s.End(nil)
	}
	parents := map[string]string{}
	names := map[string]string{}
	for _, s := range r.Ended() {
		if got := s.SpanContext().TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is of trace %s", s.Name(), got)
		}
		names[s.SpanContext().SpanID().String()] = s.Name()
		parents[s.Name()] = s.Parent().SpanID().String()
	}
	for child, parent := range map[string]string{"call": "request", "served": "call", "step": "request", "detached": "request", "stage": "request"} {
		if got := names[parents[child]]; got != parent {
			t.Errorf("%s is below %q, want %s", child, got, parent)
		}
	}
	if parents["request"] != "b7ad6b7169203331" {
		t.Errorf("the request is below %s", parents["request"])
	}
}

// A header that is wrong begins a new trace; nothing begins one without a request.
func TestWhatBeginsNoTrace(t *testing.T) {
	r := on(t)
	for _, bad := range []string{"", "00-zz-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01", strings.Repeat("0", 5000)} {
		_, s := telemetry.Serve(t.Context(), http.Header{"Traceparent": {bad}}, "request")
		s.End(nil)
		_, s = telemetry.Start(telemetry.Under(t.Context(), bad), "step")
		s.End(nil)
	}
	ended := r.Ended()
	if len(ended) != 4 {
		t.Fatalf("%d spans, want those of four requests", len(ended))
	}
	for _, s := range ended {
		if s.Parent().IsValid() {
			t.Errorf("below %s", s.Parent().SpanID())
		}
	}
}

func TestValuesAreRedactedAndBounded(t *testing.T) {
	r := on(t)
	_, s := telemetry.Serve(t.Context(), http.Header{}, "request")
	s.Name("GET /v1/sandboxes/" + id)
	s.Set(telemetry.KeyRequestID, "of "+id)
	s.Set(telemetry.KeyStep, strings.Repeat("é", 1000))
	s.SetSandbox(id)
	s.Status(503)
	s.End(errors.New("open " + id + ": " + strings.Repeat("x", 1000)))
	span := r.Ended()[0]
	texts := []string{span.Name(), span.Status().Description}
	for _, a := range span.Attributes() {
		texts = append(texts, a.Value.String())
	}
	for _, text := range texts {
		if strings.Contains(text, id) || len(text) > 256 || strings.ContainsRune(text, '\uFFFD') {
			t.Errorf("a span has %q", text)
		}
	}
	if len(texts) != 6 {
		t.Errorf("a span has %q", texts)
	}
}

func TestWhatManyWaitForIsLinked(t *testing.T) {
	r := on(t)
	ctx, first := telemetry.Serve(t.Context(), nil, "first")
	parent := telemetry.Parent(ctx)
	_, second := telemetry.Serve(t.Context(), nil, "second")
	second.Link(parent)
	second.Link("")
	second.Link("not one")
	second.SetDatabase("5f2a6c1e-8f3b-4c56-9a51-0d4b7f6f1c11")
	second.End(nil)
	first.End(nil)
	of, to := r.Ended()[0], r.Ended()[1].SpanContext()
	if links := of.Links(); len(links) != 1 || links[0].SpanContext.SpanID() != to.SpanID() || links[0].SpanContext.TraceID() != to.TraceID() {
		t.Errorf("%v, want the first's span %s", links, to.SpanID())
	}
	if got := of.Attributes(); len(got) != 1 || got[0].Value.AsString() != "5f2a6c1e" {
		t.Errorf("attributes %v", got)
	}
}

func TestWithoutASpanNothingIsMade(t *testing.T) {
	r := on(t)
	ctx, request := telemetry.Serve(t.Context(), nil, "request")
	_, s := telemetry.Start(telemetry.Without(ctx), "part")
	s.End(nil)
	request.End(nil)
	if n := len(r.Ended()); n != 1 || telemetry.Parent(telemetry.Without(ctx)) != "" {
		t.Errorf("%d spans", n)
	}
}
