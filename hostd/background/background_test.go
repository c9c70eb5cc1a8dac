package background

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWorkOutlivesItsCallerAndEndsWithItsPart(t *testing.T) {
	g := New()
	caller, gone := context.WithCancel(hostapi.WithRequestID(t.Context(), "r1"))
	ctx := g.Detach(caller)
	over := make(chan error, 1)
	if !g.Go(func() { <-ctx.Done(); over <- context.Cause(ctx) }) {
		t.Fatal("no work begins")
	}
	gone()
	if ctx.Err() != nil || hostapi.RequestID(ctx) != "r1" {
		t.Errorf("after its caller has gone: %v, request %q", ctx.Err(), hostapi.RequestID(ctx))
	}
	closing := errors.New("closing")
	for range 2 { // again is no harm
		g.Close(closing)
	}
	if err := <-over; !errors.Is(err, closing) {
		t.Errorf("it ended with %v", err)
	}
	if g.Go(func() { t.Error("work began after the end") }) {
		t.Error("work is said to have begun after the end")
	}
}
