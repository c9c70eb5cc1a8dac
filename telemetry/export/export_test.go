package export

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/telemetry/telemetrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func program() Program {
	return Program{Service: "berth-test", Instance: "a", Version: "v1", Log: slog.New(slog.DiscardHandler)}
}

// clean removes what the environment of the test says of OpenTelemetry.
func clean(t *testing.T) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

// request makes a trace of one span.
func request(t *testing.T) {
	_, s := telemetry.Serve(t.Context(), http.Header{}, "request")
	s.Set(telemetry.KeyRequestID, "r1")
	s.End(nil)
}

func TestTracesAreSentAsTheEnvironmentSays(t *testing.T) {
	clean(t)
	c := telemetrytest.NewCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x,x-tenant = berth ")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	stop, err := Start(t.Context(), program())
	if err != nil {
		t.Fatal(err)
	}
	request(t)
	stop()
	spans := c.Spans()
	if len(spans) != 1 || spans[0].Name != "request" || spans[0].Kind != "SERVER" || spans[0].Attributes["berth.request_id"] != "r1" {
		t.Fatalf("got %+v", spans)
	}
	for key, want := range map[string]string{"service.name": "berth-test", "service.instance.id": "a", "service.version": "v1", "deployment.environment": "test"} {
		if got := spans[0].Resource[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	h := c.Headers()[0]
	if h.Get("Authorization") != "Bearer x" || h.Get("X-Tenant") != "berth" {
		t.Errorf("headers %v", h)
	}
	request(t) // nowhere
	if n := len(c.Spans()); n != 1 {
		t.Errorf("%d spans after the end", n)
	}
}

func TestTracesAreOff(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"by default":  {},
		"by none":     {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"by the flag": {"OTEL_SDK_DISABLED": "TRUE", "OTEL_TRACES_EXPORTER": "otlp"},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			for k, v := range vars {
				t.Setenv(k, v)
			}
			stop, err := Start(t.Context(), program())
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			ctx, s := telemetry.Serve(t.Context(), http.Header{}, "request")
			s.End(nil)
			if telemetry.Parent(ctx) != "" {
				t.Error("there is a span")
			}
		})
	}
}

func TestSettingsThatCannotBeReadAreNamed(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(noPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"OTEL_TRACES_EXPORTER":                  "zipkin",
		"OTEL_EXPORTER_OTLP_PROTOCOL":           "grpc",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":    "collector:4317",
		"OTEL_EXPORTER_OTLP_HEADERS":            "secret",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS":     "a=%zz",
		"OTEL_EXPORTER_OTLP_TIMEOUT":            "10s",
		"OTEL_EXPORTER_OTLP_COMPRESSION":        "zstd",
		"OTEL_EXPORTER_OTLP_CERTIFICATE":        noPEM,
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": noPEM,
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(name, value)
			_, err := Start(t.Context(), program())
			if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What the collector is too busy for is sent again, what it refuses is not.
func TestABatchIsRepeatedIfThatHelps(t *testing.T) {
	for status, want := range map[int]int64{http.StatusServiceUnavailable: 2, http.StatusBadRequest: 1} {
		clean(t)
		c := telemetrytest.NewCollector(t)
		var asked atomic.Int64
		c.Answer = func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				w.WriteHeader(status)
			}
		}
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
		stop, err := Start(t.Context(), program())
		if err != nil {
			t.Fatal(err)
		}
		request(t)
		stop()
		if got := asked.Load(); got != want {
			t.Errorf("after %d the batch was sent %d times, want %d", status, got, want)
		}
	}
}

// A collector that never answers holds up neither requests, whose spans are dropped, nor
// the end of a program: with limits of an hour, a request or an end that waited for it
// would be waited for here.
func TestNobodyWaitsForACollector(t *testing.T) {
	clean(t)
	c := telemetrytest.NewCollector(t)
	hang := make(chan struct{})
	reached := make(chan struct{}, 16)
	c.Answer = func(_ http.ResponseWriter, r *http.Request) {
		reached <- struct{}{}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}
	defer close(hang)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
	t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "3600000")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600000")
	stop, err := Start(t.Context(), program())
	if err != nil {
		t.Fatal(err)
	}
	for range 16 {
		request(t)
	}
	<-reached        // the batch is stuck from here on
	for range 1000 { // of which 16 fit the queue
		request(t)
	}
	stop()
}
