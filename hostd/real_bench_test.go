package hostd_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// BenchmarkRealFork reports how long a fork takes that gives its parent n
// children with its memory, and beside it n boxes from the template, which have
// the same to restore:
//
//	BERTH_TEST_GUESTS=1 go test ./hostd -run xxx -bench RealFork -benchtime 3x
func BenchmarkRealFork(b *testing.B) {
	h := newHost(b)
	h.env = append(h.env, "BERTH_MEMORY_MB=14336", "BERTH_SLOT_POOL=20")
	h.start()
	parent := rid('m', 0)
	h.make(parent, hostapi.BoxSpec{Template: "base"})
	h.sh(parent, witness)
	generation := uint64(0)
	all := func(b *testing.B, n int, spec hostapi.BoxSpec) time.Duration {
		generation++
		spec.Generation, spec.WorkspaceID = generation, "ws"
		began := time.Now()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if _, err := h.client.PutBox(b.Context(), rid('n', i), spec); err != nil {
					b.Errorf("child %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		took := time.Since(began)
		for i := range n {
			wg.Go(func() {
				if err := h.client.DeleteBox(b.Context(), rid('n', i), 0); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		return took
	}
	for _, n := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			sum := map[string]time.Duration{}
			for b.Loop() {
				name := fmt.Sprint("bench-", generation)
				began := time.Now()
				c, err := h.client.PutCapture(b.Context(), name, hostapi.CaptureSpec{BoxID: parent, Generation: 1, Memory: true, Transient: true})
				must(b, err)
				sum["capture"] += time.Since(began)
				sum["pause"] += time.Duration(c.PauseMS) * time.Millisecond
				sum["children"] += all(b, n, hostapi.BoxSpec{Capture: name})
				sum["template"] += all(b, n, hostapi.BoxSpec{Template: "base"})
				must(b, h.client.DeleteCapture(b.Context(), name, false))
			}
			for what, d := range sum {
				b.ReportMetric(float64(d.Milliseconds())/float64(b.N), what+"-ms/op")
			}
		})
	}
}
