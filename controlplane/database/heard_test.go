package database

import (
	"errors"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/telemetry"
)

// A leader may lead for months, so it forgets databases and sandboxes that are gone.
func TestWhatIsGoneIsForgotten(t *testing.T) {
	h := newHeard(time.Now)
	h.lead()
	for _, id := range []string{"kept", "gone"} {
		h.tell(id, fact{box: id})
		h.want(t.Context(), id)
		h.ended(id, errors.New("no room"))
		h.restartFailed(id, "boot", time.Second, errors.New("no kernel"))
	}
	kept := func(id string) bool { return id == "kept" }
	h.forget(kept, kept)
	if len(h.facts) != 1 || len(h.troubles) != 1 || len(h.restarts) != 1 || len(h.wakes) != 0 {
		t.Errorf("%d facts, %d troubles, %d restarts, %d wakes", len(h.facts), len(h.troubles), len(h.restarts), len(h.wakes))
	}
	if r := h.restart("kept", "boot"); r.failures != 1 {
		t.Errorf("%+v", r)
	}
}

// A daemon that was restarted does not know at first what is not archived. Then less is
// archived than before, not all.
func TestADaemonThatHasYetToLookDoesNotHaveAllArchived(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	state := func(a hostapi.ArchiveState) hostapi.DatabaseState { return hostapi.DatabaseState{Archive: a} }
	h := newHeard(time.Now)
	h.tell("d", fact{box: "b", seq: 7, at: now, state: state(hostapi.ArchiveState{LastAt: now.Add(-4 * time.Second), LagSeconds: 4})})
	for i := 1; i <= 2; i++ {
		h.tell("d", fact{box: "b", seq: 7, at: now.Add(time.Duration(i) * time.Second)})
		if f, _ := h.fact("d", "b"); f.state.Archive.LagSeconds != float64(4+i) {
			t.Errorf("after %d s the lag is %v", i, f.state.Archive.LagSeconds)
		}
	}
	h.tell("d", fact{box: "b", seq: 9, at: now.Add(10 * time.Second), state: state(hostapi.ArchiveState{LastAt: now.Add(-time.Minute), LagSeconds: 70})})
	if f, _ := h.fact("d", "b"); !f.state.Archive.LastAt.Equal(now.Add(-4*time.Second)) || f.state.Archive.LagSeconds != 14 {
		t.Errorf("after it was started again: %+v", f.state.Archive)
	}
	h.tell("d", fact{box: "c", seq: 7, at: now})
	if f, _ := h.fact("d", "c"); !f.state.Archive.LastAt.IsZero() {
		t.Errorf("another box: %+v", f.state.Archive)
	}
}

// A leader that no host has told of a database yet does not say that all is archived.
func TestALagNobodyToldOfIsTheArchives(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	told := fact{at: now.Add(-2 * time.Second), state: hostapi.DatabaseState{Archive: hostapi.ArchiveState{LastAt: now.Add(-5 * time.Second), LagSeconds: 3}}}
	for name, c := range map[string]struct {
		status     api.DatabaseStatus
		asleep     bool
		told       fact
		restorable time.Time
		want       float64
	}{
		"told":                    {api.DatabaseRunning, false, told, now.Add(-time.Minute), 5},
		"it has failed":           {api.DatabaseFailed, false, told, now.Add(-time.Minute), 3},
		"nobody told":             {api.DatabaseRunning, false, fact{}, now.Add(-time.Minute), 60},
		"and nothing there":       {api.DatabaseRunning, false, fact{}, time.Time{}, 0},
		"it sleeps":               {api.DatabaseHibernated, true, told, now.Add(-time.Minute), 0},
		"its workspace is paused": {api.DatabaseHibernated, false, told, now.Add(-time.Minute), 3},
	} {
		if got := lagSeconds(c.status, c.asleep, c.told, c.restorable, now); got != c.want {
			t.Errorf("%s: %v seconds, want %v", name, got, c.want)
		}
	}
}

// A wake is in the trace of the first who wants it, and the others' traces name that.
func TestAWakeHasTheTraceOfTheFirst(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	defer telemetry.Use(nil)
	h := newHeard(time.Now)
	h.lead()
	first, a := telemetry.Serve(t.Context(), nil, "first")
	second, b := telemetry.Serve(t.Context(), nil, "second")
	h.want(first, "d")
	h.want(second, "d")
	a.End(nil)
	b.End(nil)
	if begun := h.toBegin(); len(begun) != 1 || begun[0].id != "d" || begun[0].trace != telemetry.Parent(first) {
		t.Errorf("%+v begin, want that of %s", begun, telemetry.Parent(first))
	}
	ended := spans.Ended()
	if links := ended[1].Links(); len(ended[0].Links()) != 0 || len(links) != 1 || links[0].SpanContext.SpanID() != ended[0].SpanContext().SpanID() {
		t.Errorf("links %v and %v", ended[0].Links(), links)
	}
}
