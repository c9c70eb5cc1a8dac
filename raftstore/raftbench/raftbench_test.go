package raftbench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/tier"
)

// TestComparison runs the measurement briefly: it must work, and say something
// for each number of clients. The figures that count come from make bench.
func TestComparison(t *testing.T) {
	points, err := Run(context.Background(), t.TempDir(), []int{1, 16}, 400*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		if p.Ours.CommitsPerSecond <= 0 || p.Plain.CommitsPerSecond <= 0 {
			t.Errorf("%+v", p)
		}
		t.Logf("%d clients: %.0f/s (p50 %s, p99 %s), plain %.0f/s (p50 %s, p99 %s), ratio %.2f", p.Clients,
			p.Ours.CommitsPerSecond, p.Ours.P50, p.Ours.P99, p.Plain.CommitsPerSecond, p.Plain.P50, p.Plain.P99, p.Ratio())
	}
}

func BenchmarkComparison(b *testing.B) {
	for b.Loop() {
		points, err := Run(context.Background(), b.TempDir(), []int{1, 64, 256}, 6*time.Second)
		if err != nil {
			b.Fatal(err)
		}
		for _, p := range points {
			b.Logf("%d clients: %.0f/s (p50 %s, p99 %s), plain %.0f/s (p50 %s, p99 %s), ratio %.2f", p.Clients,
				p.Ours.CommitsPerSecond, p.Ours.P50, p.Ours.P99, p.Plain.CommitsPerSecond, p.Plain.P50, p.Plain.P99, p.Ratio())
		}
	}
}

func TestFailover(t *testing.T) {
	tier.Slow(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	took, err := Failover(ctx, t.TempDir(), 7)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(took)
	t.Logf("leader lost to next write: median %s, worst %s", took[len(took)/2], took[len(took)-1])
}
