package loops_test

import (
	"context"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWhileLeading(t *testing.T) {
	leadership := make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	var running, overlaps, runs atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		loops.WhileLeading(ctx, leadership, func(ctx context.Context) {
			if running.Add(1) != 1 {
				overlaps.Add(1)
			}
			runs.Add(1)
			<-ctx.Done()
			running.Add(-1)
		})
	}()
	for _, leading := range []bool{false, true, false, false, true, true, true, false} {
		leadership <- leading
	}
	testcluster.Await(t, "end of the last leadership", func() bool { return running.Load() == 0 })
	leadership <- true
	testcluster.Await(t, "another leadership", func() bool { return running.Load() == 1 })
	cancel()
	<-done
	if overlaps.Load() != 0 || running.Load() != 0 || runs.Load() != 5 {
		t.Fatalf("%d runs, %d overlaps, %d left", runs.Load(), overlaps.Load(), running.Load())
	}
}
