package events

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	idA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var _ box.Events = (*Recorder)(nil)

// clock is a wall clock that stands still unless it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open opens a recorder. It is not shut at the end: so would be one that is killed.
func open(t testing.TB, dir string, change ...func(*Config)) *Recorder {
	t.Helper()
	cfg := Config{Dir: dir, HostID: "h1", BootID: "boot-1", Log: slog.New(slog.DiscardHandler), Now: newClock().Now}
	for _, c := range change {
		c(&cfg)
	}
	r, err := Open(cfg)
	must(t, err)
	return r
}

func emit(r *Recorder, id string, from, to int) {
	for n := from; n < to; n++ {
		r.Emit(id, hostapi.EventPaused, fmt.Sprint(n), nil)
	}
}

func messages(events []hostapi.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, e.Message)
	}
	return strings.Join(out, " ")
}

func numbers(from, to int) string {
	var out []string
	for n := from; n < to; n++ {
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, " ")
}

func TestAnEventIsWholeAndInOrder(t *testing.T) {
	r := open(t, t.TempDir())
	r.Open(idA, "ws1", "base")
	r.Emit(idA, hostapi.EventVMDied, "VM process ended", map[string]any{"exit_code": 1, "signal": "KILL"})
	emit(r, idA, 0, 3) // the clock stands still
	got, err := r.Query(idA, hostapi.EventQuery{})
	must(t, err)
	e := got[0]
	if e.SandboxID != idA || e.WorkspaceID != "ws1" || e.Template != "base" || e.HostID != "h1" ||
		e.Code != hostapi.EventError || string(e.Metadata) != `{"exit_code":1,"signal":"KILL"}` {
		t.Errorf("event = %+v", e)
	}
	for i, e := range got {
		if e.Time.Nanosecond()%1e6 != 0 || e.Time.Location() != time.UTC {
			t.Errorf("time %s is not of milliseconds in UTC", e.Time)
		}
		if i > 0 && (!e.Time.After(got[i-1].Time) || e.Seq != got[i-1].Seq+1) {
			t.Errorf("event %d: %s, number %d after %s, number %d", i, e.Time, e.Seq, got[i-1].Time, got[i-1].Seq)
		}
	}
}

func TestQueries(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "ws1", "base")
	emit(r, idA, 0, 700) // the ring has the last 512
	all, err := r.Query(idA, hostapi.EventQuery{Since: time.Unix(1, 0)})
	must(t, err)
	if got := messages(all); got != numbers(0, 700) {
		t.Fatalf("all = %s", got)
	}
	at := func(n int) time.Time { return all[n].Time }
	check := func(t *testing.T, r *Recorder) {
		for name, c := range map[string]struct {
			q        hostapi.EventQuery
			from, to int
		}{
			"nothing said":                  {hostapi.EventQuery{}, 600, 700},
			"tail":                          {hostapi.EventQuery{Tail: new(3)}, 697, 700},
			"tail 0":                        {hostapi.EventQuery{Tail: new(0)}, 0, 0},
			"the whole ring":                {hostapi.EventQuery{Tail: new(512)}, 188, 700},
			"more than the ring":            {hostapi.EventQuery{Tail: new(600)}, 100, 700},
			"more than there is":            {hostapi.EventQuery{Tail: new(10_000)}, 0, 700},
			"since, in the ring":            {hostapi.EventQuery{Since: at(650)}, 651, 700},
			"since, between two":            {hostapi.EventQuery{Since: at(650).Add(time.Microsecond)}, 651, 700},
			"since, the ring's first":       {hostapi.EventQuery{Since: at(188)}, 189, 700},
			"since, just before the ring":   {hostapi.EventQuery{Since: at(187)}, 188, 700},
			"since, only in the file":       {hostapi.EventQuery{Since: at(20)}, 21, 700},
			"since the last":                {hostapi.EventQuery{Since: at(699)}, 0, 0},
			"since the future":              {hostapi.EventQuery{Since: at(699).Add(time.Hour)}, 0, 0},
			"since and tail":                {hostapi.EventQuery{Since: at(100), Tail: new(5)}, 695, 700},
			"since and a tail that is more": {hostapi.EventQuery{Since: at(697), Tail: new(5)}, 698, 700},
		} {
			got, err := r.Query(idA, c.q)
			if err != nil || messages(got) != numbers(c.from, c.to) {
				t.Errorf("%s: %s, %v, want %d to %d", name, messages(got), err, c.from, c.to)
			}
		}
	}
	check(t, r)
	t.Run("after a restart", func(t *testing.T) { check(t, open(t, dir)) })
	if _, err := r.Query(idB, hostapi.EventQuery{}); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("query of a stranger = %v, want ErrNotFound", err)
	}
	if _, err := r.Query("../../etc/passwd", hostapi.EventQuery{}); !errors.Is(err, hosterr.ErrInvalid) {
		t.Errorf("query of a path = %v, want ErrInvalid", err)
	}
}

