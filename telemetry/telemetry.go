// Package telemetry makes the spans of traces. It knows OpenTelemetry's interfaces
// alone; package export, which only programs import, has the rest. Without that, no
// span is made, and every function here returns at once and allocates nothing.
//
// A span's values are redacted and clipped here, so that no caller has to think of it:
// they hold what a log line may hold. What has no bound (a command, a path, a tenant's
// text) belongs in none.
package telemetry

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/berth-cloud/berth/redact"
)

// Keys of attributes. Those that OpenTelemetry has a name for have that.
const (
	KeyRequestID   = "berth.request_id"
	KeySandboxID   = "berth.sandbox_id"  // its beginning
	KeyDatabaseID  = "berth.database_id" // its beginning
	KeyWorkspaceID = "berth.workspace_id"
	KeyNodeID      = "berth.node_id"  // of the replica
	KeyAgentID     = "berth.agent_id" // of the host
	KeyFlowID      = "berth.flow_id"
	KeyFlowKind    = "berth.flow_kind"
	KeyStep        = "berth.step"
	KeyAttempt     = "berth.attempt" // from 0
	KeyEngine      = "berth.engine"  // it was the VMM's own time
	KeyExitCode    = "berth.exit_code"
	KeyTimedOut    = "berth.timed_out"
	KeyTries       = "berth.tries"   // of a transaction, from 1
	KeyOutcome     = "berth.outcome" // of a login
	KeyWoken       = "berth.woken"   // a database was woken for it
	KeySQLState    = "db.response.status_code"
	KeyMethod      = "http.request.method"
	KeyRoute       = "http.route"
	KeyStatus      = "http.response.status_code"
)

// HeaderParent is the header in which a request names its caller's span.
const HeaderParent = "Traceparent"

// maxValue is how long a value may be, in bytes.
const maxValue = 256

// scope names who made the spans.
const scope = "github.com/berth-cloud/berth"

// tracer makes the spans; nil: none are made.
var tracer atomic.Pointer[trace.Tracer]

// Use sets where spans go. Nil: nowhere, and none are made.
func Use(p trace.TracerProvider) {
	if p == nil {
		tracer.Store(nil)
		return
	}
	t := p.Tracer(scope)
	tracer.Store(&t)
}

// Span is one part of a trace, or none. Its methods may be called on either.
type Span struct{ s trace.Span }

// Serve begins the span of a request: below the caller's, if its header names one, and
// of a new trace otherwise.
func Serve(ctx context.Context, header http.Header, name string) (context.Context, Span) {
	t := tracer.Load()
	if t == nil {
		return ctx, Span{}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
	ctx, s := (*t).Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, Span{s}
}

// Start begins a span below the one that ctx has. Without one there it begins none: what
// nobody asked for is no trace. The name's parts are joined if there is a span.
func Start(ctx context.Context, name ...string) (context.Context, Span) {
	return start(ctx, trace.SpanKindInternal, name)
}

// Call begins the span of a request that is sent, as Start does. Inject hands it on.
func Call(ctx context.Context, name ...string) (context.Context, Span) {
	return start(ctx, trace.SpanKindClient, name)
}

func start(ctx context.Context, kind trace.SpanKind, name []string) (context.Context, Span) {
	t := tracer.Load()
	if t == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, Span{}
	}
	ctx, s := (*t).Start(ctx, strings.Join(name, ""), trace.WithSpanKind(kind))
	return ctx, Span{s}
}

// Did adds a span, below the one that ctx has, of what has taken place already.
func Did(ctx context.Context, from, to time.Time, engine bool, name ...string) {
	t := tracer.Load()
	if t == nil || !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	_, s := (*t).Start(ctx, strings.Join(name, ""), trace.WithTimestamp(from), trace.WithAttributes(attribute.Bool(KeyEngine, engine)))
	s.End(trace.WithTimestamp(to))
}

// Current is the span that ctx has.
func Current(ctx context.Context) Span {
	if tracer.Load() == nil {
		return Span{}
	}
	return Span{trace.SpanFromContext(ctx)}
}

// Inject names the span that ctx has in the header of a request that is sent.
func Inject(ctx context.Context, header http.Header) {
	if tracer.Load() != nil {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
	}
}

