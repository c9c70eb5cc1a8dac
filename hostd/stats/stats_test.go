package stats

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var start = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

// kernel is what a meter reads.
type kernel struct {
	mu    sync.Mutex
	now   time.Time
	boxes map[string]hostapi.Box
	cpu   map[string]time.Duration // by box with a cgroup
	taps  map[int][2]int64
	fails error // of the counters of taps
	asked int   // how often a cgroup was read
}

func newKernel() *kernel {
	return &kernel{now: start, boxes: map[string]hostapi.Box{}, cpu: map[string]time.Duration{}, taps: map[int][2]int64{}}
}

func (k *kernel) meter(t *testing.T, dir string) *Stats {
	t.Helper()
	m, err := New(Config{
		Boxes: func() []hostapi.Box {
			k.mu.Lock()
			defer k.mu.Unlock()
			var out []hostapi.Box
			for _, b := range k.boxes {
				out = append(out, b)
			}
			return out
		},
		Box: func(id string) (hostapi.Box, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			b, ok := k.boxes[id]
			if !ok {
				return hostapi.Box{}, hosterr.ErrNotFound
			}
			return b, nil
		},
		Group: func(id string) (Reading, bool, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.asked++
			cpu, there := k.cpu[id]
			if !there {
				return Reading{}, false, nil
			}
			return Reading{CPU: cpu, MemoryBytes: 64 << 20}, true, nil
		},
		Traffic: func(_ context.Context, slot int) (int64, int64, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.taps[slot][0], k.taps[slot][1], k.fails
		},
		Disk:  func(string) int64 { return 10 << 20 },
		Dir:   dir,
		Clock: func() time.Time { k.mu.Lock(); defer k.mu.Unlock(); return k.now },
		Log:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (k *kernel) put(id string, status hostapi.Status, slot int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.boxes[id]
	if b.ID == "" {
		b = hostapi.Box{ID: id, CreatedAt: k.now}
	}
	b.Status, b.Slot = status, slot
	k.boxes[id] = b
}

// use has a box use so much, and time pass.
func (k *kernel) use(id string, cpu time.Duration, slot int, received, sent int64, pass time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cpu[id] += cpu
	k.taps[slot] = [2]int64{k.taps[slot][0] + received, k.taps[slot][1] + sent}
	k.now = k.now.Add(pass)
}

func totalsOf(t *testing.T, m *Stats, id string) hostapi.BoxStats {
	t.Helper()
	u, err := m.Usage(t.Context(), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func want(t *testing.T, u hostapi.BoxStats, cpu time.Duration, received, sent int64) {
	t.Helper()
	if u.CPU != cpu || u.ReceivedBytes != received || u.SentBytes != sent {
		t.Errorf("totals %s, %d, %d; want %s, %d, %d", u.CPU, u.ReceivedBytes, u.SentBytes, cpu, received, sent)
	}
}

func TestTotalsGoOnOverHibernationsAndDaemons(t *testing.T) {
	k, dir := newKernel(), t.TempDir()
	m := k.meter(t, dir)
	k.put(idA, hostapi.StatusRunning, 3)
	k.use(idA, 2*time.Second, 3, 1000, 500, 10*time.Second)
	m.Sample(t.Context())
	want(t, totalsOf(t, m, idA), 2*time.Second, 1000, 500)

	// It hibernates between two samples: the cgroup goes, the tap stays.
	k.use(idA, time.Second, 3, 10, 0, 3*time.Second)
	m.Ending(t.Context(), idA)
	k.put(idA, hostapi.StatusHibernated, 3)
	delete(k.cpu, idA)
	u := totalsOf(t, m, idA)
	want(t, u, 3*time.Second, 1010, 500)
	if u.DiskBytes != 10<<20 || !u.Since.Equal(start) {
		t.Errorf("hibernated: %+v", u)
	}

	// It wakes and uses more than before at once, so that a lower counter tells nothing.
	k.put(idA, hostapi.StatusRunning, 3)
	k.use(idA, 5*time.Second, 3, 0, 40, time.Hour)
	m.Sample(t.Context())
	u = totalsOf(t, m, idA)
	want(t, u, 8*time.Second, 1010, 540)
	if u.MemoryBytes != 64<<20 {
		t.Errorf("it runs with %d bytes", u.MemoryBytes)
	}

	// Another daemon, while the box went on.
	k.use(idA, time.Second, 3, 1, 1, time.Minute)
	again := k.meter(t, dir)
	u = totalsOf(t, again, idA)
	want(t, u, 9*time.Second, 1011, 541)
	if len(u.History) != 0 || !u.Since.Equal(start) {
		t.Errorf("a new daemon has %+v", u)
	}

	// The machine was booted: everything begins anew, and says so.
	k.cpu[idA], k.taps[3] = time.Second, [2]int64{7, 7}
	booted := k.meter(t, t.TempDir())
	u = totalsOf(t, booted, idA)
	want(t, u, 0, 0, 0)
	if !u.Since.Equal(k.now) {
		t.Errorf("counted since %s, want %s", u.Since, k.now)
	}
}

func TestAWarmForkGoesOnWithItsParentsTap(t *testing.T) {
	k := newKernel()
	m := k.meter(t, t.TempDir())
	k.put(idA, hostapi.StatusRunning, 3)
	k.use(idA, time.Second, 3, 100, 100, 10*time.Second)
	m.Sample(t.Context())
	k.put(idA, hostapi.StatusPaused, -1)
	delete(k.cpu, idA)
	k.put(idB, hostapi.StatusRunning, 3)
	k.use(idB, time.Second, 3, 11, 12, time.Second)
	want(t, totalsOf(t, m, idB), time.Second, 11, 12)
	want(t, totalsOf(t, m, idA), time.Second, 100, 100)

	// Who gets a slot after a box is gone has a new tap.
	delete(k.boxes, idB)
	const idC = "cccccccccccccccccccccccccc"
	k.taps[3] = [2]int64{}
	k.put(idC, hostapi.StatusRunning, 3)
	k.use(idC, 0, 3, 500, 500, time.Second)
	want(t, totalsOf(t, m, idC), 0, 500, 500)
}

func TestHistoryIsAnHourOfWhatWasUsed(t *testing.T) {
	k := newKernel()
	m := k.meter(t, t.TempDir())
	k.put(idA, hostapi.StatusRunning, 3)
	for range 400 {
		k.use(idA, 5*time.Second, 3, 1000, 10, 10*time.Second)
		m.Sample(t.Context())
	}
	u := totalsOf(t, m, idA)
	if n := len(u.History); n < 359 || n > 361 {
		t.Fatalf("an hour has %d samples", n)
	}
	s := u.History[len(u.History)-1]
	if s.CPU != 5*time.Second || s.Took != 10*time.Second || s.ReceivedBytes != 1000 || s.SentBytes != 10 || !s.At.Equal(k.now) ||
		s.MemoryBytes != 64<<20 || s.DiskBytes != 10<<20 {
		t.Errorf("the last one is %+v", s)
	}
	if u, err := m.Usage(t.Context(), idA, time.Minute); err != nil || len(u.History) != 6 {
		t.Errorf("a minute has %d samples, %v", len(u.History), err)
	}
	if u, err := m.Usage(t.Context(), idA, 0); err != nil || len(u.History) != 0 {
		t.Errorf("none has %d samples, %v", len(u.History), err)
	}

	// While it hibernates nothing is added, and what is old goes.
	k.put(idA, hostapi.StatusHibernated, 3)
	k.use(idA, 0, 3, 0, 0, 2*time.Hour)
	m.Sample(t.Context())
	if u := totalsOf(t, m, idA); len(u.History) != 0 {
		t.Errorf("two hours later there are %d samples", len(u.History))
	}
	k.put(idA, hostapi.StatusRunning, 3)
	k.use(idA, time.Second, 3, 0, 0, 10*time.Second)
	m.Sample(t.Context())
	if u := totalsOf(t, m, idA); len(u.History) != 1 || u.History[0].Took != 10*time.Second {
		t.Errorf("after its wake: %+v", u.History)
	}
}

func TestGoneBoxesAreForgottenWithTheirFiles(t *testing.T) {
	k, dir := newKernel(), t.TempDir()
	m := k.meter(t, dir)
	k.put(idA, hostapi.StatusRunning, 3)
	k.use(idA, time.Second, 3, 1, 1, time.Second)
	m.Sample(t.Context())
	if _, err := os.Stat(filepath.Join(dir, idA)); err != nil {
		t.Fatal(err)
	}
	delete(k.boxes, idA)
	m.Sample(t.Context())
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 || len(m.boxes) != 0 || len(m.taps) != 0 {
		t.Errorf("left are %v, %d boxes, %d taps, %v", left, len(m.boxes), len(m.taps), err)
	}
	if _, err := m.Usage(t.Context(), idA, 0); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("its use: %v", err)
	}
	m.Ending(t.Context(), idA)
	if len(m.boxes) != 0 {
		t.Error("a box that is gone is known again")
	}
}

func TestWhatCannotBeReadIsNoLoss(t *testing.T) {
	k, dir := newKernel(), t.TempDir()
	m := k.meter(t, dir)
	k.put(idA, hostapi.StatusRunning, 3)
	k.use(idA, time.Second, 3, 100, 100, time.Second)
	m.Sample(t.Context())
	k.fails = errors.New("no such namespace")
	k.use(idA, time.Second, 3, 100, 100, 2*time.Second)
	want(t, totalsOf(t, m, idA), 2*time.Second, 100, 100)
	k.fails = nil
	k.use(idA, 0, 3, 0, 0, 2*time.Second)
	want(t, totalsOf(t, m, idA), 2*time.Second, 200, 200)

	if err := os.WriteFile(filepath.Join(dir, idA), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.use(idA, 0, 3, 0, 0, 2*time.Second)
	want(t, totalsOf(t, k.meter(t, dir), idA), 0, 0, 0) // its file is damaged
}

func TestAnsweringOftenAsksTheKernelSeldom(t *testing.T) {
	k := newKernel()
	m := k.meter(t, t.TempDir())
	k.put(idA, hostapi.StatusRunning, 3)
	for range 100 {
		totalsOf(t, m, idA)
	}
	if k.asked != 1 {
		t.Errorf("the kernel was asked %d times", k.asked)
	}
	for _, h := range []time.Duration{-time.Second, 2 * time.Hour} {
		if _, err := m.Usage(t.Context(), idA, h); !errors.Is(err, hosterr.ErrInvalid) {
			t.Errorf("a history of %s: %v", h, err)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	k := newKernel()
	m := k.meter(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.Run(ctx)
}