// An event that comes while a query is answered does not make the tail longer.
func TestATailIsNeverLongerThanAskedFor(t *testing.T) {
	r := open(t, t.TempDir())
	r.Open(idA, "", "")
	emit(r, idA, 0, 5)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		emit(r, idA, 5, 5000)
	}()
	for open := true; open; {
		select {
		case <-ended:
			open = false
		default:
		}
		for _, q := range []hostapi.EventQuery{{Tail: new(2)}, {Tail: new(0)}, {Since: time.Unix(1, 0), Tail: new(2)}} {
			got, err := r.Query(idA, q)
			must(t, err)
			if len(got) != *q.Tail {
				t.Fatalf("%d events for a tail of %d", len(got), *q.Tail)
			}
		}
	}
}

func TestTimeGoesOnWhenTheClockGoesBack(t *testing.T) {
	c := newClock()
	dir := t.TempDir()
	withClock := func(cfg *Config) { cfg.Now = c.Now }
	r := open(t, dir, withClock)
	r.Open(idA, "", "")
	emit(r, idA, 0, 1)
	c.move(-time.Hour)
	emit(r, idA, 1, 2)
	r = open(t, dir, withClock)
	c.move(-time.Hour)
	emit(r, idA, 2, 3)
	got, err := r.Query(idA, hostapi.EventQuery{})
	must(t, err)
	if len(got) != 3 || !got[1].Time.After(got[0].Time) || !got[2].Time.After(got[1].Time) {
		t.Errorf("events = %+v", got)
	}
}

func TestFilesAreBounded(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir, func(c *Config) { c.StreamBytes = 32 << 10 })
	r.Open(idA, "ws1", "base")
	emit(r, idA, 0, 3000)
	var sum int64
	files, err := os.ReadDir(filepath.Join(dir, "sandboxes", idA))
	must(t, err)
	for _, f := range files {
		info, err := f.Info()
		must(t, err)
		sum += info.Size()
	}
	if sum > 64<<10 || len(files) != 2 {
		t.Errorf("%d files of %d bytes", len(files), sum)
	}
	got, err := r.Query(idA, hostapi.EventQuery{Since: time.Unix(1, 0)})
	must(t, err)
	if last := got[len(got)-1].Message; last != "2999" || len(got) < defaultRing {
		t.Errorf("%d events, the last %q", len(got), last)
	}
}

// The operator says how much is kept in memory. What it holds no more is read from disk, so
// nobody who follows or asks sees a difference.
func TestTheRingIsAsLargeAsTheOperatorSays(t *testing.T) {
	for _, ring := range []int{0, 1, 3, 600} {
		r := open(t, t.TempDir(), func(c *Config) { c.Ring = ring })
		r.Open(idA, "ws1", "base")
		emit(r, idA, 0, 700)
		s, err := r.stream(idA, false)
		must(t, err)
		if want := cmp.Or(ring, 512); len(s.ring) != want {
			t.Errorf("%d events in memory, want %d", len(s.ring), want)
		}
		got, err := r.Query(idA, hostapi.EventQuery{Tail: new(5)})
		must(t, err)
		if messages(got) != "695 696 697 698 699" {
			t.Errorf("a ring of %d: %s", ring, messages(got))
		}
	}
}

