package guestio_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// busyGuest is one that takes identities only when it comes to it.
type busyGuest struct {
	mu    sync.Mutex
	busy  bool
	told  []guestapi.Identity // in their order, those that it did not take too
	taken int
}

func (g *busyGuest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := boxtest.ReadIdentity(r)
	if r.URL.Path != guestapi.PathIdentity || err != nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = append(g.told, id)
	if g.busy {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(guestapi.Error{Error: "too many requests at once"})
		return
	}
	g.taken++
	_ = json.NewEncoder(w).Encode(guestapi.IdentityConfirmation{Generation: id.Generation, EntropyBits: 8 * len(id.Entropy)})
}

func (g *busyGuest) set(busy bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = busy
}

func (g *busyGuest) tries() []guestapi.Identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.told)
}

// identities are the tries without repetitions.
func identities(tries []guestapi.Identity) (out []string) {
	for _, id := range tries {
		out = append(out, string(id.Entropy))
	}
	return slices.Compact(out)
}

// warnings counts the lines of a log that are about a late clock.
type warnings struct {
	slog.Handler
	mu sync.Mutex
	n  int
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if strings.Contains(r.Message, "clock") {
		w.n++
	}
	return nil
}

func (w *warnings) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

// withBusyGuest starts a box whose guest is too busy to take an identity.
func withBusyGuest(t *testing.T) (*daemon, *busyGuest, *warnings) {
	t.Helper()
	w := boxtest.NewWorld(t)
	log := &warnings{Handler: slog.DiscardHandler}
	d := start(t, w, func(_ *box.Config, deps *box.Deps) { deps.Log = slog.New(log) })
	put(t, d, idA)
	g := &busyGuest{busy: true}
	w.Guest = g
	return d, g, log
}

func TestALateClockIsSetInTheEnd(t *testing.T) {
	for name, move := range map[string]func(d *daemon) error{
		"after a capture": func(d *daemon) error {
			_, err := d.Captures().Make(t.Context(), "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			return err
		},
		"after a resume": func(d *daemon) error {
			if _, err := d.Pause(t.Context(), idA); err != nil {
				return err
			}
			_, err := d.Resume(t.Context(), idA)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, g, log := withBusyGuest(t)
			must(t, move(d)) // a late clock fails nothing
			await(t, func() bool { return len(g.tries()) >= 3 })
			wantStatus(t, d, idA, hostapi.StatusRunning)
			g.set(false)
			await(t, func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.taken == 1 })
			tries := g.tries()
			if ids := identities(tries); len(ids) != 1 {
				t.Errorf("%d identities: one that was taken without an answer would be taken twice", len(ids))
			}
			for _, id := range tries {
				if !id.Resumed || len(id.SSHHostKeys) != 0 || id.Hostname != "host-aa" {
					t.Errorf("told %+v", id)
				}
			}
			if n := log.count(); n != 1 {
				t.Errorf("it is logged %d times", n)
			}
		})
	}
}

// A guest that stands still once more is told the time by what let it go on.
func TestALateClockGivesWayToTheNext(t *testing.T) {
	d, g, _ := withBusyGuest(t)
	capture := func(id string) {
		t.Helper()
		before := len(identities(g.tries()))
		_, err := d.Captures().Make(t.Context(), id, hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
		must(t, err)
		await(t, func() bool { return len(identities(g.tries())) == before+1 })
	}
	capture("cap-1")
	capture("cap-2")
	await(t, func() bool { return len(g.tries()) >= 6 })
	// Paused, it is told nothing; its resume tells it.
	_, err := d.Pause(t.Context(), idA)
	must(t, err)
	g.set(false)
	_, err = d.Resume(t.Context(), idA)
	must(t, err)
	// Nor is it told anything late once it has been asleep.
	_, err = d.Hibernate(t.Context(), idA)
	must(t, err)
	_, err = d.Wake(t.Context(), idA)
	must(t, err)
	d.Close()
	if ids := identities(g.tries()); len(ids) != 4 {
		t.Errorf("%d identities one after the other, want those of two captures, a resume and a wake", len(ids))
	}
}

// It ends with its box, and with the daemon.
func TestALateClockEndsWithItsBox(t *testing.T) {
	for name, end := range map[string]func(d *daemon) error{
		"deleted":    func(d *daemon) error { return d.Delete(t.Context(), idA, 1) },
		"left alone": func(d *daemon) error { d.Close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			d, g, _ := withBusyGuest(t)
			_, err := d.Captures().Make(t.Context(), "cap-1", hostapi.CaptureSpec{BoxID: idA, Generation: 1, Memory: true})
			must(t, err)
			await(t, func() bool { return len(g.tries()) >= 1 })
			must(t, end(d))
			before := len(g.tries())
			d.Close() // waits for what is under way
			if n := len(g.tries()); n != before {
				t.Errorf("it was told %d times after its end", n-before)
			}
		})
	}
}
