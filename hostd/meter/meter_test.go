package meter

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a host whose clocks and boxes a test sets.
type rig struct {
	t       testing.TB
	file    string
	wall    time.Time
	elapsed time.Duration
	boot    string
	boxes   []Box
	cpu     map[string]time.Duration
	named   uint64 // the last batch that was written down
	*Meter
}

func newRig(t testing.TB, at string) *rig {
	wall, err := time.Parse(time.RFC3339, at)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, file: filepath.Join(t.TempDir(), "usage"), wall: wall, boot: "boot-1", cpu: map[string]time.Duration{}}
	r.start()
	return r
}

// start begins a run of the daemon; what an earlier one had in memory is lost.
func (r *rig) start() {
	r.t.Helper()
	began := r.elapsed
	m, err := Open(Config{
		File: r.file, Boxes: func() ([]Box, bool) { return r.boxes, true },
		CPU:     func(id string) (time.Duration, bool) { d, ok := r.cpu[id]; return d, ok },
		Now:     func() time.Time { return r.wall },
		Elapsed: func() time.Duration { return r.elapsed - began },
		Uptime:  func() (string, time.Duration) { return r.boot, r.elapsed },
		Log:     slog.New(slog.DiscardHandler),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.Meter != nil {
		r.journal.close()
	}
	r.Meter = m
	r.t.Cleanup(func() { m.journal.close() })
	r.Look()
}

func (r *rig) pass(d time.Duration) { r.wall, r.elapsed = r.wall.Add(d), r.elapsed+d }

func (r *rig) run(seconds int) {
	for range seconds {
		r.pass(time.Second)
		r.Look()
	}
}

func (r *rig) set(id string, s hostapi.Status) {
	for i := range r.boxes {
		if r.boxes[i].ID == id {
			r.boxes[i].Status = s
			return
		}
	}
	r.boxes = append(r.boxes, Box{ID: id, Status: s, StartedAt: r.wall})
}

func (r *rig) next(after hostapi.UsageCursor) hostapi.UsageBatch {
	r.t.Helper()
	b, err := r.Next(after, r.wall)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// drain takes everything, as a leader does.
func (r *rig) drain(cur *hostapi.UsageCursor, sum map[string]hostapi.BoxUsage) (months map[string]int64) {
	months = map[string]int64{}
	for {
		b := r.next(*cur)
		if b.Sequence == 0 {
			return months
		}
		if b.Epoch == cur.Epoch && b.Sequence <= cur.Sequence {
			r.t.Fatalf("batch %d again, after it was written down", b.Sequence)
		}
		if end := monthEnd(b.From); b.To.After(end) {
			r.t.Fatalf("a batch from %s to %s", b.From, b.To)
		}
		*cur = hostapi.UsageCursor{Epoch: b.Epoch, Sequence: b.Sequence}
		r.named = b.Sequence
		for _, u := range b.Boxes {
			if span := b.To.Sub(b.From).Milliseconds(); u.DiskMS > span || u.RunMS > u.MemoryMS || u.MemoryMS > u.DiskMS {
				r.t.Fatalf("%+v in %d ms", u, span)
			}
			s := sum[u.ID]
			s.RunMS, s.MemoryMS, s.DiskMS, s.CPUMS = s.RunMS+u.RunMS, s.MemoryMS+u.MemoryMS, s.DiskMS+u.DiskMS, s.CPUMS+u.CPUMS
			sum[u.ID] = s
			months[b.From.Format("2006-01")] += u.RunMS
		}
		if !b.More {
			return months
		}
	}
}

func TestWhatIsCounted(t *testing.T) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	r.set("a", hostapi.StatusRunning)
	r.cpu["a"] = 0
	r.run(10)
	r.cpu["a"] = 3500 * time.Millisecond
	r.Write()
	r.set("a", hostapi.StatusPaused)
	r.run(1) // it was running at the last look
	r.run(4)
	r.set("a", hostapi.StatusHibernated)
	r.run(1)
	delete(r.cpu, "a")
	r.run(99)
	r.set("a", hostapi.StatusRunning)
	r.run(1)
	r.cpu["a"] = 700 * time.Millisecond // of a new group
	r.run(20)
	sum := map[string]hostapi.BoxUsage{}
	r.drain(new(hostapi.UsageCursor{}), sum)
	want := hostapi.BoxUsage{RunMS: 31_000, MemoryMS: 36_000, DiskMS: 136_000, CPUMS: 4200}
	if got := sum["a"]; got != want {
		t.Errorf("got %+v", got)
	}
}

func TestABoxThatEndsIsCountedUntilItWasSeenLast(t *testing.T) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	r.set("a", hostapi.StatusRunning)
	r.set("b", hostapi.StatusRunning)
	r.run(5)
	r.boxes = r.boxes[:1]
	r.set("a", hostapi.StatusFailed)
	r.run(5)
	sum := map[string]hostapi.BoxUsage{}
	r.drain(new(hostapi.UsageCursor{}), sum)
	if a, b := sum["a"], sum["b"]; a.RunMS != 5000 || a.DiskMS != 10_000 || b.RunMS != 5000 {
		t.Errorf("a %+v, b %+v", a, b)
	}
}

// A box whose group is gone before anything is written has used processor time, too.
func TestTheProcessorTimeOfAShortLife(t *testing.T) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	for n, status := range []hostapi.Status{hostapi.StatusStarting, hostapi.StatusRunning, hostapi.StatusRunning, hostapi.StatusRunning, hostapi.StatusRunning} {
		for _, id := range []string{"deleted", "sleeps"} {
			r.set(id, status)
			r.cpu[id] = time.Duration(n+1) * 2 * time.Second
		}
		r.run(1)
	}
	clear(r.cpu)
	r.boxes = r.boxes[1:]
	r.set("sleeps", hostapi.StatusHibernated)
	r.run(1)
	r.set("sleeps", hostapi.StatusRunning)
	r.cpu["sleeps"] = 500 * time.Millisecond // of a new group
	r.run(1)
	sum := map[string]hostapi.BoxUsage{}
	r.drain(new(hostapi.UsageCursor{}), sum)
	if deleted, sleeps := sum["deleted"].CPUMS, sum["sleeps"].CPUMS; deleted != 10_000 || sleeps != 10_500 {
		t.Errorf("%d and %d ms", deleted, sleeps)
	}
}

