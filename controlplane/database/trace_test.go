package database_test

import (
	"strings"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/telemetry"
)

// What a leader does to wake a database is in the trace of the client that waits for it.
func TestAWakeIsInItsClientsTrace(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.asleep(d.ID)
	spans := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	defer telemetry.Use(nil)
	ctx, login := telemetry.Serve(t.Context(), nil, "pg.login")
	if err := r.databases().WakeForClient(ctx, d.ID); err != nil {
		t.Fatal(err)
	}
	login.End(nil)
	calls := 0
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), "host POST /v1/boxes/{id}/wake") && s.Parent().IsRemote() {
			calls++
		}
	}
	if calls != 1 {
		t.Errorf("%d calls to the host in the trace, want one", calls)
	}
	for _, s := range spans.Ended() {
		if s.SpanContext().TraceID().String() != telemetry.Parent(ctx)[3:35] {
			t.Errorf("%s is in another trace", s.Name())
		}
	}
}
