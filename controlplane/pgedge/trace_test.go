package pgedge

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/berth-cloud/berth/telemetry"
)

// recorded has spans recorded until the test ends.
func recorded(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	r := tracetest.NewSpanRecorder()
	telemetry.Use(sdk.NewTracerProvider(sdk.WithSpanProcessor(r)))
	t.Cleanup(func() { telemetry.Use(nil) })
	return r
}

// paths are the spans that have ended, each with those above it.
func paths(r *tracetest.SpanRecorder) []string {
	byID := map[string]sdk.ReadOnlySpan{}
	for _, s := range r.Ended() {
		byID[s.SpanContext().SpanID().String()] = s
	}
	var out []string
	for _, s := range r.Ended() {
		path := s.Name()
		for up := byID[s.Parent().SpanID().String()]; up != nil; up = byID[up.Parent().SpanID().String()] {
			path += " < " + up.Name()
		}
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}

// listens makes the guest take connections on PostgreSQL's port.
func (r *rig) listens() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	r.host.set(func(h *host) { h.ports["5432"] = l.Addr().String() })
}

// login resolves the database and connects to it, as the router does for a client.
func (r *rig) login(id string) error {
	ctx, span := telemetry.Serve(r.t.Context(), nil, "pg.login")
	defer span.End(nil)
	b, err := (&resolver{reach: r.reach, metrics: newMetrics()}).Resolve(ctx, id)
	if err != nil {
		return err
	}
	conn, err := b.Dial(ctx)
	if err == nil {
		conn.Close()
	}
	return err
}

// A login of a sleeping database is one trace, through a follower, the leader and the
// host. One of a running database has no wake.
func TestALoginIsOneTrace(t *testing.T) {
	r := newRig(t)
	r.listens()
	n := roundTripper{}
	leader := peersOf(n, "leader")
	leader.Leading = func() bool { return true }
	leader.Awake = func(ctx context.Context, _ string) error {
		_, span := telemetry.Start(ctx, "awake")
		defer span.End(nil)
		r.host.set(func(h *host) { h.asleep = false })
		return nil
	}
	n["leader"] = NewPeers(leader)
	follower := NewPeers(peersOf(n, "leader"))
	r.onWake(func(ctx context.Context) error { return follower.Wake(ctx, database) })

	const dial = "host GET /v1/boxes/{id}/dial/{id}"
	for _, asleep := range []bool{false, true} {
		spans := recorded(t)
		want := []string{dial + " < pg.login", "pg.login", "pg.lookup < pg.login"}
		woken := "berth.woken=false"
		if asleep {
			r.sleep()
			woken = "berth.woken=true"
			want = append(want, "pg.wake < pg.login",
				"POST "+pathWake+" < pg.wake < pg.login", "awake < POST "+pathWake+" < pg.wake < pg.login")
		}
		if err := r.login(database); err != nil {
			t.Fatal(err)
		}
		slices.Sort(want)
		if got := paths(spans); !slices.Equal(got, want) {
			t.Errorf("asleep %v: %q, want %q", asleep, got, want)
		}
		for _, s := range spans.Ended() {
			var said []string
			for _, a := range s.Attributes() {
				said = append(said, string(a.Key)+"="+a.Value.String())
			}
			if s.Name() == "pg.login" && !(slices.Contains(said, woken) && slices.Contains(said, "berth.database_id="+database[:8])) {
				t.Errorf("the login has %q", said)
			}
			if all := strings.Join(said, " "); strings.Contains(all, database) || strings.Contains(all, box) {
				t.Errorf("%s has a whole id: %s", s.Name(), all)
			}
		}
	}
}

// The name of what does not exist is nowhere: a stranger made it up.
func TestALoginOfNothingIsOneTrace(t *testing.T) {
	r := newRig(t)
	spans := recorded(t)
	if err := r.login("0b8b1c1e-0000-4c56-9a51-0d4b7f6f1c11"); err == nil {
		t.Fatal("it exists")
	}
	if got := paths(spans); !slices.Equal(got, []string{"pg.login", "pg.lookup < pg.login"}) {
		t.Errorf("%q", got)
	}
	for _, s := range spans.Ended() {
		if len(s.Attributes()) > 0 {
			t.Errorf("%s has %v", s.Name(), s.Attributes())
		}
	}
}

// Those who wait for one wake each have a trace of their own, and name the one that the
// wake is in.
func TestASharedWakeIsLinked(t *testing.T) {
	r := newRig(t)
	r.listens()
	r.sleep()
	begun, goOn := make(chan struct{}), make(chan struct{})
	awake := r.awake
	r.onWake(func(ctx context.Context) error {
		close(begun)
		<-goOn
		return awake(ctx)
	})
	spans := recorded(t)
	var both sync.WaitGroup
	login := func() {
		if err := r.login(database); err != nil {
			t.Error(err)
		}
	}
	both.Go(login)
	<-begun
	both.Go(login)
	eventually(t, "the second waits", func() bool {
		waiting := 0
		for _, s := range spans.Started() {
			if s.Name() == "pg.wake" {
				waiting += 1 + len(s.Links())
			}
		}
		return waiting == 3
	})
	close(goOn)
	both.Wait()
	var wakes []sdk.ReadOnlySpan
	for _, s := range spans.Started() {
		if s.Name() == "pg.wake" {
			wakes = append(wakes, s)
		}
	}
	if len(wakes) != 2 || len(wakes[0].Links()) != 0 || len(wakes[1].Links()) != 1 ||
		wakes[1].Links()[0].SpanContext.SpanID() != wakes[0].SpanContext().SpanID() {
		t.Errorf("%d wakes, with the links %v", len(wakes), wakes)
	}
}

// A database that does not come for minutes is tried hundreds of times.
func TestTheTriesInATraceAreBounded(t *testing.T) {
	r := newRig(t)
	r.host.set(func(h *host) { h.ports["5432"] = "127.0.0.1:1" })
	spans := recorded(t)
	ctx, login := telemetry.Serve(t.Context(), nil, "pg.login")
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan error)
	go func() {
		_, err := r.reach.Dial(ctx, database, 5432)
		over <- err
	}()
	eventually(t, "many tries", func() bool { return r.host.dialled() > tracedTries+1 })
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	login.End(nil)
	if n := len(spans.Ended()); n != tracedTries+1 {
		t.Errorf("%d spans, want the login and %d tries", n, tracedTries)
	}
}
