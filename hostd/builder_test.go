package hostd

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// said tells of each record that is logged.
type said chan string

func (s said) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}

func TestBuildersTakeTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "build.lock")
	first, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	log := make(said, 1)
	b := &builder{log: slog.New(slog.NewTextHandler(log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := b.turn(ctx, path)
		got <- err
	}()
	<-log // it waits
	cancel()
	if err := <-got; err == nil || !strings.Contains(err.Error(), "another hostd builds a template for this host") {
		t.Errorf("given up: %v", err)
	}
	go func() {
		lock, err := b.turn(t.Context(), path)
		if err == nil {
			err = lock.Close()
		}
		got <- err
	}()
	<-log
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("after the first: %v", err)
	}
}
