package database

import (
	"testing"
	"time"
)

func TestLagIsTheAgeOfTheOldestWriteThatIsNotArchived(t *testing.T) {
	const seg = lsn(16 << 20)
	const quiet = 60 * time.Second
	zero := time.Unix(1000, 0)
	at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
	none := time.Time{}
	l := &lag{}
	want := func(what string, since int) {
		t.Helper()
		if got := l.since(); !got.Equal(at(since)) {
			t.Errorf("%s: archived up to %s, want %d s", what, got.Sub(zero), since)
		}
	}
	look := func(to lsn, s int, waiting time.Time, late bool) {
		l.saw(to, at(s), at(s+1), waiting, late, quiet)
	}
	l.stored(2 * seg)
	look(2*seg, 0, none, false)
	want("nothing was written before the look, which took a second", 0)
	look(2*seg, 3, none, false)
	want("nothing was written", 3)
	look(2*seg+100, 6, none, false)
	want("a write, at most 3 s old", 3)
	look(2*seg+200, 9, none, false)
	want("another one in the same segment", 3)
	look(4*seg+1, 12, at(11), false)
	want("two segments on", 3)
	l.stored(3 * seg)
	want("the first segment is archived", 9)
	l.stored(4 * seg)
	want("the second, which no look saw", 9)
	for s := 13; s <= 74; s++ {
		look(4*seg+1, s, at(11), false)
	}
	want("the archive is behind, so standing still proves nothing", 9)
	look(4*seg+1, 75, none, true)
	want("a slow disk keeps PostgreSQL from beginning another segment", 9)
	look(4*seg+1, 75, none, false)
	want("what stands for so long does not matter", 75)
	look(4*seg+50, 80, none, false)
	want("a write after that", 75)
	l.stored(5 * seg)
	want("all is archived of what the last look saw", 80)
	l.stored(3 * seg)
	if l.archived != 5*seg {
		t.Errorf("the archive went back to %s", l.archived)
	}
}

// A guest that stood still, as one whose VMM was stopped, had no time to begin another
// segment. What it wrote before must not count as archived: a clone as of later would lack it.
func TestAGuestThatStoodStillHasNotArchivedWhatItWrote(t *testing.T) {
	const seg = lsn(16 << 20)
	const quiet = 60 * time.Second
	zero := time.Unix(1000, 0)
	at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
	l := &lag{}
	look := func(to lsn, s int) { l.saw(to, at(s), at(s), time.Time{}, false, quiet) }
	l.stored(2 * seg)
	look(2*seg, 0)
	look(2*seg+100, 3)
	look(2*seg+100, 300)
	if got := l.since(); !got.Equal(at(0)) {
		t.Errorf("archived up to %s", got.Sub(zero))
	}
	for s := 303; s <= 363; s += 3 {
		look(2*seg+100, s)
	}
	if got := l.since(); !got.Equal(at(363)) {
		t.Errorf("archived up to %s, although it ran for long enough since", got.Sub(zero))
	}
}

// A machine that goes on after a pause is looked at anew, and what it wrote before the pause
// is not archived by that.
func TestAPauseArchivesNothing(t *testing.T) {
	const quiet = 60 * time.Second
	zero := time.Unix(1000, 0)
	l := &lag{}
	for s := range 2 {
		l.begin(zero, zero.Add(time.Hour), true, quiet)
		at := zero.Add(time.Duration(s+1) * time.Second)
		l.saw(100, at, at, time.Time{}, false, quiet)
		if got := l.since(); !got.Equal(zero) {
			t.Errorf("archived up to %s after the wake", got.Sub(zero))
		}
	}
}

