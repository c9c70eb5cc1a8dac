// Package ledger is what a host's daemon remembers on disk: one record for each
// box, the tombstones of deleted boxes, and the highest Raft term that it was
// called with. A record is written before the first resource of its box is made
// and removed after the last one is gone, so whatever a crash leaves behind
// either has a record or is known to have none.
//
// Everything is held in memory; the file is a journal of changes (journal.go),
// flushed before a change is acknowledged and rewritten when it has grown.
// Readers never wait for the disk: a writer of its own (writer.go) writes
// changes, which are shown once they are on disk.
package ledger

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

var (
	// ErrCorrupt means that the file cannot be trusted. It is never repaired
	// silently: the operator decides (the message says how).
	ErrCorrupt = errors.New("ledger is corrupt")
	// ErrInUse means that another daemon holds the file.
	ErrInUse = errors.New("ledger is in use by another hostd")
	// ErrOtherHost means that the file belongs to another host id.
	ErrOtherHost = errors.New("ledger belongs to another host")
	// ErrNewerFormat means that a newer hostd wrote the file.
	ErrNewerFormat = errors.New("ledger has a newer format")
	// ErrOverloaded refuses a change because too many wait for the disk.
	ErrOverloaded = errors.New("too many changes wait for the ledger's disk")
	// ErrStaleTerm means that the caller's term is lower than one already seen.
	ErrStaleTerm = errors.New("stale term")
)

// Tombstone remembers a deleted box, so that a request for it that arrives
// late cannot bring it back.
type Tombstone struct {
	Generation uint64    `json:"generation"`
	DeletedAt  time.Time `json:"deleted_at"`
}

// Ledger is an open ledger file. It is safe for concurrent use.
type Ledger struct {
	writer *writer

	mu    sync.Mutex // short: never held while anything is written
	state state      // what is on disk; the writer changes it
}

// state is everything that the journal's entries add up to.
type state struct {
	cluster    string   // whose leaders are obeyed; the first ones had no name
	term       uint64   // the highest seen of it; 0: none yet
	former     []string // clusters that were obeyed before it
	boxes      map[string]Record
	tombstones map[string]Tombstone
}

// Open opens the ledger of a host, making it if there is none. It returns
// ErrInUse, ErrCorrupt, ErrNewerFormat or ErrOtherHost, each naming the file.
func Open(path, host string) (*Ledger, error) { return OpenOn(path, host, fdatasync) }

// OpenOn is Open on a disk that flushes as it is told, which may take long or
// fail.
func OpenOn(path, host string, flush func(*os.File) error) (*Ledger, error) {
	l := &Ledger{state: state{boxes: map[string]Record{}, tombstones: map[string]Tombstone{}}}
	log, err := openJournal(path, host, l.state.apply)
	if err != nil {
		return nil, err
	}
	log.flush = flush
	err = log.rewrite(l.state.entries())
	if errors.Is(err, unix.ENOSPC) && log.size > 0 {
		// A full disk has no room for a second file. A daemon that does not start
		// could make none: it could not even delete.
		err = log.resume()
	}
	if err != nil {
		return nil, errors.Join(err, log.close())
	}
	l.writer = newWriter(l, log)
	return l, nil
}

// Close waits for what is being written and releases the file.
func (l *Ledger) Close() error { return l.writer.close() }

// Stalled is how long the disk has been at work on the changes that it has now,
// 0 while there are none.
func (l *Ledger) Stalled() time.Duration { return l.writer.stalled() }

