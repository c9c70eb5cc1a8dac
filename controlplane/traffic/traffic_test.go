package traffic

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)} }

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestRequestsAreCounted(t *testing.T) {
	c := newClock()
	b := New(c.read, "e1")
	for _, r := range []Request{
		{Status: 200, First: 5 * time.Millisecond, Received: 1, Sent: 10},
		{Status: 204, First: 6 * time.Millisecond, Held: true, Class: 1},
		{Status: 503, First: 2 * time.Hour},
		{Status: 0, First: -time.Second, Class: 99},
		{Status: 999},
	} {
		b.Record("a", r)
		c.pass(time.Minute)
	}
	b.Woken("a")
	got := b.Report("a", Question{Counts: true})
	if got.Total.Statuses != [6]int64{1, 0, 2, 0, 0, 2} || got.Total.Classes != [4]int64{3, 1, 0, 1} || got.Total.Held != 1 || got.Wakes != 1 {
		t.Errorf("%+v", got.Total)
	}
	if b := got.Total.Buckets; b[0] != 3 || b[1] != 1 || b[len(b)-1] != 1 {
		t.Errorf("buckets %v", b)
	}
	if got.Total.Received != 1 || got.Total.Sent != 10 || len(got.Minutes) != 5 || got.Minutes[4].Statuses[5] != 1 || len(got.Entries) != 0 {
		t.Errorf("%+v", got)
	}
	c.pass(58 * time.Minute)
	if got := b.Report("a", Question{Counts: true}); len(got.Minutes) != 1 || got.Total.Statuses[2] != 2 {
		t.Errorf("an hour later: %+v", got)
	}
	if got := b.Report("b", Question{Counts: true, Entries: 5}); !got.Since.IsZero() || got.Epoch != "e1" {
		t.Errorf("of an app without requests: %+v", got)
	}
}

// An hour is told of while it lasts and during the next one.
func TestRequestsAreCountedByHours(t *testing.T) {
	c := newClock()
	b := New(c.read, "e1")
	first := c.read().Unix()
	b.Record("a", Request{Status: 200})
	c.pass(30 * time.Minute)
	b.Record("a", Request{Status: 500, First: 20 * time.Millisecond})
	c.pass(45 * time.Minute)
	b.Record("a", Request{Status: 200})
	all := b.Hours()
	if len(all) != 2 || all[0].AppID != "a" || all[0].At != first || all[0].Statuses != [6]int64{2: 1, 5: 1} || all[0].Buckets[2] != 1 || all[1].At != first+3600 || all[1].Statuses[2] != 1 {
		t.Errorf("%+v", all)
	}
	c.pass(time.Hour)
	if all := b.Hours(); len(all) != 1 || all[0].At != first+3600 {
		t.Errorf("an hour later %+v", all)
	}
	b.Record("a", Request{Status: 200})
	if all := b.Hours(); len(all) != 2 || all[0].At != first+3600 {
		t.Errorf("with the next %+v", all)
	}
	c.pass(3 * time.Hour)
	if all := b.Hours(); len(all) != 0 {
		t.Errorf("of old hours %+v", all)
	}
}

func TestTheLatestRequestsAreKept(t *testing.T) {
	c := newClock()
	b := New(c.read, "e1")
	for i := range 3 * maxEntries / 2 {
		b.Record("a", Request{ID: fmt.Sprint(i), Method: "GET", Path: "/p", Status: 200, Took: time.Second})
	}
	all := b.Report("a", Question{Entries: 1000}).Entries
	if len(all) != maxEntries || all[0].Seq != maxEntries/2+1 || all[maxEntries-1].Seq != 3*maxEntries/2 {
		t.Fatalf("%d entries", len(all))
	}
	for i := range all {
		if all[i].Seq != all[0].Seq+int64(i) {
			t.Fatalf("entry %d is number %d", i, all[i].Seq)
		}
	}
	if e := all[0]; e.At != c.read().Add(-time.Second).UnixMilli() || e.TookMS != 1000 {
		t.Errorf("%+v", e)
	}
	last := all[maxEntries-1].Seq
	if got := b.Report("a", Question{Entries: 5, After: last - 2, Epoch: "e1"}).Entries; len(got) != 2 || got[1].Seq != last {
		t.Errorf("after one: %+v", got)
	}
	if got := b.Report("a", Question{Entries: 3}).Entries; len(got) != 3 || got[2].Seq != last {
		t.Errorf("the last three: %+v", got)
	}
	// A replica that was restarted numbers anew.
	if got := b.Report("a", Question{Entries: 500, After: last, Epoch: "e0"}).Entries; len(got) != maxEntries {
		t.Errorf("of another run: %d", len(got))
	}
}