// A first look finds a segment that is not full. What is in it may be as old as PostgreSQL
// lets it become, and older where the machine was off.
func TestAWriteFromBeforeTheFirstLookIsNotTakenForNew(t *testing.T) {
	const seg = lsn(16 << 20)
	const quiet = 60 * time.Second
	zero := time.Unix(1000, 0)
	at := func(s int) time.Time { return zero.Add(time.Duration(s) * time.Second) }
	const earlier, written = 2*seg + 100, 2*seg + 200
	for what, c := range map[string]struct {
		last    int // the last look of the same daemon at the run before, in seconds; the second one saw a write
		since   time.Time
		settled bool
		at      lsn
		want    time.Time
	}{
		"the daemon is new":                      {at: written, want: at(600 - 60)},
		"it is new, and nothing was written":     {at: 2 * seg, want: at(601)},
		"it is new, the machine slept in order":  {since: at(590), settled: true, at: written, want: at(590)},
		"it is new, the machine was off":         {since: at(590), at: written},
		"it is new, off, and nothing is written": {since: at(590), at: 2 * seg, want: at(601)},
		"the machine died":                       {last: 6, since: at(590), at: written, want: at(3)},
		"it died long after a write":             {last: 72, since: at(590), at: written, want: at(72)},
		"it slept in order":                      {last: 6, since: at(590), settled: true, at: written, want: at(590)},
	} {
		l := &lag{}
		l.stored(2 * seg)
		for s := 3; s <= c.last; s += 3 {
			to := lsn(2 * seg)
			if s > 3 {
				to = earlier
			}
			l.saw(to, at(s), at(s), time.Time{}, false, quiet)
		}
		l.begin(c.since, at(600), c.settled, quiet)
		if got := l.since(); got.After(c.want) {
			t.Errorf("%s: before the first look archived up to %s, then only to %s", what, got.Sub(zero), c.want.Sub(zero))
		}
		l.saw(c.at, at(601), at(602), time.Time{}, false, quiet)
		if got := l.since(); !got.Equal(c.want) {
			t.Errorf("%s: archived up to %s, want %s", what, got, c.want)
		}
	}
}

func TestPositionsAreReadAsPostgreSQLWritesThem(t *testing.T) {
	for s, want := range map[string]lsn{"0/3000060": 0x3000060, "16/B374D848": 0x16B374D848, "": 0, "x/1": 0} {
		if got := parseLSN(s); got != want {
			t.Errorf("%q is %d, want %d", s, got, want)
		}
	}
	if got := lsn(0x16B374D848).String(); got != "16/B374D848" {
		t.Errorf("got %s", got)
	}
	if got := endOf("000000010000000000000002"); got != 0x3000000 {
		t.Errorf("segment 2 ends at %s", got)
	}
	if endOf("00000002.history") != 0 || endOf("000000010000000000000002.partial") != 0 {
		t.Error("only segments have an end")
	}
}

// What was written after the last look is not known: a host that claims to have it
// archived loses it with the host.
func TestNoMoreIsArchivedThanWasSeen(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f := newFacts(nil, func() time.Time { return now })
	if st := f.state(); !st.LastAt.IsZero() {
		t.Errorf("before anything is known: %+v", st)
	}
	begin := func(settled bool) { f.begin(size{}, now, settled, time.Minute) }
	look := func(at lsn) time.Time {
		f.lag.saw(at, now, now, time.Time{}, false, time.Minute)
		return now
	}
	want := func(what string, last time.Time) {
		t.Helper()
		if st := f.state(); !st.LastAt.Equal(last) || st.LagSeconds != now.Sub(last).Seconds() {
			t.Errorf("%s: %+v, want all up to %s", what, st, last)
		}
	}
	begin(false)
	f.lag.stored(100)
	first := look(100)
	now = now.Add(2 * time.Second)
	want("two seconds after a look", first)
	begin(false)
	now = now.Add(20 * time.Second)
	want("the machine died and boots", first)
	look(200)
	want("it has written, before it died maybe", first)
	f.lag.stored(200)
	want("which is archived", now)
	now = now.Add(time.Hour)
	begin(true)
	want("it slept", now)
	// A base backup that was stored says nothing of what came after its end.
	f.info.FirstRestorable = now.Add(time.Second)
	f.info.LastRestorable = f.info.FirstRestorable
	want("it was backed up", now)
	f.info.LastRestorable = now.Add(2 * time.Second)
	now = now.Add(3 * time.Second)
	want("its archive went on", f.info.LastRestorable)
}
