// Package tracing has a test of the traces of a whole plane: three replicas and the parts
// of a host, over their real connections, with a VMM and a guest in memory.
package tracing

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/telemetry/telemetrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	client      = "00f067aa0ba902b7" // the client's span
	traceOfMake = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceOfExec = "5bf92f3577b34da6a3ce929d0e0e4736"
)

func traceparent(trace string) string { return "00-" + trace + "-" + client + "-01" }

// A create and a command each have one trace, from the client through a follower, the
// leader and the host to the guest.
func TestATraceSpansThePlane(t *testing.T) {
	c := telemetrytest.NewCollector(t)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // milliseconds
	export(t, c)
	p := newPlane(t)
	follower, leader := p.follower()

	status, body := p.call(follower, http.MethodPost, "/v1/sandboxes", `{"template":"base"}`, traceparent(traceOfMake))
	var sandbox struct{ ID string }
	if err := json.Unmarshal(body, &sandbox); status != http.StatusCreated || err != nil {
		t.Fatalf("create: %d %s", status, body)
	}
	status, body = p.call(follower, http.MethodPost, "/v1/sandboxes/"+sandbox.ID+"/exec", `{"cmd":["secret-command"]}`, traceparent(traceOfExec))
	if status != http.StatusOK {
		t.Fatalf("exec: %d %s", status, body)
	}

	path(t, c, traceOfMake, "stage restore",
		"box.create", "PUT /v1/boxes/{id}", "host PUT /v1/boxes/{id}", "flow sandbox.create start",
		"POST /v1/sandboxes", "forward to the leader", "API")
	path(t, c, traceOfMake, "raft.commit", "store.update", "POST /v1/sandboxes", "forward to the leader", "API")
	exec := path(t, c, traceOfExec, "guest.exec",
		"POST /v1/boxes/{id}/exec", "host POST /v1/boxes/{id}/exec",
		"POST /v1/sandboxes/:id/exec", "forward to the leader", "API")

	if got := exec[0].Attributes; got[telemetry.KeyExitCode] != "0" || got[telemetry.KeySandboxID] != sandbox.ID[:8] {
		t.Errorf("the command's span has %v", got)
	}
	if got := exec[2].Attributes[telemetry.KeyAgentID]; got != "h1" {
		t.Errorf("the call was to host %q", got)
	}
	if got := exec[3].Attributes; got[telemetry.KeyNodeID] != leader || got[telemetry.KeyStatus] != "200" || got[telemetry.KeyWorkspaceID] == "" {
		t.Errorf("the leader's span has %v", got)
	}
	if got := exec[5].Attributes[telemetry.KeyNodeID]; got != follower {
		t.Errorf("the first replica was %q", got)
	}
	request := ""
	for i, s := range []telemetrytest.Span{exec[1], exec[3], exec[5]} {
		got := s.Attributes[telemetry.KeyRequestID]
		if i == 0 {
			request = got
		}
		if got == "" || got != request {
			t.Errorf("%s is of request %q, and another of %q", s.Name, got, request)
		}
	}
	for _, s := range c.Spans() {
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), sandbox.ID) || strings.Contains(string(raw), "secret-command") {
			t.Errorf("a span tells too much: %s", raw)
		}
	}
}

// path waits for a span of a trace whose ancestors have these names, up to the client's
// span, and returns it with them. A replica's span ends after its answer.
func path(t *testing.T, c *telemetrytest.Collector, trace, name string, ancestors ...string) []telemetrytest.Span {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for patience := time.After(time.Minute); ; {
		found, tried := look(c.Spans(), trace, name, ancestors)
		if found != nil {
			return found
		}
		select {
		case <-tick.C:
		case <-patience:
			t.Fatalf("no %s in trace %s is below %s; there is: %q", name, trace, strings.Join(ancestors, " < "), tried)
		}
	}
}

func look(spans []telemetrytest.Span, trace, name string, ancestors []string) (_ []telemetrytest.Span, tried []string) {
	byID := map[string]telemetrytest.Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	for _, s := range spans {
		if s.Trace != trace || s.Name != name {
			continue
		}
		found := []telemetrytest.Span{s}
		for up, ok := byID[s.Parent]; ok; up, ok = byID[up.Parent] {
			found = append(found, up)
		}
		var names []string
		for _, f := range found[1:] {
			names = append(names, f.Name)
		}
		tried = append(tried, strings.Join(names, " < "))
		top := found[len(found)-1]
		if tried[len(tried)-1] == strings.Join(ancestors, " < ") && top.Parent == client && top.Trace == trace {
			return found, nil
		}
	}
	return nil, tried
}

// Requests are answered while the collector takes a connection and never answers.
func TestACollectorThatHangsDelaysNoRequest(t *testing.T) {
	c := telemetrytest.NewCollector(t)
	reached := make(chan struct{}, 1024)
	c.Answer = func(_ http.ResponseWriter, r *http.Request) {
		reached <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client goes
		<-r.Context().Done()
	}
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
	flush := export(t, c)
	p := newPlane(t)
	follower, _ := p.follower()
	status, body := p.call(follower, http.MethodPost, "/v1/sandboxes", `{"template":"base"}`, "")
	var sandbox struct{ ID string }
	if err := json.Unmarshal(body, &sandbox); status != http.StatusCreated || err != nil {
		t.Fatalf("create: %d %s", status, body)
	}
	<-reached
	began := time.Now()
	for range 20 {
		if status, body := p.call(follower, http.MethodPost, "/v1/sandboxes/"+sandbox.ID+"/exec", `{"cmd":["x"]}`, ""); status != http.StatusOK {
			t.Fatalf("exec: %d %s", status, body)
		}
	}
	// The collector's own limit is ten seconds for each batch of four spans.
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("20 commands took %s", took)
	}
	flush()
}