func TestABatchLiesWithinOneMonth(t *testing.T) {
	r := newRig(t, "2026-03-31T23:59:50.4Z")
	r.set("a", hostapi.StatusRunning)
	r.run(30)
	sum := map[string]hostapi.BoxUsage{}
	months := r.drain(new(hostapi.UsageCursor{}), sum)
	if months["2026-03"] != 9600 || months["2026-04"] != 20_400 {
		t.Errorf("%v", months)
	}
}

// The same batch is answered, whatever happens, until it is named.
func TestABatchNeverChanges(t *testing.T) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	r.set("a", hostapi.StatusRunning)
	r.run(5)
	first := r.next(hostapi.UsageCursor{})
	r.run(5)
	r.start()
	r.run(1)
	again := r.next(hostapi.UsageCursor{})
	again.More = first.More
	if fmt.Sprint(first) != fmt.Sprint(again) {
		t.Errorf("first %+v, then %+v", first, again)
	}
	after := hostapi.UsageCursor{Epoch: first.Epoch, Sequence: first.Sequence}
	if b := r.next(after); b.Sequence <= first.Sequence {
		t.Errorf("after %d comes %d", first.Sequence, b.Sequence)
	}
	// A copy of the disk from before: what it counts from now on is new all the same.
	far := hostapi.UsageCursor{Epoch: first.Epoch, Sequence: 70}
	r.run(3)
	if b := r.next(far); b.Sequence != 71 {
		t.Errorf("after 70 comes %d", b.Sequence)
	}
}

