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
	want := func(what string, now, since int) {
		t.Helper()
		if got := l.since(at(now)); !got.Equal(at(since)) {
			t.Errorf("%s: archived up to %s, want %d s", what, got.Sub(zero), since)
		}
	}
	l.stored(2 * seg)
	l.saw(2*seg, at(0), none, false, quiet)
	want("nothing was written", 0, 0)
	l.saw(2*seg, at(3), none, false, quiet)
	want("nothing was written", 3, 3)
	l.saw(2*seg+100, at(6), none, false, quiet)
	want("a write, at most 3 s old", 6, 3)
	l.saw(2*seg+200, at(9), none, false, quiet)
	want("another one in the same segment", 9, 3)
	l.saw(4*seg+1, at(12), at(11), false, quiet)
	want("two segments on", 12, 3)
	l.stored(3 * seg)
	want("the first segment is archived", 12, 9)
	l.stored(4 * seg)
	want("the second, which no look saw", 12, 9)
	look := func(from, to int, waiting time.Time, late bool) {
		for s := from; s <= to; s++ {
			l.saw(4*seg+1, at(s), waiting, late, quiet)
		}
	}
	look(13, 73, at(11), false)
	want("the archive is behind, so standing still proves nothing", 73, 9)
	look(74, 74, none, true)
	want("a slow disk keeps PostgreSQL from beginning another segment", 74, 9)
	look(74, 74, none, false)
	want("what stands for so long does not matter", 74, 74)
	l.saw(4*seg+50, at(80), none, false, quiet)
	want("a write after that", 80, 74)
	l.stored(5 * seg)
	want("all is archived", 80, 80)
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
	l.stored(2 * seg)
	l.saw(2*seg, at(0), time.Time{}, false, quiet)
	l.saw(2*seg+100, at(3), time.Time{}, false, quiet)
	l.saw(2*seg+100, at(300), time.Time{}, false, quiet)
	if got := l.since(at(300)); !got.Equal(at(0)) {
		t.Errorf("archived up to %s", got.Sub(zero))
	}
	for s := 303; s <= 363; s += 3 {
		l.saw(2*seg+100, at(s), time.Time{}, false, quiet)
	}
	if got := l.since(at(363)); !got.Equal(at(363)) {
		t.Errorf("archived up to %s, although it ran for long enough since", got.Sub(zero))
	}
}

// A daemon that begins finds a segment that is not full. What is in it may be as old as
// PostgreSQL lets it become.
func TestAWriteFromBeforeTheDaemonCameIsNotTakenForNew(t *testing.T) {
	const seg = lsn(16 << 20)
	const quiet = 60 * time.Second
	now := time.Unix(1000, 0)
	for what, c := range map[string]struct {
		at   lsn
		want time.Time
	}{
		"nothing was written": {2 * seg, now.Add(time.Second)},
		"something was":       {2*seg + 100, now.Add(-quiet)},
	} {
		l := &lag{}
		l.stored(2 * seg)
		l.saw(c.at, now, time.Time{}, false, quiet)
		if got := l.since(now.Add(time.Second)); !got.Equal(c.want) {
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

// A VMM that is started again has the writes of the one before it, which nobody has
// archived yet.
func TestWritesBeforeARestartAreNotForgotten(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	f := newFacts(nil, func() time.Time { return now })
	if st := f.state(); !st.LastAt.IsZero() {
		t.Errorf("before anything is known: %+v", st)
	}
	for _, at := range []lsn{100, 200} {
		f.lag.saw(at, now, time.Time{}, false, time.Minute)
		now = now.Add(3 * time.Second)
	}
	before := f.state()
	f.begin(size{})
	if st := f.state(); st.LastAt.IsZero() || !st.LastAt.Equal(before.LastAt) || st.LagSeconds != before.LagSeconds {
		t.Errorf("%+v, before it was %+v", st, before)
	}
}
