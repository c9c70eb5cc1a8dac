// Package events records what happens to a host's sandboxes: for each a ring in
// memory and a journal on disk, and for all a spool from which they are sent to every
// replica of the control plane. See DESIGN.md.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Bounds of one event.
const (
	maxMessage  = 4 << 10 // bytes
	maxMetadata = 16 << 10
	maxKey      = 256
)

var validType = regexp.MustCompile(`^[a-z._]{1,64}$`)

// Config is what a Recorder works with. Now and the bounds have defaults.
type Config struct {
	Dir     string // its own
	HostID  string
	BootID  string // of this run of the machine, not of the daemon
	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time

	Ring        int           // events of a sandbox in memory; default 512
	StreamBytes int64         // of each of the two parts of a sandbox's journal
	SpoolBytes  int64         // of each of the spool's parts
	SpoolParts  int           // at most
	SpoolAge    time.Duration // of the newest event of a part
}

// Recorder records events. It implements box.Events.
type Recorder struct {
	cfg Config

	// numbering is held while an event is numbered and spooled: the spool is in
	// the order of Seq. It is taken after a stream's lock.
	numbering sync.Mutex
	last      uint64 // number that was given
	spool     *journal
	spooled   chan struct{} // closed at the next event

	mu      sync.Mutex
	streams map[string]*stream
}

// Open reads what earlier runs left.
func Open(cfg Config) (*Recorder, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(nil)
	}
	cfg.Ring = cmp.Or(cfg.Ring, defaultRing)
	cfg.StreamBytes = cmp.Or(cfg.StreamBytes, 1<<20)
	cfg.SpoolBytes = cmp.Or(cfg.SpoolBytes, 4<<20)
	cfg.SpoolParts = cmp.Or(cfg.SpoolParts, 16)
	cfg.SpoolAge = cmp.Or(cfg.SpoolAge, 7*24*time.Hour)
	r := &Recorder{cfg: cfg, streams: map[string]*stream{}, spooled: make(chan struct{})}
	if err := os.MkdirAll(r.streamDir(), 0o700); err != nil {
		return nil, fmt.Errorf("open events: %w", err)
	}
	var err error
	if r.spool, err = openSpool(cfg); err != nil {
		return nil, err
	}
	_, last, _ := r.spool.span()
	r.last = firstNumber(filepath.Join(cfg.Dir, "sequence"), cfg.BootID, last, cfg.Now(), cfg.Log)
	r.prune()
	return r, nil
}

// openSpool moves a spool that cannot be read aside: the host must start.
func openSpool(cfg Config) (*journal, error) {
	dir := filepath.Join(cfg.Dir, "spool")
	open := func() (*journal, error) {
		bySeq := func(e *hostapi.Event) uint64 { return e.Seq }
		return openJournal(dir, limit{cfg.SpoolBytes, cfg.SpoolParts}, bySeq, cfg.Log.With("record", "spool"), func(entry) {})
	}
	j, err := open()
	if err == nil {
		return j, nil
	}
	aside := dir + ".damaged"
	cfg.Log.Error("the spool of events cannot be read and is moved aside; replicas are not told what is in it", "to", aside, "error", err)
	if merr := errors.Join(os.RemoveAll(aside), os.Rename(dir, aside)); merr != nil {
		return nil, errors.Join(err, merr)
	}
	return open()
}

func (r *Recorder) streamDir() string { return filepath.Join(r.cfg.Dir, "sandboxes") }

