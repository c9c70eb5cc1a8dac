package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// commits is what is known of the rows that were written into one database. Each
// answer names the timeline that wrote the row: every failover begins a new one, so
// it is the fencing token of the box that answered.
type commits struct {
	mu    sync.Mutex
	last  int64
	rows  map[int64]*commit
	first map[uint32]time.Time // timeline → its first acknowledged commit
	lost  int
}

// commit is one row.
type commit struct {
	acked    time.Time // zero: its answer was lost, and it may or may not be there
	timeline uint32
	before   uint64 // an LSN after its commit; 0 if none is known
}

func newCommits() *commits {
	return &commits{rows: map[int64]*commit{}, first: map[uint32]time.Time{}}
}

// begin returns the number of the next row. It may be there from now on.
func (c *commits) begin() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.rows[c.last] = &commit{}
	return c.last
}

// ack notes the answer to a commit. It returns what is wrong with it: a box answered
// that should have ended before another one took over.
func (c *commits) ack(n int64, timeline uint32, sent, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows[n].acked, c.rows[n].timeline = now, timeline
	if _, served := c.first[timeline]; !served {
		c.first[timeline] = now
	}
	newest := slices.Max(slices.Collect(maps.Keys(c.first)))
	if timeline < newest && sent.After(c.first[newest]) {
		return fmt.Sprintf("row %d was committed on timeline %d, %s after timeline %d had served", n, timeline, now.Sub(c.first[newest]), newest)
	}
	return ""
}

// passed notes an LSN that was read after a row's answer.
func (c *commits) passed(n int64, timeline uint32, lsn uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if row := c.rows[n]; row != nil && row.timeline == timeline {
		row.before = lsn
	}
}

// acknowledged counts the rows that must be there.
func (c *commits) acknowledged() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, row := range c.rows {
		if !row.acked.IsZero() {
			n++
		}
	}
	return n
}

// timeline returns the newest one, 0 before the first commit, and when it first
// served.
func (c *commits) timeline() (newest uint32, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest()
}

// newest is timeline, with the lock held.
func (c *commits) newest() (newest uint32, since time.Time) {
	for t, at := range c.first {
		if t >= newest {
			newest, since = t, at
		}
	}
	return newest, since
}

// loss is what a failover may lose: rows of one timeline, unless they were
// acknowledged up to a moment or lie before an LSN.
type loss struct {
	timeline uint32
	after    time.Time
	lsn      uint64
}

func (l *loss) String() string {
	if l == nil {
		return "none may be"
	}
	return fmt.Sprintf("those of timeline %d may be that were acknowledged after %s and do not lie before LSN %X", l.timeline, l.after.UTC().Format("15:04:05.000"), l.lsn)
}

// allows reports whether a failover may lose a row. A row without an answer may
// always be missing.
func (l *loss) allows(row *commit) bool {
	if row.acked.IsZero() {
		return true
	}
	return l != nil && row.timeline == l.timeline && row.acked.After(l.after) && (row.before == 0 || row.before > l.lsn)
}

// judge compares the rows that are there with those that were written, and returns
// what is wrong and how many rows a failover has lost. What is found must be found
// again, and what is lost is expected no more. There must be no writes meanwhile.
func (c *commits) judge(found []int64, l *loss) (wrong []string, lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newest, _ := c.newest()
	there := map[int64]bool{}
	for _, n := range found {
		row := c.rows[n]
		switch {
		case row == nil:
			wrong = append(wrong, fmt.Sprintf("row %d was never written, or was lost before", n))
		case row.acked.IsZero():
			row.acked, row.timeline = time.Now(), newest
		}
		there[n] = true
	}
	var missing []int64
	kept := map[int64]string{}
	for n, row := range c.rows {
		switch {
		case there[n] || row.acked.IsZero(): // a statement may reach its box late
		case l.allows(row):
			delete(c.rows, n)
			lost++
		default:
			delete(c.rows, n)
			missing = append(missing, n)
			kept[n] = fmt.Sprintf("%d (acknowledged at %s on timeline %d, before LSN %X)", n, row.acked.UTC().Format("15:04:05.000"), row.timeline, row.before)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		var rows []string
		for _, n := range missing[:min(len(missing), 10)] {
			rows = append(rows, kept[n])
		}
		wrong = append(wrong, fmt.Sprintf("%d acknowledged rows are lost: %s; %s", len(missing), strings.Join(rows, ", "), l))
	}
	c.lost += lost
	return wrong, lost
}