func TestNumbersAreNeverGivenTwice(t *testing.T) {
	dir := t.TempDir()
	last := func(r *Recorder) uint64 {
		t.Helper()
		got, err := r.Query(idA, hostapi.EventQuery{Tail: new(1)})
		must(t, err)
		return got[0].Seq
	}
	r := open(t, dir)
	r.Open(idA, "", "")
	emit(r, idA, 0, 5)
	before := last(r)
	r = open(t, dir) // killed
	emit(r, idA, 5, 6)
	if got := last(r); got != before+1 {
		t.Errorf("after a kill: number %d, want %d", got, before+1)
	}
	before = last(r)
	// A power cut takes what was not synced: all of the spool, at worst.
	must(t, os.RemoveAll(filepath.Join(dir, "spool")))
	r = open(t, dir, func(c *Config) { c.BootID = "boot-2" })
	emit(r, idA, 6, 7)
	if got := last(r); got <= before {
		t.Errorf("after a power cut: number %d after %d", got, before)
	}
	emit(r, idA, 0, 3000)
	before = last(r)
	r = open(t, dir, func(c *Config) { c.BootID = "boot-3" })
	emit(r, idA, 0, 1)
	if got := last(r); got <= before {
		t.Errorf("number %d after %d", got, before)
	}
	before = last(r)
	for _, boot := range []string{"boot-4", "boot-4"} { // another run of the machine, and the same
		must(t, os.RemoveAll(filepath.Join(dir, "spool")))
		r = open(t, dir, func(c *Config) { c.BootID = boot })
		emit(r, idA, 0, 1)
		if got := last(r); got <= before {
			t.Errorf("without a spool: number %d after %d", got, before)
		}
		before = last(r)
	}
	for name, damage := range map[string]func(path string) error{
		"without its file":  os.Remove,
		"of a damaged file": func(path string) error { return os.WriteFile(path, []byte("garbage"), 0o600) },
	} {
		before = last(r)
		must(t, damage(filepath.Join(dir, "sequence")))
		r = open(t, dir, func(c *Config) { c.BootID = "boot-4" })
		emit(r, idA, 0, 1)
		if got := last(r); got <= before {
			t.Errorf("%s: number %d after %d", name, got, before)
		}
	}
}

// The machine starts with a full disk, or one that cannot be written.
func TestNumbersGoOnWhereTheirFileCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	emit(r, idA, 0, 5)
	must(t, os.Remove(filepath.Join(dir, "sequence")))
	must(t, os.Mkdir(filepath.Join(dir, "sequence"), 0o700))
	r = open(t, dir, func(c *Config) { c.BootID = "boot-2" })
	emit(r, idA, 5, 6)
	got, err := r.Query(idA, hostapi.EventQuery{Tail: new(1)})
	if err != nil || got[0].Seq <= 5 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A host must start with whatever its disk has.
func TestASpoolThatCannotBeReadIsMovedAside(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	emit(r, idA, 0, 3)
	for range 2 {
		must(t, os.Mkdir(filepath.Join(dir, "spool", "00000000000000000001"+partSuffix), 0o700)) // reading it is an error
		r = open(t, dir)
		emit(r, idA, 3, 5)
	}
	got, err := r.Query(idA, hostapi.EventQuery{})
	must(t, err)
	for i, e := range got[1:] {
		if e.Seq <= got[i].Seq {
			t.Errorf("number %d after %d", e.Seq, got[i].Seq)
		}
	}
	if found, _, _, err := r.unsent(got[2].Seq); err != nil || messages(found) != "3 4" {
		t.Errorf("to be sent are %q, %v", messages(found), err)
	}
}

func TestDamagedLinesAreLeftOut(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	emit(r, idA, 0, 4)
	paths, err := filepath.Glob(filepath.Join(dir, "sandboxes", idA, "*"+partSuffix))
	if err != nil || len(paths) != 1 {
		t.Fatalf("parts %v, %v", paths, err)
	}
	path := paths[0]
	raw, err := os.ReadFile(path)
	must(t, err)
	lines := bytes.SplitAfter(raw, []byte("\n"))
	lines[1][12] ^= 1
	torn := append(bytes.Join(lines, nil), "00000000 {\"seq\":9"...)
	must(t, os.WriteFile(path, torn, 0o600))
	r = open(t, dir)
	emit(r, idA, 4, 5)
	got, err := r.Query(idA, hostapi.EventQuery{})
	if err != nil || messages(got) != "0 2 3 4" {
		t.Errorf("events = %s, %v", messages(got), err)
	}
	got, err = open(t, dir).Query(idA, hostapi.EventQuery{})
	if err != nil || messages(got) != "0 2 3 4" {
		t.Errorf("events after another start = %s, %v", messages(got), err)
	}
}

