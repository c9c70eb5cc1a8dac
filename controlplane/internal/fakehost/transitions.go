package fakehost

import (
	"encoding/json"
	"net/http"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Transitions returns how many transitions of a name ("pause", "wake", …) changed a
// box.
func (h *Host) Transitions(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.transitions[name]
}

// table contains the status before and after each transition.
var table = map[string][2]hostapi.Status{
	"pause":     {hostapi.StatusRunning, hostapi.StatusPaused},
	"resume":    {hostapi.StatusPaused, hostapi.StatusRunning},
	"hibernate": {hostapi.StatusRunning, hostapi.StatusHibernated},
	"wake":      {hostapi.StatusHibernated, hostapi.StatusRunning},
}

// Become changes a box's status, with a new Seq.
func (h *Host) Become(id string, status hostapi.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[id]
	b.Status, b.Seq = status, b.Seq+1
	h.boxes[id] = b
	h.announce()
}

// LoseMemory makes the saved memory of a hibernated box impossible to restore, ever.
func (h *Host) LoseMemory(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memoryLost[id] = true
}

// transition executes a call that changes a box or asks about it. The caller holds
// the lock.
func (h *Host) transition(r *http.Request, c Call) (any, error) {
	b, ok := h.boxes[c.ID]
	switch {
	case c.Op == "events":
		return h.guest.addEvent(r, c.ID, ok)
	case !ok:
		return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such box"}
	}
	switch c.Op {
	case "patch":
		var u hostapi.BoxUpdate
		if err := json.NewDecoder(r.Body).Decode(&u); err != nil {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
		}
		if u.Persistent != nil {
			b.Persistent = *u.Persistent
		}
		if u.Leaving != nil {
			if *u.Leaving && (b.Status != hostapi.StatusHibernated || len(h.objects.specs[c.ID].Volumes) > 0) {
				return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "illegal state", Detail: string(b.Status)}
			}
			h.objects.leaving[c.ID] = *u.Leaving
		}
		h.boxes[c.ID] = b
		return b, nil
	case "ports":
		if b.Status != hostapi.StatusRunning {
			return nil, &hostapi.Error{Code: hostapi.CodeNotRunning, Message: "box is not running", Detail: string(b.Status)}
		}
		return h.guest.ports, nil
	}
	m, ok := table[c.Op]
	switch {
	case !ok:
		return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: "no such call"}
	case c.Op == "wake" && b.Status == m[1]:
		return b, nil
	case c.Op == "wake" && h.objects.leaving[c.ID]:
		return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "it is being moved to another host"}
	case b.Status != m[0]:
		return nil, &hostapi.Error{Code: hostapi.CodeIllegalState, Message: "illegal state", Detail: string(b.Status)}
	case c.Op == "wake" && h.memoryLost[c.ID]:
		return nil, &hostapi.Error{Code: hostapi.CodeBadSnapshot, Message: "snapshot is refused", Detail: "no memory-ranges"}
	}
	b.Status, b.Seq = m[1], b.Seq+1
	h.boxes[c.ID] = b
	h.transitions[c.Op]++
	h.announce()
	return b, nil
}