func TestTheLeadersClockCounts(t *testing.T) {
	r := newRig(t, "2031-03-10T10:00:00Z") // years ahead
	r.set("a", hostapi.StatusRunning)
	r.run(20)
	r.Write()
	r.run(5)
	leader := time.Date(2026, 5, 7, 0, 0, 10, 0, time.UTC)
	b, err := r.Next(hostapi.UsageCursor{}, leader)
	if err != nil {
		t.Fatal(err)
	}
	if b.To.Sub(leader).Abs() > time.Second || b.To.Sub(b.From) != 25*time.Second || b.Boxes[0].RunMS != 25_000 {
		t.Errorf("%+v", b)
	}
	// A clock of the host's that is set back changes nothing.
	r.wall = r.wall.AddDate(-5, 0, 0)
	r.run(5)
	next, err := r.Next(hostapi.UsageCursor{Epoch: b.Epoch, Sequence: b.Sequence}, leader.Add(5*time.Second))
	if err != nil || !next.From.Equal(b.To) || next.Boxes[0].RunMS != 5000 {
		t.Errorf("%+v, %v", next, err)
	}
}

// A daemon is killed at any moment and a leader asks at any other: the sum of what the
// batches say is what boxes used, to the millisecond, also while no daemon ran.
func TestNothingIsLostOrCountedTwice(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRig(t, "2026-01-31T23:58:00Z")
		sum := map[string]hostapi.BoxUsage{}
		var cur hostapi.UsageCursor
		var want int64
		for range 400 {
			switch n := rnd.IntN(100); {
			case n < 70:
				if len(r.boxes) < 5 && rnd.IntN(4) == 0 {
					r.set(fmt.Sprint("box", rnd.IntN(100)), hostapi.StatusRunning)
				}
				took := rnd.Int64N(3000)
				r.pass(time.Duration(took) * time.Millisecond)
				r.Look()
				want += took * int64(len(r.boxes))
			case n < 80:
				r.Write()
			case n < 90: // killed
				if r.written == nil { // nothing was ever on disk
					for _, b := range r.pending.boxes {
						want -= b.DiskMS
					}
				}
				if took := rnd.Int64N(5000); r.written != nil { // before it runs again
					r.pass(time.Duration(took) * time.Millisecond)
					want += took * int64(len(r.boxes))
				}
				r.tear(rnd)
				r.start()
			case n < 94: // asked, and the answer is lost
				r.next(cur)
			default:
				r.drain(&cur, sum)
			}
			if got := r.total(sum); got != want {
				t.Fatalf("seed %d: %d ms are there, %d were seen", seed, got, want)
			}
		}
	}
}

// held is what the meter has, on disk and in memory.
func (r *rig) held() (ms int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range append(r.open[:len(r.open):len(r.open)], r.pending) {
		if s != nil {
			for _, b := range s.boxes {
				ms += b.DiskMS
			}
		}
	}
	if r.sealed != nil {
		for _, b := range r.sealed.Boxes {
			ms += b.DiskMS
		}
	}
	return ms
}

// total is what was handed out and what is held; what is both counts once.
func (r *rig) total(sum map[string]hostapi.BoxUsage) int64 {
	ms := r.held()
	for _, s := range sum {
		ms += s.DiskMS
	}
	if r.sealed != nil && r.taken(r.sealed) {
		for _, b := range r.sealed.Boxes {
			ms -= b.DiskMS
		}
	}
	return ms
}

func (r *rig) taken(b *hostapi.UsageBatch) bool { return b.Sequence <= r.named }

