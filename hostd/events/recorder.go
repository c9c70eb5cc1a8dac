// Package events keeps what happens to a host's sandboxes: for each a ring in
// memory and a file, and for all a spool from which every replica of the control
// plane is told. See DESIGN.md.
package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
	maxType     = 64
)

// Config is what a Recorder works with. Sizes and Now have defaults.
type Config struct {
	Dir     string // its own
	AgentID string
	BootID  string // of this run of the machine, not of the daemon
	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time

	StreamBytes  int64         // of each of a sandbox's two files
	SegmentBytes int64         // of each part of the spool
	SpoolBytes   int64         // of the whole spool
	SpoolAge     time.Duration // of its oldest part
}

// Recorder records events. It implements box.Events.
type Recorder struct {
	cfg   Config
	spool *spool

	// numbering is held while an event is numbered and spooled: the spool is in
	// the order of Seq. It is taken after a stream's lock.
	numbering sync.Mutex
	sequence  *sequence

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
	defaults(&cfg.StreamBytes, 1<<20)
	defaults(&cfg.SegmentBytes, 4<<20)
	defaults(&cfg.SpoolBytes, 64<<20)
	if cfg.SpoolAge == 0 {
		cfg.SpoolAge = 7 * 24 * time.Hour
	}
	r := &Recorder{cfg: cfg, streams: map[string]*stream{}}
	if err := os.MkdirAll(r.streamDir(), 0o700); err != nil {
		return nil, fmt.Errorf("open events: %w", err)
	}
	var damaged int
	var err error
	if r.spool, damaged, err = openSpool(filepath.Join(cfg.Dir, "spool"), cfg.SegmentBytes, cfg.SpoolBytes, cfg.SpoolAge); err != nil {
		return nil, err
	}
	if damaged > 0 {
		cfg.Log.Warn("event spool has damaged lines, which are left out", "lines", damaged)
	}
	if r.sequence, err = openSequence(filepath.Join(cfg.Dir, "sequence"), cfg.BootID, r.spool.last); err != nil {
		return nil, err
	}
	r.prune()
	return r, nil
}

func defaults(v *int64, value int64) {
	if *v == 0 {
		*v = value
	}
}

// Shut closes the files. No call may be under way, or come later.
func (r *Recorder) Shut() error { return errors.Join(r.spool.close(), r.sequence.close()) }

func (r *Recorder) streamDir() string { return filepath.Join(r.cfg.Dir, "sandboxes") }

const streamSuffix = ".events"

func (r *Recorder) streamPath(id string) string {
	return filepath.Join(r.streamDir(), id+streamSuffix)
}

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

