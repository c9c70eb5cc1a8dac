package boxtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Event is one that a box told of.
type Event struct {
	BoxID    string
	Type     hostapi.EventType
	Metadata map[string]any
}

// Events keeps what boxes tell. An event of a box whose stream is not open is
// kept as one of type "closed".
type Events struct {
	mu   sync.Mutex
	open map[string]bool
	all  []Event
}

// Open implements box.Events.
func (e *Events) Open(id, _, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open == nil {
		e.open = map[string]bool{}
	}
	e.open[id] = true
}

// Emit implements box.Events.
func (e *Events) Emit(id string, t hostapi.EventType, _ string, metadata map[string]any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.open[id] {
		t = "closed"
	}
	e.all = append(e.all, Event{BoxID: id, Type: t, Metadata: maps.Clone(metadata)})
}

// Close implements box.Events.
func (e *Events) Close(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.open, id)
}

// Of returns the events of a box, in their order.
func (e *Events) Of(id string) []Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Event
	for _, ev := range e.all {
		if ev.BoxID == id {
			out = append(out, ev)
		}
	}
	return out
}

// Types returns the types of a box's events, in their order.
func (e *Events) Types(id string) []hostapi.EventType {
	var out []hostapi.EventType
	for _, ev := range e.Of(id) {
		out = append(out, ev.Type)
	}
	return out
}

// Volumes are volumes in memory, which know who has them.
type Volumes struct {
	mu       sync.Mutex
	Attached map[string]string // volume id → box id
	Fail     error             // of every Attach
	NoFlush  error             // of every Flush
	Flushed  []string          // volume ids
}

// Size implements box.Volumes.
func (v *Volumes) Size(string) (int64, error) { return 20 << 30, nil }

// Attach implements box.Volumes.
func (v *Volumes) Attach(_ context.Context, boxID, volumeID string, _, _ int) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.Fail != nil {
		return "", v.Fail
	}
	if v.Attached == nil {
		v.Attached = map[string]string{}
	}
	if has := v.Attached[volumeID]; has != "" && has != boxID {
		return "", fmt.Errorf("%w: volume %s", hosterr.ErrInUse, volumeID)
	}
	v.Attached[volumeID] = boxID
	return "/volumes/" + volumeID, nil
}

// Flush implements box.Volumes.
func (v *Volumes) Flush(volumeID string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.NoFlush == nil {
		v.Flushed = append(v.Flushed, volumeID)
	}
	return v.NoFlush
}

// Detach implements box.Volumes.
func (v *Volumes) Detach(boxID, volumeID string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.Attached[volumeID] == boxID {
		delete(v.Attached, volumeID)
	}
	return nil
}

// Holders returns who has which volume.
func (v *Volumes) Holders() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.Attached)
}

// Remote is a snapshot store: a directory of captures.
type Remote struct {
	Dir     string
	mu      sync.Mutex
	Fetches int
	Err     error
	Digests []string // that were asked for
}

// Fetch implements capture.Remote.
func (r *Remote) Fetch(_ context.Context, id, digest, dir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Fetches++
	r.Digests = append(r.Digests, digest)
	if r.Err != nil {
		return r.Err
	}
	from := filepath.Join(r.Dir, id)
	if _, err := os.Stat(from); err != nil {
		return fmt.Errorf("%w: %s", hosterr.ErrNoSnapshot, id)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}
