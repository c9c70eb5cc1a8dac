package vmm_test

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/vmm"
)

// The calls to a VMM are spans of the trace that they are made for; one that it refuses
// has failed.
func TestCallsArePartOfATrace(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(telemetry.HeaderParent) != "" {
			t.Error("the VMM is told of the trace")
		}
		if r.URL.Path == "/api/v1/vm.resume" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { defer close(served); _ = srv.Serve(l) }()
	defer func() { srv.Close(); <-served }()
	spans := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	defer telemetry.Use(nil)
	c := vmm.NewClient(socket)
	defer c.Close()

	if err := c.Pause(t.Context()); err != nil { // for nobody
		t.Fatal(err)
	}
	ctx, request := telemetry.Serve(t.Context(), http.Header{}, "request")
	if err := c.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.Resume(ctx); err == nil {
		t.Fatal("the VMM did not refuse")
	}
	request.End(nil)

	ended := spans.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans, want two and the request's", len(ended))
	}
	for i, want := range []struct{ name, status string }{{"vmm vm.pause", "Unset"}, {"vmm vm.resume", "Error"}} {
		if got := ended[i]; got.Name() != want.name || got.Status().Code.String() != want.status || got.Parent().SpanID() != ended[2].SpanContext().SpanID() {
			t.Errorf("span %d is %s, %s", i, got.Name(), got.Status().Code)
		}
	}
}