func TestPostedEventsAreAddedOnceAKey(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	post := func(id, key string, want error) {
		t.Helper()
		err := r.Post(id, hostapi.NewEvent{Key: key, Type: hostapi.EventForkStaged, Message: key, Metadata: map[string]any{"count": 3}})
		if !errors.Is(err, want) {
			t.Errorf("post of %q = %v, want %v", key, err, want)
		}
	}
	post(idA, "k1", hosterr.ErrNotFound)
	r.Open(idA, "ws1", "base")
	post(idA, "k1", nil)
	post(idA, "k1", nil)
	r = open(t, dir)
	post(idA, "k1", nil)
	post(idA, "k2", nil)
	post(idA, "", nil)
	post(idA, "", nil)
	post(idA, strings.Repeat("k", maxKey+1), hosterr.ErrInvalid)
	got, err := r.Query(idA, hostapi.EventQuery{})
	if err != nil || messages(got) != "k1 k2  " || string(got[0].Metadata) != `{"count":3}` {
		t.Errorf("events = %q, %v", messages(got), err)
	}
	for name, e := range map[string]hostapi.NewEvent{
		"no type":       {},
		"an odd type":   {Type: "sandbox.\n"},
		"large objects": {Type: "x", Metadata: map[string]any{"a": strings.Repeat("x", maxMetadata)}},
	} {
		if err := r.Post(idA, e); !errors.Is(err, hosterr.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// The control plane finds sandboxes whose box is gone, and with it their stream: only
// the event stores are told.
func TestAPostedEventOfASandboxThatIsGone(t *testing.T) {
	r := open(t, t.TempDir())
	must(t, r.Post(idA, hostapi.NewEvent{Key: "k", Type: hostapi.EventOrphaned, Message: "gone", WorkspaceID: "ws1", Template: "base"}))
	found, _, _, err := r.unsent(0)
	if err != nil || len(found) != 1 || found[0].SandboxID != idA || found[0].WorkspaceID != "ws1" || found[0].Template != "base" || found[0].Time.IsZero() {
		t.Errorf("the replicas are told %+v, %v", found, err)
	}
	if _, err := r.Query(idA, hostapi.EventQuery{}); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("query = %v", err)
	}
}

func TestAClosedStreamLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	r.Open(idA, "", "")
	r.Open(idB, "", "")
	emit(r, idA, 0, 1)
	emit(r, idB, 0, 1)
	r.Close(idA)
	r.Close(idA)
	if _, err := r.Query(idA, hostapi.EventQuery{}); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("query of a closed stream = %v", err)
	}
	must(t, r.Keep([]string{idB}))
	if _, err := r.Query(idB, hostapi.EventQuery{}); err != nil {
		t.Errorf("query of a kept stream = %v", err)
	}
	r = open(t, dir)
	must(t, r.Keep(nil))
	files, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
	if err != nil || len(files) != 0 {
		t.Errorf("left: %v, %v", files, err)
	}
	// Another sandbox of the id begins anew.
	r.Open(idA, "", "")
	emit(r, idA, 7, 8)
	got, err := r.Query(idA, hostapi.EventQuery{})
	if err != nil || messages(got) != "7" {
		t.Errorf("events = %s, %v", messages(got), err)
	}
}

func TestADiskThatTakesNothingStopsNothing(t *testing.T) {
	dir := t.TempDir()
	metrics := NewMetrics(prometheus.NewRegistry())
	r := open(t, dir, func(c *Config) { c.Metrics = metrics })
	r.Open(idA, "", "")
	must(t, os.WriteFile(filepath.Join(dir, "sandboxes", idA), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "spool"), nil, 0o600))
	emit(r, idA, 0, 3)
	got, err := r.Query(idA, hostapi.EventQuery{})
	if err != nil || messages(got) != "0 1 2" {
		t.Errorf("events = %s, %v", messages(got), err)
	}
	for _, where := range []string{"spool", "file"} {
		if n := testutil.ToFloat64(metrics.dropped.WithLabelValues(where)); n != 3 {
			t.Errorf("%v events counted as not in the %s, want 3", n, where)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
