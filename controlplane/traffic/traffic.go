// Package traffic counts the requests to apps that one replica has served, and keeps the
// latest of each app. Everything is in memory, within bounds, and gone with the process.
package traffic

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the buckets of durations, in milliseconds: each has what took up to so long,
// and one more what took longer. They never change: clients compare histograms.
var Bounds = [...]int64{5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000}

// The classes of requests. A name is data; see docs/apps.md for what each does.
const maxClasses = 4

// Counts are what was counted of requests that have ended.
type Counts struct {
	Statuses [6]int64               `json:"statuses"` // by the first digit; 0: the client left before an answer
	Classes  [maxClasses]int64      `json:"classes"`  // in the order of the edge's classes
	Buckets  [len(Bounds) + 1]int64 `json:"buckets"`  // by the time until the answer began
	SumMS    int64                  `json:"sum_ms"`   // of those times
	Received int64                  `json:"received"` // bytes of bodies of requests
	Sent     int64                  `json:"sent"`     // bytes of bodies of answers
	Held     int64                  `json:"held"`     // waited while their app woke
}

// Add adds what another replica has counted.
func (c *Counts) Add(o Counts) {
	for i := range c.Statuses {
		c.Statuses[i] += o.Statuses[i]
	}
	for i := range c.Classes {
		c.Classes[i] += o.Classes[i]
	}
	for i := range c.Buckets {
		c.Buckets[i] += o.Buckets[i]
	}
	c.SumMS += o.SumMS
	c.Received += o.Received
	c.Sent += o.Sent
	c.Held += o.Held
}

func (c *Counts) count(r *Request) {
	c.Statuses[min(max(r.Status/100, 0), len(c.Statuses)-1)]++
	c.Classes[min(max(r.Class, 0), maxClasses-1)]++
	ms := max(r.First.Milliseconds(), 0)
	bucket := 0
	for bucket < len(Bounds) && ms > Bounds[bucket] {
		bucket++
	}
	c.Buckets[bucket]++
	c.SumMS += ms
	c.Received += r.Received
	c.Sent += r.Sent
	if r.Held {
		c.Held++
	}
}

// Minute is what was counted in one minute.
type Minute struct {
	At int64 `json:"at"` // its beginning, Unix seconds
	Counts
}

// Request is one request that has ended.
type Request struct {
	ID, Method, Path string
	Status           int           // 0: the client left before an answer
	Class            int           // in the order of the edge's classes
	Held             bool          // it waited while its app woke
	First            time.Duration // until the answer began
	Took             time.Duration // until it ended
	Received, Sent   int64         // bytes of bodies
}

// Hour is what was counted of one app in one hour, so far.
type Hour struct {
	AppID string `json:"app_id"`
	Minute
}

// Counted is what one run of a replica has counted by hours.
type Counted struct {
	Replica string `json:"replica"`
	Epoch   string `json:"epoch"`
	Hours   []Hour `json:"hours"`
}

const (
	// maxHours is how many hours are kept of an app: the present one, and the one before
	// until it was read by all.
	maxHours = 2
	// maxApps is how many apps are counted at a time. Where there are more, those go
	// that were asked for longest ago.
	maxApps = 4096
	// maxMinutes is how many minutes are kept of an app: those of the last hour.
	maxMinutes = 60
)

// Book has what this replica has counted of all apps. Its methods may be called
// concurrently.
type Book struct {
	clock func() time.Time
	Epoch string // names this run of the replica, for what numbers entries

	apps     sync.Map // id → *app
	count    atomic.Int64
	bytes    atomic.Int64 // that entries take, of all apps
	maxBytes int64
	maxApps  int64
	evicting sync.Mutex
}

// New returns an empty book.
func New(clock func() time.Time, epoch string) *Book {
	return &Book{clock: clock, Epoch: epoch, maxBytes: maxBytes, maxApps: maxApps}
}

