package fakehost

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Store is a snapshot store that fake hosts share.
type Store struct {
	mu       sync.Mutex
	captures map[string]hostapi.Capture
	owner    string
}

// Claim sets the store's owner if it has none, and reports whether owner owns it.
func (s *Store) Claim(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owner = cmp.Or(s.owner, owner)
	return s.owner == owner
}

// NewStore returns an empty store.
func NewStore() *Store { return &Store{captures: map[string]hostapi.Capture{}} }

// Put adds captures with these ids.
func (s *Store) Put(ids ...string) {
	for _, id := range ids {
		s.put(hostapi.Capture{ID: id})
	}
}

// Captures returns the ids in the store.
func (s *Store) Captures() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.captures))
}

func (s *Store) get(id string) (hostapi.Capture, bool) {
	if s == nil {
		return hostapi.Capture{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.captures[id]
	return c, ok
}

func (s *Store) put(c hostapi.Capture) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.captures[c.ID] = c
}

// page returns a page of ids. It is small, so that a listing takes several.
func (s *Store) page(after string) hostapi.StoredPage {
	const size = 2
	ids := slices.DeleteFunc(s.Captures(), func(id string) bool { return id <= after })
	return hostapi.StoredPage{IDs: ids[:min(size, len(ids))], More: len(ids) > size}
}

// Remove removes an object from the store.
func (s *Store) Remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.captures, id)
}

// objects are a host's captures and volumes, and what it knows about boxes because
// of them.
type objects struct {
	captures map[string]hostapi.Capture
	volumes  map[string]hostapi.Volume
	store    *Store
	specs    map[string]hostapi.BoxSpec // of the boxes
	leaving  map[string]bool            // boxes that do not wake here
	stopped  map[string]bool            // parents of warm forks, which have no memory and no slot
}

func newObjects() objects {
	return objects{
		captures: map[string]hostapi.Capture{}, volumes: map[string]hostapi.Volume{},
		specs: map[string]hostapi.BoxSpec{}, stopped: map[string]bool{}, leaving: map[string]bool{},
	}
}

// SetStore sets the host's snapshot store.
func (h *Host) SetStore(s *Store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.objects.store = s
	h.announce()
}

// Captures returns the ids of the host's captures.
func (h *Host) Captures() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.objects.captures))
}

// Volumes returns the host's volumes.
func (h *Host) Volumes() map[string]hostapi.Volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.objects.volumes)
}

// Spec returns the specification of a box.
func (h *Host) Spec(id string) hostapi.BoxSpec {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.objects.specs[id]
}

// DropCapture loses a capture, as a failing disk would.
func (h *Host) DropCapture(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.objects.captures, id)
	h.announce()
}

// AddCapture adds a capture that nobody asked for.
func (h *Host) AddCapture(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.objects.captures[id] = hostapi.Capture{ID: id}
	h.announce()
}

// AddVolume adds a volume that nobody asked for.
func (h *Host) AddVolume(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.objects.volumes[id] = hostapi.Volume{ID: id}
	h.announce()
}

// UseVolume sets the used size of a volume.
func (h *Host) UseVolume(id string, bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.objects.volumes[id]
	v.UsedBytes = bytes
	h.objects.volumes[id] = v
	h.announce()
}

func (o *objects) report(hb *hostapi.Heartbeat) {
	hb.Store = o.store != nil
	for _, id := range slices.Sorted(maps.Keys(o.captures)) {
		hb.Captures = append(hb.Captures, hostapi.CaptureState{ID: id, Stored: o.captures[id].Stored})
	}
	for _, id := range slices.Sorted(maps.Keys(o.volumes)) {
		hb.Volumes = append(hb.Volumes, hostapi.VolumeState{ID: id, UsedBytes: o.volumes[id].UsedBytes})
	}
}

// objectCall returns the operation and id of a call about a capture, volume, build
// or template, or "".
func objectCall(r *http.Request) (op, id string) {
	if r.URL.Path == hostapi.PathStored {
		return "stored", "all"
	}
	for prefix, ops := range map[string]map[string]string{
		hostapi.PathCaptures + "/":  {http.MethodPut: "capture", http.MethodPost: "store", http.MethodDelete: "uncapture"},
		hostapi.PathVolumes + "/":   {http.MethodPut: "volume", http.MethodDelete: "unvolume"},
		hostapi.PathBuilds + "/":    {http.MethodPut: "build", http.MethodGet: "getbuild", http.MethodDelete: "unbuild"},
		hostapi.PathTemplates + "/": {http.MethodDelete: "untemplate"},
	} {
		if rest, ok := strings.CutPrefix(r.URL.Path, prefix); ok {
			id, _, _ = strings.Cut(rest, "/")
			return ops[r.Method], id
		}
	}
	return "", ""
}