// stream finds a sandbox's stream: hosterr.ErrNotFound where there is none, and none
// is to be made.
func (r *Recorder) stream(id string, begin bool) (*stream, error) {
	if !hostapi.ValidID(id) {
		return nil, fmt.Errorf("%w: id", hosterr.ErrInvalid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.streams[id]; s != nil {
		return s, nil
	}
	if !begin {
		// After a restart a stream is asked for before its box is recovered.
		_, newer := os.Stat(r.streamPath(id))
		_, older := os.Stat(r.streamPath(id) + olderSuffix)
		if newer != nil && older != nil {
			return nil, hosterr.ErrNotFound
		}
	}
	s, damaged, err := openStream(r.streamPath(id), r.cfg.StreamBytes)
	if err != nil {
		return nil, err
	}
	if damaged > 0 {
		r.cfg.Log.Warn("events of a sandbox have damaged lines, which are left out", "sandbox_id", id, "lines", damaged)
	}
	r.streams[id] = s
	return s, nil
}

// Emit records an event. One of a sandbox that has no stream is told to the
// control plane alone. What cannot be written is counted and given up: nothing
// that happens to a sandbox waits for its record.
func (r *Recorder) Emit(id string, t hostapi.EventType, message string, metadata map[string]any) {
	var raw json.RawMessage
	if len(metadata) > 0 {
		var err error
		if raw, err = json.Marshal(metadata); err != nil || len(raw) > maxMetadata {
			r.cfg.Log.Error("metadata of an event is left out", "sandbox_id", id, "type", t, "bytes", len(raw), "error", err)
			raw = nil
		}
	}
	e := entry{Event: hostapi.Event{
		SandboxID: id, AgentID: r.cfg.AgentID, Type: t, Code: t.Code(), Message: clip(message), Metadata: raw,
	}}
	s, err := r.stream(id, false)
	if err != nil {
		e.Time = r.cfg.Now().UTC().Truncate(time.Millisecond)
		if _, err := r.number(&e); err != nil {
			r.failed("spool", &e, err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.record(s, &e)
}

// record adds an event to a stream, whose lock the caller holds.
func (r *Recorder) record(s *stream, e *entry) {
	if s.closed {
		return // it came too late
	}
	e.Time, e.WorkspaceID, e.Template = s.stamp(r.cfg.Now()), s.workspace, s.template
	line, err := r.number(e)
	if e.Seq == 0 {
		r.failed("number", e, err)
		return
	}
	if err != nil {
		r.failed("spool", e, err)
	}
	if line != nil {
		if err := s.write(line); err != nil {
			r.failed("file", e, err)
		}
	}
	s.push(e.Event)
	s.remember(e.Key)
	s.wake()
}

// number gives the event its Seq and spools it. An event that could not be
// spooled keeps its number; the spool then has a gap.
func (r *Recorder) number(e *entry) ([]byte, error) {
	r.numbering.Lock()
	defer r.numbering.Unlock()
	seq, err := r.sequence.next()
	if err != nil {
		return nil, err
	}
	e.Seq = seq
	r.cfg.Metrics.recorded(e.Type)
	line, err := e.line()
	if err != nil {
		return nil, err
	}
	return line, r.spool.append(line, seq, e.Time)
}

func (r *Recorder) failed(where string, e *entry, err error) {
	r.cfg.Metrics.drop(where)
	r.cfg.Log.Error("event was not written", "where", where, "sandbox_id", e.SandboxID, "type", e.Type, "error", err)
}

func clip(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "")
}

// Post adds an event of the control plane's. The same key again adds nothing.
func (r *Recorder) Post(id string, n hostapi.NewEvent) error {
	switch {
	case !validType(n.Type):
		return fmt.Errorf("%w: type: want letters, '_' and '.'", hosterr.ErrInvalid)
	case len(n.Key) > maxKey:
		return fmt.Errorf("%w: key is longer than %d bytes", hosterr.ErrInvalid, maxKey)
	}
	var raw json.RawMessage
	if len(n.Metadata) > 0 {
		var err error
		if raw, err = json.Marshal(n.Metadata); err != nil || len(raw) > maxMetadata {
			return fmt.Errorf("%w: metadata is larger than %d bytes", hosterr.ErrInvalid, maxMetadata)
		}
	}
	s, err := r.stream(id, false)
	if err != nil {
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
	r.record(s, &entry{Key: n.Key, Event: hostapi.Event{
		SandboxID: id, AgentID: r.cfg.AgentID, Type: n.Type, Code: n.Type.Code(), Message: clip(n.Message), Metadata: raw,
	}})
	return nil
}

func validType(t hostapi.EventType) bool {
	if t == "" || len(t) > maxType {
		return false
	}
	for i := range len(t) {
		if c := t[i]; (c < 'a' || c > 'z') && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// Close ends a sandbox's stream and removes its file.
func (r *Recorder) Close(id string) {
	s, err := r.stream(id, false)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, id)
	if err := s.end(); err != nil {
		r.cfg.Log.Warn("file of a deleted sandbox's events stays until the next start", "sandbox_id", id, "error", err)
	}
}

// Keep closes every stream whose sandbox is not one of ids: a crash may come
// between the end of a sandbox and that of its stream.
func (r *Recorder) Keep(ids []string) error {
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	files, err := os.ReadDir(r.streamDir())
	if err != nil {
		return fmt.Errorf("look through events: %w", err)
	}
	for _, f := range files {
		id, _, _ := strings.Cut(f.Name(), ".")
		if known[id] {
			continue
		}
		r.Close(id)
		err = errors.Join(err, ignoreMissing(os.Remove(filepath.Join(r.streamDir(), f.Name()))))
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
	found, _, err := query(s, q)
	return found, err
}

// query returns the events asked for, and the time after which those come that
// were not there yet.
func query(s *stream, q hostapi.EventQuery) (found []hostapi.Event, at time.Time, err error) {
	if q.Since.IsZero() {
		n := hostapi.DefaultEventTail
		if q.Tail != nil {
			n = *q.Tail
		}
		if n <= ringSize {
			found, at = s.lastOnes(n)
			return found, at, nil
		}
		q.Tail = &n // of all that is on disk, too
	}
	if found, _, _, err = s.after(q.Since); err != nil {
		return nil, at, err
	}
	at = q.Since
	if n := len(found); n > 0 {
		at = found[n-1].Time
	}
	if q.Tail != nil {
		found = found[max(0, len(found)-*q.Tail):]
	}
	return found, at, nil
}

// Follow hands on the events asked for and those to come, until ctx ends or the
// stream is closed, which is no error. A caller that is slower than the ring is
// handed on from the file what the ring dropped. No more than ringSize events are
// held while a caller takes them.
func (r *Recorder) Follow(ctx context.Context, id string, q hostapi.EventQuery, began func(), emit func(hostapi.Event) error) error {
	s, err := r.stream(id, false)
	if err != nil {
		return err
	}
	found, at, err := query(s, q)
	if err != nil {
		return err
	}
	began()
	for {
		if len(found) > ringSize {
			found = slices.Clone(found[:ringSize])
			at = found[ringSize-1].Time // the rest is read again
		}
		for _, e := range found {
			if err := emit(e); err != nil {
				return err
			}
		}
		var changed <-chan struct{}
		var closed bool
		if found, changed, closed, err = s.after(at); err != nil {
			return err
		}
		if n := len(found); n > 0 {
			at = found[n-1].Time
			continue
		}
		if closed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// seen is told that a replica has an event of this host with number n. One that
// was never given is from before this host's disk was replaced: numbering goes
// on after it, or what comes would be taken for what was.
func (r *Recorder) seen(n uint64) error {
	r.numbering.Lock()
	defer r.numbering.Unlock()
	return r.sequence.skip(n)
}

func (r *Recorder) prune() {
	if err := r.spool.prune(r.cfg.Now()); err != nil {
		r.cfg.Log.Warn("old events stay in the spool", "error", err)
	}
	r.cfg.Metrics.spooled(r.spool.bytes())
}