// traceparent is a carrier of that header alone.
type traceparent struct{ value string }

const keyParent = "traceparent"

func (p *traceparent) Get(key string) string {
	if key == keyParent {
		return p.value
	}
	return ""
}

func (p *traceparent) Set(key, value string) {
	if key == keyParent {
		p.value = value
	}
}

func (p *traceparent) Keys() []string { return []string{keyParent} }

// Parent names the span that ctx has, in the form of W3C's header traceparent, for what
// goes on elsewhere or later; "" for none. At most 55 bytes.
func Parent(ctx context.Context) string {
	if tracer.Load() == nil {
		return ""
	}
	var p traceparent
	propagation.TraceContext{}.Inject(ctx, &p)
	return p.value
}

// Under returns a context with the span that Parent has named. One that cannot be read
// is none.
func Under(ctx context.Context, parent string) context.Context {
	if parent == "" || tracer.Load() == nil {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, &traceparent{parent})
}

// Carry returns to with the span of from, for work that outlives its caller.
func Carry(to, from context.Context) context.Context {
	if tracer.Load() == nil {
		return to
	}
	if s := trace.SpanFromContext(from); s.SpanContext().IsValid() {
		return trace.ContextWithSpan(to, s)
	}
	return to
}

// Without returns a context that has no span, for what is repeated too often to be told
// each time.
func Without(ctx context.Context) context.Context {
	if tracer.Load() == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, nil)
}

// On reports whether what is said of the span is kept, for what takes work to say.
func (s Span) On() bool { return !s.off() }

func (s Span) off() bool { return s.s == nil || !s.s.IsRecording() }

// Name gives the span another name, one of few.
func (s Span) Name(name string) {
	if !s.off() {
		s.s.SetName(clip(redact.Text(name)))
	}
}

// Set adds an attribute. Whole sandbox ids in the value are shortened, and so is a value
// of more than 256 bytes. An empty one is left out.
func (s Span) Set(key, value string) {
	if !s.off() && value != "" {
		s.s.SetAttributes(attribute.String(key, clip(redact.Text(value))))
	}
}

// SetSandbox adds the beginning of a sandbox's id.
func (s Span) SetSandbox(id string) {
	if !s.off() && id != "" {
		s.s.SetAttributes(attribute.String(KeySandboxID, redact.ID(id)))
	}
}

// SetDatabase adds the beginning of a database's id. Whoever knows all of it may try
// passwords there.
func (s Span) SetDatabase(id string) {
	if !s.off() && id != "" {
		s.s.SetAttributes(attribute.String(KeyDatabaseID, redact.ID(id)))
	}
}

// SetInt adds a number.
func (s Span) SetInt(key string, value int) {
	if !s.off() {
		s.s.SetAttributes(attribute.Int(key, value))
	}
}

// SetBool adds a yes or no.
func (s Span) SetBool(key string, value bool) {
	if !s.off() {
		s.s.SetAttributes(attribute.Bool(key, value))
	}
}

// Link names another span, as Parent did, that has done a part of this one's work, too:
// that of the first who waited for what many wait for.
func (s Span) Link(parent string) {
	if s.off() || parent == "" {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), &traceparent{parent})
	if c := trace.SpanContextFromContext(ctx); c.IsValid() {
		s.s.AddLink(trace.Link{SpanContext: c})
	}
}

// Status adds an answer's status. From 500 on the span has failed.
func (s Span) Status(status int) {
	if s.off() {
		return
	}
	s.s.SetAttributes(attribute.Int(KeyStatus, status))
	if status >= http.StatusInternalServerError {
		s.s.SetStatus(codes.Error, http.StatusText(status))
	}
}

// End ends the span, with an error if it has failed.
func (s Span) End(err error) {
	if s.s == nil {
		return
	}
	if err != nil && s.s.IsRecording() {
		s.s.SetStatus(codes.Error, clip(redact.Text(err.Error())))
	}
	s.s.End()
}

// clip bounds a value without cutting a character in two.
func clip(s string) string {
	if len(s) <= maxValue {
		return s
	}
	n := maxValue
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