// object executes a call about an object. The caller holds the lock.
func (h *Host) object(r *http.Request, c Call) (any, error) {
	o := &h.objects
	switch c.Op {
	case "build", "getbuild", "unbuild", "untemplate":
		return h.build(r, c)
	case "capture":
		return h.capture(r, c.ID)
	case "store":
		made, ok := o.captures[c.ID]
		switch {
		case !ok:
			return nil, &hostapi.Error{Code: hostapi.CodeNoSnapshot, Message: "no such capture"}
		case o.store == nil:
			return nil, &hostapi.Error{Code: hostapi.CodeNoStore, Message: "no snapshot store"}
		}
		made.Stored = true
		o.captures[c.ID] = made
		made.Manifest = fmt.Sprintf("%x", sha256.Sum256([]byte(c.ID)))
		o.store.put(made)
		h.announce()
		return made, nil
	case "stored":
		if o.store == nil {
			return nil, &hostapi.Error{Code: hostapi.CodeNoStore, Message: "no snapshot store"}
		}
		if !o.store.Claim(r.URL.Query().Get(hostapi.QueryOwner)) {
			return nil, &hostapi.Error{Code: hostapi.CodeForeignStore, Message: "snapshot store belongs to another cluster"}
		}
		return o.store.page(r.URL.Query().Get(hostapi.QueryAfter)), nil
	case "uncapture":
		delete(o.captures, c.ID)
		if o.store != nil && r.URL.Query().Get(hostapi.QueryStored) == "true" {
			o.store.Remove(c.ID)
		}
		h.announce()
		return nil, nil
	case "volume":
		var spec hostapi.VolumeSpec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
		}
		v, ok := o.volumes[c.ID]
		if !ok {
			v = hostapi.Volume{ID: c.ID, WorkspaceID: spec.WorkspaceID, SizeMB: spec.SizeMB, CreatedAt: time.Now()}
			o.volumes[c.ID] = v
			h.announce()
		}
		return v, nil
	case "unvolume":
		if o.volumes[c.ID].AttachedTo != "" {
			return nil, &hostapi.Error{Code: hostapi.CodeInUse, Message: "volume in use"}
		}
		delete(o.volumes, c.ID)
		h.announce()
		return nil, nil
	}
	return nil, nil
}

func (h *Host) capture(r *http.Request, id string) (any, error) {
	var spec hostapi.CaptureSpec
	if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
	}
	if made, ok := h.objects.captures[id]; ok {
		return made, nil
	}
	b, ok := h.boxes[spec.BoxID]
	switch {
	case !ok:
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
	case spec.Memory && h.objects.leaving[spec.BoxID] && spec.Generation == b.Generation:
	case b.Status != hostapi.StatusRunning:
		return nil, &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: string(b.Status)}
	case spec.Memory && len(h.objects.specs[spec.BoxID].Volumes) > 0:
		return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "volumes are attached"}
	}
	made := hostapi.Capture{
		ID: id, BoxID: spec.BoxID, Template: b.Template, CPU: b.CPU, MemoryMB: b.MemoryMB, DiskMB: b.DiskMB,
		Memory: spec.Memory, DiskBytes: 4096, PauseMS: 7, CreatedAt: time.Now(),
	}
	if spec.Memory {
		made.MemoryBytes = int64(b.MemoryMB) << 20
	}
	h.objects.captures[id] = made
	h.announce()
	return made, nil
}

// sourceOf checks what a box is created from and returns its size, or nil for the
// template's.
func (h *Host) sourceOf(id string, spec hostapi.BoxSpec) (*hostapi.Capture, error) {
	o := &h.objects
	for _, v := range spec.Volumes {
		switch have, ok := o.volumes[v.ID]; {
		case !ok:
			return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such volume"}
		case have.AttachedTo != "" && have.AttachedTo != id:
			return nil, &hostapi.Error{Code: hostapi.CodeInUse, Message: "volume in use"}
		}
	}
	switch {
	case spec.Capture != "":
		made, ok := o.captures[spec.Capture]
		if !ok {
			if made, ok = o.store.get(spec.Capture); !ok {
				return nil, &hostapi.Error{Code: hostapi.CodeNoSnapshot, Message: "no such capture"}
			}
			if spec.Manifest != made.Manifest {
				return nil, &hostapi.Error{Code: hostapi.CodeBadSnapshot, Message: "its manifest is not the one that was stored"}
			}
			made.Manifest = ""
			o.captures[spec.Capture] = made
		}
		if spec.Asleep && made.BoxID != id {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "the capture is of another sandbox"}
		}
		if !made.Memory && spec.Boot != hostapi.BootCold {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "the capture has no memory"}
		}
		return &made, nil
	case spec.WarmFrom != "":
		parent, ok := h.boxes[spec.WarmFrom]
		switch {
		case !ok:
			return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
		case parent.Status != hostapi.StatusRunning:
			return nil, &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: string(parent.Status)}
		}
		parent.Status, parent.Seq = hostapi.StatusPaused, parent.Seq+1
		h.boxes[spec.WarmFrom] = parent
		o.stopped[spec.WarmFrom] = true
		return &hostapi.Capture{CPU: parent.CPU, MemoryMB: parent.MemoryMB, DiskMB: parent.DiskMB, PauseMS: 7}, nil
	case spec.DiskOf != "":
		other, ok := h.boxes[spec.DiskOf]
		switch {
		case !ok:
			return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
		case other.Status != hostapi.StatusRunning && other.Status != hostapi.StatusHibernated && other.Status != hostapi.StatusFailed:
			return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "illegal state", Detail: string(other.Status)}
		case h.databases.uncopied:
			return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "the file system shares no blocks"}
		case spec.Boot != hostapi.BootCold:
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "a copy of a disk is booted from"}
		}
		h.databases.copied(spec.DiskOf, id)
		return &hostapi.Capture{CPU: other.CPU, MemoryMB: other.MemoryMB, DiskMB: other.DiskMB}, nil
	}
	return nil, nil
}

// made records a new box.
func (o *objects) made(id string, spec hostapi.BoxSpec) {
	o.specs[id] = spec
	for _, a := range spec.Volumes {
		v := o.volumes[a.ID]
		v.AttachedTo = id
		o.volumes[a.ID] = v
	}
}

// gone records that a box was deleted.
func (o *objects) gone(id string) {
	delete(o.specs, id)
	delete(o.stopped, id)
	delete(o.leaving, id)
	for vid, v := range o.volumes {
		if v.AttachedTo == id {
			v.AttachedTo = ""
			o.volumes[vid] = v
		}
	}
}