// Boxes returns every record, ordered by id.
func (l *Ledger) Boxes() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Record, 0, len(l.state.boxes))
	for _, r := range l.state.boxes {
		out = append(out, r.clone())
	}
	slices.SortFunc(out, func(a, b Record) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Get returns one record.
func (l *Ledger) Get(id string) (Record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.state.boxes[id]
	return r.clone(), ok
}

// Put inserts or replaces a record. It is on disk when Put returns nil, and
// the older one still stands when it returns an error.
func (l *Ledger) Put(r Record) error {
	r = r.clone()
	if err := l.write(entry{Box: &r}); err != nil {
		return fmt.Errorf("write ledger record of box %s: %w", hostapi.ShortID(r.ID), err)
	}
	return nil
}

// PutAll inserts or replaces several records as one change: all of them or none.
func (l *Ledger) PutAll(recs ...Record) error {
	e := entry{Boxes: make([]Record, len(recs))}
	for i, r := range recs {
		e.Boxes[i] = r.clone()
	}
	if err := l.write(e); err != nil {
		return fmt.Errorf("write %d ledger records: %w", len(recs), err)
	}
	return nil
}

// Forget removes a record and leaves no tombstone: the same generation may be
// asked for again. It is for a create that failed or was cut off.
func (l *Ledger) Forget(id string) error {
	if err := l.write(entry{Forget: id}); err != nil {
		return fmt.Errorf("forget box %s in the ledger: %w", hostapi.ShortID(id), err)
	}
	return nil
}

// Bury removes a box's record, if there is one, and raises its tombstone to
// generation, as one change.
func (l *Ledger) Bury(id string, generation uint64, now time.Time) error {
	if err := l.write(entry{Bury: id, Tombstone: &Tombstone{Generation: generation, DeletedAt: now.UTC()}}); err != nil {
		return fmt.Errorf("bury box %s in the ledger: %w", hostapi.ShortID(id), err)
	}
	return nil
}

// Tombstone returns the highest generation of id that was deleted here, and
// 0 where none was.
func (l *Ledger) Tombstone(id string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.tombstones[id].Generation
}

// Prune drops the tombstones of boxes deleted before t. Ids are random and
// never used again, so a tombstone needs to outlive only requests in flight.
func (l *Ledger) Prune(t time.Time) (int, error) {
	c := &change{prune: t}
	if err := l.writer.do(c); err != nil {
		return 0, fmt.Errorf("prune tombstones: %w", err)
	}
	return c.pruned, nil
}

// Term returns the cluster whose leaders are obeyed and its highest term seen.
func (l *Ledger) Term() (cluster string, term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.cluster, l.state.term
}

// ObserveTerm refuses, with ErrStaleTerm, a term lower than the highest seen of
// the same cluster, and every term of a cluster that was followed by another.
// Terms of two clusters do not compare. A cluster never seen before replaces
// the present one: it was restored from its backup. What is new is on disk
// before ObserveTerm returns.
func (l *Ledger) ObserveTerm(cluster string, term uint64) error {
	news, err := l.CheckTerm(cluster, term)
	if err != nil || !news {
		return err
	}
	if err := l.write(entry{Term: term, Cluster: cluster}); err != nil {
		return fmt.Errorf("write term to the ledger: %w", err)
	}
	_, err = l.CheckTerm(cluster, term) // others may have come before
	return err
}

// CheckTerm is ObserveTerm without noting anything: news says that there is
// something to note.
func (l *Ledger) CheckTerm(cluster string, term uint64) (news bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case slices.Contains(l.state.former, cluster):
		return false, fmt.Errorf("%w: of cluster %q, which %q has followed", ErrStaleTerm, cluster, l.state.cluster)
	case cluster == l.state.cluster && term < l.state.term:
		return false, fmt.Errorf("%w: %d, and %d was seen", ErrStaleTerm, term, l.state.term)
	}
	return cluster != l.state.cluster || term > l.state.term, nil
}

// write has e on disk, and shown, when it returns nil.
func (l *Ledger) write(e entry) error {
	line, err := encode(l.short(e))
	if err != nil {
		return err
	}
	return l.writer.do(&change{entry: e, line: line})
}

// short returns an entry as it is written: without a record's env where the journal has
// the same. An env may have a megabyte, and a box changes often; its changes come one
// after the other.
func (l *Ledger) short(e entry) entry {
	if e.Box == nil || len(e.Box.Env) == 0 {
		return e
	}
	l.mu.Lock()
	before := l.state.boxes[e.Box.ID].Env
	l.mu.Unlock()
	if !maps.Equal(before, e.Box.Env) {
		return e
	}
	r := *e.Box
	r.Env = nil
	return entry{Box: &r, SameEnv: true}
}

// apply is the one place where an entry changes the state, at open and later.
func (s *state) apply(e entry) error {
	switch {
	case e.Box != nil:
		r := *e.Box
		if e.SameEnv {
			r.Env = s.boxes[r.ID].Env
		}
		s.boxes[r.ID] = r
	case len(e.Boxes) > 0:
		for _, r := range e.Boxes {
			s.boxes[r.ID] = r
		}
	case e.Forget != "":
		delete(s.boxes, e.Forget)
	case e.Bury != "" && e.Tombstone != nil:
		delete(s.boxes, e.Bury)
		t := *e.Tombstone
		t.Generation = max(t.Generation, s.tombstones[e.Bury].Generation)
		s.tombstones[e.Bury] = t
	case e.Term > 0:
		s.observe(e.Cluster, e.Term)
	default:
		return errors.New("entry of an unknown kind")
	}
	return nil
}

func (s *state) observe(cluster string, term uint64) {
	switch {
	case slices.Contains(s.former, cluster): // it was followed while this was on its way
		return
	case cluster == s.cluster:
		s.term = max(s.term, term)
		return
	}
	if s.term > 0 {
		s.former = append(slices.Clone(s.former), s.cluster)
	}
	s.cluster, s.term = cluster, term
}

// entries is the shortest journal that adds up to the state.
func (s *state) entries() []entry {
	var out []entry
	for _, c := range s.former {
		out = append(out, entry{Term: 1, Cluster: c})
	}
	if s.term > 0 {
		out = append(out, entry{Term: s.term, Cluster: s.cluster})
	}
	for _, id := range slices.Sorted(maps.Keys(s.tombstones)) {
		t := s.tombstones[id]
		out = append(out, entry{Bury: id, Tombstone: &t})
	}
	for _, id := range slices.Sorted(maps.Keys(s.boxes)) {
		r := s.boxes[id]
		out = append(out, entry{Box: &r})
	}
	return out
}

// clone keeps callers from sharing a record's maps and slices with the ledger.
func (r Record) clone() Record {
	r.Env = maps.Clone(r.Env)
	r.Stages = slices.Clone(r.Stages)
	r.Volumes = slices.Clone(r.Volumes)
	r.HostKey = slices.Clone(r.HostKey)
	r.Database = r.Database.Clone()
	if r.ExitCode != nil {
		c := *r.ExitCode
		r.ExitCode = &c
	}
	return r
}
