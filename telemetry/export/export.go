// Package export sends traces to a collector, by OTLP over HTTP, as OpenTelemetry's own
// environment variables say. Programs start it; everything else makes spans through
// package telemetry.
//
// OpenTelemetry's exporter for HTTP also brings gRPC into a program, through types that
// it shares with the one for gRPC: 8 MB and 100 packages. So the transport here is our
// own, and the rest (spans, batches, sampling, the wire format) is theirs.
package export

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"

	"github.com/berth-cloud/berth/redact"
	"github.com/berth-cloud/berth/telemetry"
)

// Program is who sends traces.
type Program struct {
	Service  string // "berth-controlplane"; OTEL_SERVICE_NAME overrides it
	Instance string // the id of the replica, host or router; may be ""
	Version  string
	Log      *slog.Logger
}

// flushTime bounds how long a program that stops waits for its last spans to be sent.
const flushTime = 3 * time.Second

// Start sends the program's traces from now on, if the environment names a collector. It
// connects to nothing yet. stop sends what is left, for three seconds at most; it may be
// called once.
//
// Spans wait in a queue of OTEL_BSP_MAX_QUEUE_SIZE, and those that find it full are
// dropped: nobody waits for a collector.
func Start(ctx context.Context, p Program) (stop func(), err error) {
	nothing := func() {}
	on, err := wanted()
	if err != nil || !on {
		return nothing, err
	}
	settings, err := fromEnvironment()
	if err != nil {
		return nothing, err
	}
	client := newClient(settings)
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nothing, fmt.Errorf("export traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(p.attributes()...),
		resource.WithFromEnv()) // last, because it has the last word
	if err != nil {
		return nothing, errors.Join(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err), exporter.Shutdown(ctx))
	}
	logEvery := rate.Sometimes{First: 1, Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logEvery.Do(func() { p.Log.Warn("traces were not exported", "error", err) })
	}))
	// Sampling, batches and limits are OTEL_TRACES_SAMPLER, OTEL_BSP_… and
	// OTEL_SPAN_…, which the SDK reads by itself.
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(about))
	telemetry.Use(provider)
	p.Log.InfoContext(ctx, "traces are exported", "endpoint", settings.shown())
	return func() {
		telemetry.Use(nil)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
		defer cancel()
		defer client.abort()
		if err := provider.Shutdown(ctx); err != nil {
			p.Log.WarnContext(ctx, "the last traces were not exported", "error", redact.Text(err.Error()))
		}
	}, nil
}

func (p *Program) attributes() []attribute.KeyValue {
	out := []attribute.KeyValue{attribute.String("service.name", p.Service), attribute.String("service.version", p.Version)}
	if p.Instance != "" {
		out = append(out, attribute.String("service.instance.id", p.Instance))
	}
	return out
}

// wanted reports whether the environment asks for traces: it names an exporter, or a
// collector and no exporter.
func wanted() (bool, error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false, nil
	}
	switch name := os.Getenv("OTEL_TRACES_EXPORTER"); name {
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "", nil
	case "none":
		return false, nil
	case "otlp":
		return true, nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q, want otlp or none", name)
	}
}