// Open begins a sandbox's stream, or goes on with the one that is on disk.
func (r *Recorder) Open(id, workspaceID, template string) {
	s, err := r.stream(id, true)
	if err != nil {
		r.cfg.Metrics.drop("stream")
		r.cfg.Log.Error("events of a sandbox are not recorded", "sandbox_id", id, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workspace, s.template = workspaceID, template
}

// stream returns a sandbox's stream, and makes it if begin is set; otherwise it is
// hosterr.ErrNotFound where there is none.
func (r *Recorder) stream(id string, begin bool) (*stream, error) {
	if !hostapi.ValidID(id) {
		return nil, fmt.Errorf("%w: id", hosterr.ErrInvalid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.streams[id]; s != nil {
		return s, nil
	}
	dir := filepath.Join(r.streamDir(), id)
	if !begin {
		// After a restart a stream is asked for before its box is recovered.
		if _, err := os.Stat(dir); err != nil {
			return nil, hosterr.ErrNotFound
		}
	}
	s, err := openStream(dir, r.cfg.Ring, r.cfg.StreamBytes, r.cfg.Log.With("sandbox_id", id))
	if err != nil {
		return nil, err
	}
	r.streams[id] = s
	return s, nil
}

// Emit records an event. One of a sandbox without a stream is only sent to the
// control plane. What cannot be written is counted and dropped: no operation on a
// sandbox waits for its record.
func (r *Recorder) Emit(id string, t hostapi.EventType, message string, metadata map[string]any) {
	e, err := r.entry(id, t, message, metadata)
	if err != nil {
		r.cfg.Log.Error("metadata of an event is left out", "sandbox_id", id, "type", t, "error", err)
	}
	s, err := r.stream(id, false)
	if err != nil {
		e.Time = r.cfg.Now().UTC().Truncate(time.Millisecond)
		r.number(e)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.record(s, e)
}

// entry makes an event that has no time and no number yet. With an error it has no
// metadata, either.
func (r *Recorder) entry(id string, t hostapi.EventType, message string, metadata map[string]any) (*entry, error) {
	e := &entry{Event: hostapi.Event{
		SandboxID: id, HostID: r.cfg.HostID, Type: t, Code: t.Code(),
		Message: strings.ToValidUTF8(message[:min(len(message), maxMessage)], ""),
	}}
	if len(metadata) == 0 {
		return e, nil
	}
	raw, err := json.Marshal(metadata)
	if err == nil && len(raw) > maxMetadata {
		err = fmt.Errorf("%d bytes, at most %d", len(raw), maxMetadata)
	}
	if err == nil {
		e.Metadata = raw
	}
	return e, err
}

// record adds an event to a stream, whose lock the caller holds.
func (r *Recorder) record(s *stream, e *entry) {
	if s.closed {
		return // the sandbox is gone
	}
	e.Time, e.WorkspaceID, e.Template = s.stamp(r.cfg.Now()), s.workspace, s.template
	if line := r.number(e); line != nil {
		if err := s.disk.append(&e.Event, line); err != nil {
			r.failed("file", e, err)
		}
	}
	s.push(e)
	s.wake()
}

// number gives the event its Seq, spools it, and returns its line. An event that
// could not be spooled keeps its number; the spool then has a gap.
func (r *Recorder) number(e *entry) []byte {
	r.numbering.Lock()
	defer r.numbering.Unlock()
	r.last++
	e.Seq = r.last
	r.cfg.Metrics.recorded(e.Type)
	line, err := e.line()
	if err == nil {
		err = r.spool.append(&e.Event, line)
	}
	if err != nil {
		r.failed("spool", e, err)
	}
	close(r.spooled)
	r.spooled = make(chan struct{})
	return line
}

func (r *Recorder) failed(record string, e *entry, err error) {
	r.cfg.Metrics.drop(record)
	r.cfg.Log.Error("event was not written", "record", record, "sandbox_id", e.SandboxID, "type", e.Type, "error", err)
}

// Post adds an event of the control plane's. The same key again adds nothing.
func (r *Recorder) Post(id string, n hostapi.NewEvent) error {
	switch {
	case !validType.MatchString(string(n.Type)):
		return fmt.Errorf("%w: type: want letters, '_' and '.'", hosterr.ErrInvalid)
	case len(n.Key) > maxKey:
		return fmt.Errorf("%w: key is longer than %d bytes", hosterr.ErrInvalid, maxKey)
	}
	e, err := r.entry(id, n.Type, n.Message, n.Metadata)
	if err != nil {
		return fmt.Errorf("%w: metadata: %w", hosterr.ErrInvalid, err)
	}
	e.Key = n.Key
	s, err := r.stream(id, false)
	switch {
	case errors.Is(err, hosterr.ErrNotFound) && n.WorkspaceID != "":
		e.Time, e.WorkspaceID, e.Template = r.cfg.Now().UTC().Truncate(time.Millisecond), n.WorkspaceID, n.Template
		r.number(e)
		return nil
	case err != nil:
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, done := s.keys[n.Key]; done {
		return nil
	}
	if s.closed {
		return hosterr.ErrNotFound
	}
	r.record(s, e)
	return nil
}

// Close ends a sandbox's stream and removes its journal.
func (r *Recorder) Close(id string) {
	s, err := r.stream(id, false)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, id)
	if err := s.end(); err != nil {
		r.left(id, err)
	}
}

// left logs that what is on disk of a closed stream could not be removed.
func (r *Recorder) left(id string, err error) {
	r.cfg.Log.Warn("events of a deleted sandbox stay on disk until the next start", "sandbox_id", id, "error", err)
}

// Keep closes every stream whose sandbox is not one of ids: a crash may come
// between the end of a sandbox and that of its stream.
func (r *Recorder) Keep(ids []string) error {
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	dirs, err := os.ReadDir(r.streamDir())
	if err != nil {
		return fmt.Errorf("look through events: %w", err)
	}
	for _, d := range dirs {
		if known[d.Name()] {
			continue
		}
		r.Close(d.Name())
		err = errors.Join(err, os.RemoveAll(filepath.Join(r.streamDir(), d.Name())))
	}
	if err != nil {
		return fmt.Errorf("remove events: %w", err)
	}
	return nil
}

// Query returns events of a sandbox, oldest first.
func (r *Recorder) Query(id string, q hostapi.EventQuery) ([]hostapi.Event, error) {
	s, err := r.stream(id, false)
	if err != nil {
		return nil, err
	}
	at, err := s.start(q)
	if err != nil {
		return nil, err
	}
	found, _, _, err := s.after(at, all)
	if n, bounded := tail(q); bounded {
		found = found[max(0, len(found)-n):] // some may have come since the start was found
	}
	return found, err
}

// Follow hands on the events asked for and those to come, until ctx ends or the
// stream is closed, which is no error. What the ring has dropped is read from disk,
// at most as many events at a time as it holds.
func (r *Recorder) Follow(ctx context.Context, id string, q hostapi.EventQuery, began func(), emit func(hostapi.Event) error) error {
	s, err := r.stream(id, false)
	if err != nil {
		return err
	}
	if err := s.join(); err != nil {
		return err
	}
	defer func() {
		if err := s.leave(); err != nil {
			r.left(id, err)
		}
	}()
	at, err := s.start(q)
	if err != nil {
		return err
	}
	began()
	for {
		found, changed, closed, err := s.after(at, s.size)
		if err != nil {
			return err
		}
		for _, e := range found {
			if err := emit(e); err != nil {
				return err
			}
			at = e.Time
		}
		switch {
		case len(found) > 0:
			continue
		case closed:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unsent returns the next events for a replica that has all up to seq, the oldest
// number in the spool, and a channel that is closed when there are more.
func (r *Recorder) unsent(seq uint64) (found []hostapi.Event, first uint64, changed <-chan struct{}, err error) {
	r.numbering.Lock()
	changed = r.spooled
	r.numbering.Unlock()
	first, _, _ = r.spool.span()
	found, err = r.spool.read(seq, math.MaxUint64, batchEvents, batchBytes)
	return found, first, changed, err
}

// seen records that a replica has an event of this host with number n. If n was never
// given, this host's disk was replaced: numbering goes on after n, or the replica
// would take new events for old ones.
func (r *Recorder) seen(n uint64) {
	r.numbering.Lock()
	defer r.numbering.Unlock()
	r.last = max(r.last, n)
}

// prune removes what is too old for the spool.
func (r *Recorder) prune() {
	r.spool.prune(r.cfg.Now(), r.cfg.SpoolAge)
	_, _, bytes := r.spool.span()
	r.cfg.Metrics.spooled(bytes)
}
