package box_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// lines is a log that several goroutines write.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}

// Whoever has a request's id finds what a host did for it, also what it did when
// its caller had gone.
func TestLinesOfARequestHaveItsID(t *testing.T) {
	log := &lines{}
	_, d, _ := world(t, func(_ *box.Config, deps *box.Deps) {
		deps.Log = slog.New(hostapi.WithRequestIDs(slog.NewTextHandler(log, nil)))
	})
	log.take()
	for _, c := range []struct {
		name, says string
		do         func(ctx context.Context) error
	}{
		{"create", "sandbox is running", func(ctx context.Context) error { _, err := d.Put(ctx, idA, spec(1)); return err }},
		{"pause", "sandbox is paused", func(ctx context.Context) error { _, err := d.Pause(ctx, idA); return err }},
		{"resume", "sandbox runs again", func(ctx context.Context) error { _, err := d.Resume(ctx, idA); return err }},
		{"capture", "sandbox is captured", func(ctx context.Context) error { _, err := d.Captures().Make(ctx, "c1", memory(idA)); return err }},
		{"hibernate", "memory is saved", func(ctx context.Context) error { _, err := d.Hibernate(ctx, idA); return err }},
		{"wake", "sandbox is awake", func(ctx context.Context) error { _, err := d.Wake(ctx, idA); return err }},
		{"delete", "sandbox is deleted", func(ctx context.Context) error { return d.Delete(ctx, idA, 1) }},
	} {
		must(t, c.do(hostapi.WithRequestID(t.Context(), "req-"+c.name)))
		said := log.take()
		if !strings.Contains(strings.Join(said, "\n"), c.says) {
			t.Errorf("%s: no line says %q: %q", c.name, c.says, said)
		}
		for _, line := range said {
			if !strings.Contains(line, "request_id=req-"+c.name) {
				t.Errorf("%s: %s", c.name, line)
			}
		}
	}
}