// tear leaves a part of a line at the end of the file, as a crash does.
func (r *rig) tear(rnd *rand.Rand) {
	f, err := os.OpenFile(r.file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	if rnd.IntN(2) == 0 {
		_, _ = f.WriteString("0badc0de {\"sample\":{\"fr")
	}
}

// What a box uses while no daemon runs counts, once, if the box is found again.
func TestBoxesGoOnWithoutADaemon(t *testing.T) {
	r := newRig(t, "2026-03-31T23:00:00Z")
	for id, status := range map[string]hostapi.Status{
		"runs": hostapi.StatusRunning, "pauses": hostapi.StatusRunning, "dies": hostapi.StatusRunning, "ends": hostapi.StatusRunning,
		"sleeps": hostapi.StatusHibernated, "wakes": hostapi.StatusHibernated,
	} {
		r.set(id, status)
	}
	r.cpu["runs"] = 0
	r.run(10)
	r.cpu["runs"] = 2 * time.Second
	r.Write()
	r.run(5) // not on disk
	r.set("new", hostapi.StatusRunning)
	r.pass(3595 * time.Second)
	r.cpu["runs"], r.cpu["new"] = 50*time.Second, 7*time.Second
	r.set("pauses", hostapi.StatusPaused)
	r.set("dies", hostapi.StatusFailed)
	r.set("wakes", hostapi.StatusRunning)
	r.boxes = slices.DeleteFunc(r.boxes, func(b Box) bool { return b.ID == "ends" })
	for range 3 { // killed again and again before it can write
		r.start()
		r.run(1)
	}
	r.Write()
	sum := map[string]hostapi.BoxUsage{}
	months := r.drain(new(hostapi.UsageCursor{}), sum)
	for id, want := range map[string]hostapi.BoxUsage{
		"runs":   {RunMS: 3_613_000, MemoryMS: 3_613_000, DiskMS: 3_613_000, CPUMS: 50_000},
		"new":    {RunMS: 3_598_000, MemoryMS: 3_598_000, DiskMS: 3_598_000, CPUMS: 7000},
		"pauses": {RunMS: 10_000, MemoryMS: 3_613_000, DiskMS: 3_613_000},
		"dies":   {RunMS: 10_000, MemoryMS: 10_000, DiskMS: 3_613_000},
		"ends":   {RunMS: 10_000, MemoryMS: 10_000, DiskMS: 10_000},
		"sleeps": {DiskMS: 3_613_000},
		"wakes":  {RunMS: 1000, MemoryMS: 1000, DiskMS: 3_613_000},
	} {
		got := sum[id]
		got.ID = ""
		if got != want {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	if months["2026-04"] == 0 || months["2026-03"] == 0 {
		t.Errorf("%v", months)
	}

	// Of days without a daemon, one counts; after another boot, nothing.
	r.run(1)
	r.Write()
	var cur hostapi.UsageCursor
	r.drain(&cur, map[string]hostapi.BoxUsage{})
	r.pass(72 * time.Hour)
	r.start()
	r.Write()
	sum = map[string]hostapi.BoxUsage{}
	r.drain(&cur, sum)
	if got := time.Duration(sum["runs"].RunMS) * time.Millisecond; got != maxGap {
		t.Errorf("of three days, %s", got)
	}
	r.pass(time.Hour)
	r.boot = "boot-2"
	r.start()
	r.run(1)
	r.Write()
	sum = map[string]hostapi.BoxUsage{}
	r.drain(&cur, sum)
	if got := sum["runs"].RunMS; got != 1000 {
		t.Errorf("after another boot, %d ms", got)
	}
}

// A clock that is set back while no daemon runs takes nothing away.
func TestAClockSetBackWithoutADaemon(t *testing.T) {
	r := newRig(t, "2026-03-10T10:00:00Z")
	r.set("a", hostapi.StatusRunning)
	r.run(10)
	r.Write()
	r.pass(time.Minute)
	r.wall = r.wall.Add(-time.Hour)
	r.start()
	r.run(1)
	sum := map[string]hostapi.BoxUsage{}
	r.Write()
	var cur hostapi.UsageCursor
	for {
		b, err := r.Next(cur, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if b.Sequence == 0 {
			break
		}
		cur = hostapi.UsageCursor{Epoch: b.Epoch, Sequence: b.Sequence}
		for _, u := range b.Boxes {
			if span := b.To.Sub(b.From).Milliseconds(); u.RunMS > span {
				t.Errorf("%+v in %d ms", u, span)
			}
			s := sum[u.ID]
			s.RunMS += u.RunMS
			sum[u.ID] = s
		}
	}
	if got := sum["a"].RunMS; got != 71_000 {
		t.Errorf("%d ms", got)
	}
}
