package boxtest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// Daemon is one run of a host's daemon on a machine: its boxes and their guests.
type Daemon struct {
	*box.Host
	*guestio.Guests
	Ledger *ledger.Ledger
}

// Run returns a daemon that has recovered nothing and serves no Put yet.
func Run(w *World, l *ledger.Ledger, change ...func(*box.Config, *box.Deps)) *Daemon {
	cfg, deps := w.Config(), w.Deps(l)
	for _, f := range change {
		f(&cfg, &deps)
	}
	h := box.New(cfg, deps)
	return &Daemon{Host: h, Guests: h.Guests(), Ledger: l}
}

// Close ends the daemon. Its VMs live on.
func (d *Daemon) Close() { d.Host.Close() }

// Start starts a daemon with an empty ledger, until the test ends.
func Start(t testing.TB, w *World, change ...func(*box.Config, *box.Deps)) *Daemon {
	t.Helper()
	l, err := ledger.Open(w.Paths.Ledger(), "h1")
	Must(t, err)
	return Serve(t, w, l, change...)
}

// Serve is Start on a ledger that is open.
func Serve(t testing.TB, w *World, l *ledger.Ledger, change ...func(*box.Config, *box.Deps)) *Daemon {
	t.Helper()
	d := Run(w, l, change...)
	d.Open()
	t.Cleanup(func() { d.Close(); _ = l.Close() })
	return d
}

// Spec is a box of the template that a World has.
func Spec(generation uint64) hostapi.BoxSpec {
	return hostapi.BoxSpec{Generation: generation, WorkspaceID: "ws", Template: "base", Env: map[string]string{"A": "b"}}
}

// Put makes a box.
func Put(t testing.TB, d *Daemon, id string, change ...func(*hostapi.BoxSpec)) hostapi.Box {
	t.Helper()
	s := Spec(1)
	s.Hostname = "host-" + id[:1] + id[25:]
	for _, f := range change {
		f(&s)
	}
	b, err := d.Put(t.Context(), id, s)
	Must(t, err)
	return b
}

// WantStatus looks at a box.
func WantStatus(t testing.TB, d *Daemon, id string, want hostapi.Status) hostapi.Box {
	t.Helper()
	b, err := d.Get(id)
	Must(t, err)
	if b.Status != want {
		t.Errorf("status = %s, want %s (error %q)", b.Status, want, b.Error)
	}
	return b
}

// NothingLeft fails where anything of a box is left.
func NothingLeft(t testing.TB, w *World, d *Daemon) {
	t.Helper()
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left over: %s", strings.Join(left, ", "))
	}
	if recs := d.Ledger.Boxes(); len(recs) > 0 {
		t.Errorf("left in the ledger: %+v", recs)
	}
	if got := d.ReservedMB(); got != 0 {
		t.Errorf("%d MB still reserved", got)
	}
}

// WithEvents has a daemon tell events.
func WithEvents(e *Events) func(*box.Config, *box.Deps) {
	return func(_ *box.Config, d *box.Deps) { d.Events = e }
}

// Failing makes each call of a step fail until it is told otherwise.
type Failing struct {
	mu   sync.Mutex
	step string
}

// At names the step.
func (f *Failing) At(step string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step = step
}

// Run is a Step.
func (f *Failing) Run(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == f.step {
		return ErrInjected
	}
	return nil
}

// Faulty is a machine whose steps can be made to fail, with a daemon on it.
func Faulty(t testing.TB, change ...func(*box.Config, *box.Deps)) (*World, *Daemon, *Failing) {
	t.Helper()
	w := NewWorld(t)
	f := &Failing{}
	w.SetStep(f.Run)
	return w, Start(t, w, change...), f
}

// Cold has a box booted.
func Cold(s *hostapi.BoxSpec) { s.Boot = hostapi.BootCold }

// BlockAt holds the step up until proceed is closed or the step is cut off.
func BlockAt(step string, reached chan struct{}, proceed <-chan struct{}) func(context.Context, string) error {
	var once sync.Once
	return func(ctx context.Context, name string) error {
		if name != step {
			return nil
		}
		once.Do(func() { close(reached) })
		select {
		case <-proceed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Must ends a test that something failed in.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Await waits until something is so.
func Await(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("condition did not come true within a minute")
		case <-tick.C:
		}
	}
}