// app is what was counted of one app.
type app struct {
	used atomic.Int64 // Unix ms

	mu      sync.Mutex
	gone    bool // evicted: another one counts from now on
	since   time.Time
	total   Counts
	wakes   int64
	minutes []Minute
	hours   []Minute // of a whole hour each
	entries log
}

func (b *Book) of(id string, now time.Time) *app {
	if a, ok := b.apps.Load(id); ok {
		return a.(*app)
	}
	a, loaded := b.apps.LoadOrStore(id, &app{since: now})
	if !loaded && b.count.Add(1) > b.maxApps {
		a.(*app).used.Store(now.UnixMilli())
		b.evict(func() bool { return b.count.Load() > b.maxApps*7/8 }, b.drop)
	}
	return a.(*app)
}

// Record counts a request and notes it. It keeps none of the strings as they are: they
// may be parts of larger ones.
func (b *Book) Record(id string, r Request) {
	now := b.clock()
	for {
		a := b.of(id, now)
		if a.record(b, now, &r) {
			break
		}
	}
	if b.bytes.Load() > b.maxBytes {
		b.evict(func() bool { return b.bytes.Load() > b.maxBytes*7/8 }, b.empty)
	}
}

// Woken counts a wake that requests here have waited for.
func (b *Book) Woken(id string) {
	a := b.of(id, b.clock())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wakes++
}

func (a *app) record(b *Book, now time.Time, r *Request) bool {
	a.used.Store(now.UnixMilli())
	at := now.Unix() / 60 * 60
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return false
	}
	a.total.count(r)
	if n := len(a.minutes); n == 0 || a.minutes[n-1].At != at {
		a.prune(now)
		a.minutes = append(a.minutes, Minute{At: at})
	}
	a.minutes[len(a.minutes)-1].count(r)
	hour := now.Unix() / 3600 * 3600
	if n := len(a.hours); n == 0 || a.hours[n-1].At != hour {
		a.hours = append(a.hours[max(0, n-maxHours+1):], Minute{At: hour})
	}
	a.hours[len(a.hours)-1].count(r)
	b.bytes.Add(a.entries.add(now, r))
	return true
}

// prune drops the minutes that are over an hour ago, and those of a clock that was set
// back.
func (a *app) prune(now time.Time) {
	from, to := now.Unix()-maxMinutes*60, now.Unix()
	a.minutes = slices.DeleteFunc(a.minutes, func(m Minute) bool { return m.At <= from || m.At > to })
	if len(a.minutes) >= maxMinutes {
		a.minutes = slices.Delete(a.minutes, 0, len(a.minutes)-maxMinutes+1)
	}
}

// evict does something to the apps that were asked for longest ago, for as long as it is
// needed. One caller does it for all.
func (b *Book) evict(needed func() bool, do func(id string, a *app)) {
	if !b.evicting.TryLock() {
		return
	}
	defer b.evicting.Unlock()
	type one struct {
		id   string
		a    *app
		used int64
	}
	var all []one
	b.apps.Range(func(id, a any) bool {
		all = append(all, one{id.(string), a.(*app), a.(*app).used.Load()})
		return true
	})
	slices.SortFunc(all, func(x, y one) int { return int(min(max(x.used-y.used, -1), 1)) })
	for _, o := range all {
		if !needed() {
			return
		}
		do(o.id, o.a)
	}
}

// Size returns how many apps are counted, and how many bytes their entries take.
func (b *Book) Size() (apps, bytes int64) { return b.count.Load(), b.bytes.Load() }

// drop forgets an app.
func (b *Book) drop(id string, a *app) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gone {
		return
	}
	a.gone = true
	b.apps.Delete(id)
	b.count.Add(-1)
	b.bytes.Add(a.entries.clear())
}

// empty forgets the entries of an app.
func (b *Book) empty(_ string, a *app) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b.bytes.Add(a.entries.clear())
}
