package capture

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestThePoolKeepsClonesOfWhatIsOffered(t *testing.T) {
	dir := t.TempDir()
	seed := filepath.Join(dir, "seed")
	check(t, os.WriteFile(seed, []byte("seed"), 0o600))
	pool := filepath.Join(dir, "pool")
	check(t, os.Mkdir(pool, 0o755))
	check(t, os.WriteFile(filepath.Join(pool, "old-1"), nil, 0o600)) // of an earlier daemon
	o := NewOverlays(pool, 3, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); o.Run(ctx) }()
	defer func() { cancel(); <-ended }()

	one := Seed{Build: "one", Path: seed}
	o.Offer([]Seed{one})
	count := func(want int) func() bool {
		return func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			entries, err := os.ReadDir(pool)
			return err == nil && len(o.ready["one"]) == want && len(entries) == want
		}
	}
	eventually(t, count(3))
	dst := filepath.Join(dir, "taken")
	check(t, o.Take(ctx, one, dst))
	if raw, err := os.ReadFile(dst); err != nil || string(raw) != "seed" {
		t.Errorf("taken overlay = %q, %v", raw, err)
	}
	eventually(t, count(3))
	o.Offer(nil) // the build is no longer current
	eventually(t, count(0))
	check(t, o.Take(ctx, one, filepath.Join(dir, "direct"))) // cloned when asked for
}

func eventually(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("condition did not come true within 10 s")
		case <-tick.C:
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
