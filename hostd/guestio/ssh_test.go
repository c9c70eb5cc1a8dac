package guestio_test

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// sshGuests are slots whose guests have an SSH server that takes a while to start.
type sshGuests struct {
	box.Slots

	mu          sync.Mutex
	began       []time.Time // when each probe connected
	now, atOnce int
}

const sshStart = 400 * time.Millisecond

func (g *sshGuests) Dial(ctx context.Context, n, port int) (net.Conn, error) {
	if port != 22 {
		return g.Slots.Dial(ctx, n, port)
	}
	host, guest := net.Pipe()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.began = append(g.began, time.Now())
	g.now++
	g.atOnce = max(g.atOnce, g.now)
	go func() {
		defer guest.Close()
		<-time.After(sshStart) // as all time here, by the bubble's clock
		g.mu.Lock()
		g.now--
		g.mu.Unlock()
		_, _ = io.WriteString(guest, "SSH-2.0-test\r\n")
	}()
	return host, nil
}

func (g *sshGuests) probes() []time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.began)
}

// To answer a probe a guest starts a server, so it is not probed while it is new
// or being used, nor all guests of a host together.
func TestSSHProbesKeepOutOfTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := boxtest.NewWorld(t)
		guests, events := &sshGuests{}, &boxtest.Events{}
		d := start(t, w, withEvents(events), func(_ *box.Config, deps *box.Deps) {
			guests.Slots, deps.Slots = deps.Slots, guests
		})
		began := time.Now()
		const boxes = 4
		for i := range boxes {
			_, err := d.Put(t.Context(), id(i), spec(1))
			must(t, err)
		}
		// A connection into the first box is open for ten seconds.
		conn, err := d.DialPort(t.Context(), id(0), 22)
		must(t, err)
		synctest.Wait()
		<-time.After(3*time.Second - time.Millisecond)
		if n := len(guests.probes()); n != 1 { // the one above
			t.Errorf("%d connections to port 22 before three seconds had passed, want 1", n)
		}
		<-time.After(7 * time.Second)
		if n := len(guests.probes()); n != boxes {
			t.Errorf("%d connections while one box is in use, want that and a probe of each other box", n)
		}
		conn.Close()
		<-time.After(time.Minute)
		all := guests.probes()
		if len(all) != boxes+1 {
			t.Errorf("%d connections in all, want %d", len(all), boxes+1)
		}
		if most := max(1, runtime.NumCPU()/2); guests.atOnce > most {
			t.Errorf("%d guests were starting a server at once, want at most %d", guests.atOnce, most)
		}
		if last := all[len(all)-1].Sub(began); last < 10*time.Second-time.Millisecond {
			t.Errorf("the box in use was probed after %s", last)
		}
		for i := range boxes {
			var took []any
			for _, ev := range events.Of(id(i)) {
				if ev.Type == hostapi.EventSSHReady {
					took = append(took, ev.Metadata["ssh_ready_ms"])
				}
			}
			// What a box was left alone, or waited for others' probes, is none of it.
			if !slices.Equal(took, []any{sshStart.Milliseconds()}) {
				t.Errorf("box %d: SSH ready after %v ms, want once, after %d", i, took, sshStart.Milliseconds())
			}
		}
		d.Close()
	})
}
