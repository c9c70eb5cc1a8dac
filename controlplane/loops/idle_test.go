package loops_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
)

// A leader without anything to do is idle. The passes of a loop with its own schedule are
// the looks that it takes at the clock.
func TestAnIdleLeaderLooksSeldom(t *testing.T) {
	const most = 50 // in a second; those of the test plane that look most often do so 20 times
	n := testplane.New(t, 1, nil).LeaderNode()
	var mu sync.Mutex
	passes := map[string]int{}
	count := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		passes[name]++
	}
	cfg := loops.Config{Store: n.Store, Clock: time.Now, Logger: testcluster.Log()}
	all := loops.New(cfg)
	for _, source := range n.Sources {
		all.Register(func(shared *loops.Term) []loops.Loop {
			var out []loops.Loop
			for i, l := range source(shared) {
				if l.Run == nil {
					pass := l.Pass
					l.Pass = func(ctx context.Context) { count(l.Name); pass(ctx) }
				} else {
					counted := shared.Config
					counted.Clock = func() time.Time { count(l.Name); return time.Now() }
					l = source(loops.NewTerm(counted))[i]
				}
				out = append(out, l)
			}
			return out
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	all.Run(ctx)
	if passes["time after a restore"] == 0 {
		t.Error("a loop with its own schedule is not counted")
	}
	for name, times := range passes {
		if times > most {
			t.Errorf("the loop %q has looked %d times in a second", name, times)
		}
	}
}