func TestWhatClientsChooseIsBounded(t *testing.T) {
	b := New(newClock().read, "e1")
	long := strings.Repeat("x", 1<<20)
	b.Record("a", Request{ID: "id", Method: long, Path: "/" + long, Status: 200})
	e := b.Report("a", Question{Entries: 1}).Entries[0]
	if len(e.Path) != maxPath || !e.Cut || len(e.Method) != maxMethod || b.bytes.Load() != entryBytes+maxPath+maxMethod+2 {
		t.Errorf("%d of the path, %d of the method, %d bytes", len(e.Path), len(e.Method), b.bytes.Load())
	}
}

func TestThousandsOfAppsStayWithinBounds(t *testing.T) {
	c := newClock()
	b := New(c.read, "e1")
	b.maxApps, b.maxBytes = 100, 100*(entryBytes+2)
	path := strings.Repeat("p", 100)
	for i := range 1000 {
		c.pass(time.Second)
		b.Record("busy", Request{ID: "1", Method: "GET", Path: path, Status: 200})
		b.Record(fmt.Sprint(i), Request{ID: "1", Method: "GET", Path: path, Status: 200})
		if n := b.count.Load(); n > 100 {
			t.Fatalf("%d apps", n)
		}
		if n := b.bytes.Load(); n > b.maxBytes+1000 {
			t.Fatalf("%d bytes", n)
		}
	}
	if got := b.Report("busy", Question{Counts: true}); got.Total.Statuses[2] != 1000 {
		t.Errorf("the app that is used most was forgotten: %+v", got.Total)
	}
	if got := b.Report("0", Question{Counts: true}); !got.Since.IsZero() {
		t.Error("the one that was used longest ago is there")
	}
	n, bytes := int64(0), int64(0)
	b.apps.Range(func(_, a any) bool {
		n++
		for i := range a.(*app).entries.ring {
			bytes += a.(*app).entries.ring[i].bytes()
		}
		return true
	})
	if n != b.count.Load() || bytes != b.bytes.Load() {
		t.Errorf("there are %d apps of %d bytes, counted as %d of %d", n, bytes, b.count.Load(), b.bytes.Load())
	}
}

func TestNothingIsLostWhileAppsAreForgotten(t *testing.T) {
	b := New(time.Now, "e1")
	b.maxApps = 4
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				b.Record(fmt.Sprint((w+i)%12), Request{ID: "1", Method: "GET", Path: "/", Status: 200})
				b.Report(fmt.Sprint(i%12), Question{Counts: true, Entries: 10})
			}
		})
	}
	wg.Wait()
	bytes := int64(0)
	b.apps.Range(func(_, a any) bool {
		for i := range a.(*app).entries.ring {
			bytes += a.(*app).entries.ring[i].bytes()
		}
		return true
	})
	if bytes != b.bytes.Load() {
		t.Errorf("%d bytes, counted as %d", bytes, b.bytes.Load())
	}
}

// BenchmarkRecord is what a request pays. CPU time says it also on a busy machine.
func BenchmarkRecord(b *testing.B) {
	used := func() int64 {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return u.Utime.Nano() + u.Stime.Nano()
	}
	book := New(time.Now, "e1")
	r := Request{ID: "req_abcdefghijklmnopqrst", Method: "GET", Path: "/assets/index-3f2a.js", Status: 200, First: 12 * time.Millisecond, Took: 13 * time.Millisecond, Sent: 4096}
	b.ReportAllocs()
	before := used()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			book.Record("app-k7m2qz4x", r)
		}
	})
	b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op")
}
