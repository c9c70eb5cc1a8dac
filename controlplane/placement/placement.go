// Package placement chooses the host of a sandbox or a volume. It is pure: hosts are
// passed in, and the same input gives the same choice.
package placement

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Host contains what placement needs to know about a host.
type Host struct {
	ID         string
	Accepting  bool // it was heard recently, its inventory is complete, and it is not draining
	MemoryMB   int  // memory that boxes may use in all
	FreeMB     int  // memory that no box may use yet
	FreeSlots  int
	OverheadMB int // the engine's own memory, added to that of each box
	Boxes      int
	Store      bool // it has a snapshot store
	DiskFreeMB int64
	Troubled   bool                // creates have failed there recently: any other host is preferred
	Templates  map[string]Template // by name
	Builds     map[string]Template // those that are ready, by digest
}

// Template is a template on a host.
type Template struct {
	Ready    bool
	CPU      int
	MemoryMB int
	DiskMB   int
}

// Request describes what to place.
type Request struct {
	Template string
	// Builds are the digests of the builds that it may start from; empty: the host's
	// own build of the template.
	Builds  []string
	Exclude []string // hosts that refused or did not answer

	// Size is the size, if it does not depend on the host's template: a capture
	// contains all that it needs.
	Size *Template
	// Only is the only host that has what it needs; empty: any.
	Only string
	// Prefer is the host that is chosen if it has room.
	Prefer string
	// Stored requires a host with a snapshot store, unless it is Prefer.
	Stored bool
}

// Choice is the chosen host and the memory that is needed there.
type Choice struct {
	HostID   string
	Template Template
	NeedMB   int // including the overhead
}

// Reason is why no host was chosen. A higher one means that a host met more of the
// requirements.
type Reason int

// The reasons.
const (
	NoHost          Reason = iota // no host accepts sandboxes
	Apart                         // what it needs is on more than one host
	HostGone                      // the only possible host is not available
	UnknownTemplate               // no host has the template
	TemplateUnready               // no host has it ready
	NoCapacity                    // the hosts that have it are full
	Excluded                      // the hosts that could take it have been tried
)

var reasons = [...]string{
	NoHost:          "no host is accepting sandboxes",
	Apart:           "what it needs is on different hosts",
	HostGone:        "the host that has what it needs is not available",
	UnknownTemplate: "no host has the template",
	TemplateUnready: "no host has the template ready yet",
	NoCapacity:      "every host with the template is full",
	Excluded:        "every host with room has been tried",
}

func (r Reason) String() string { return reasons[r] }

// Error is returned when no host can take the request.
type Error struct {
	Reason    Reason
	Templates []string // names that some host accepting sandboxes reports, sorted
}

func (e *Error) Error() string { return fmt.Sprintf("no host: %s", e.Reason) }

// Choose returns the host with the most memory left after the placement, then the
// one with the fewest boxes, then the first by id. Spreading limits the loss when a
// host fails, and lets simultaneous creates run on several hosts.
func Choose(hosts []Host, req Request) (Choice, error) {
	none := &Error{Reason: NoHost}
	if req.Only != "" {
		none.Reason = HostGone
	}
	var best *Host
	var choice Choice
	for i := range hosts {
		h := &hosts[i]
		if !h.Accepting {
			continue
		}
		c, reason := req.on(h)
		if reason == chosen {
			if best == nil || better(h, c, best, choice, req.Prefer) {
				best, choice = h, c
			}
			continue
		}
		none.Reason = max(none.Reason, reason)
	}
	if best != nil {
		return choice, nil
	}
	none.Templates = templatesOf(hosts)
	return Choice{}, none
}

// templatesOf returns the names that some host accepting sandboxes reports, sorted. Hosts
// that share their maps are looked at once.
func templatesOf(hosts []Host) (sorted []string) {
	names, seen := map[string]bool{}, map[uintptr]bool{}
	for i := range hosts {
		h := &hosts[i]
		at := reflect.ValueOf(h.Templates).Pointer()
		if !h.Accepting || seen[at] {
			continue
		}
		seen[at] = true
		for name := range h.Templates {
			names[name] = true
		}
	}
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	return sorted
}

// chosen means that the host can take the request.
const chosen Reason = -1

// on returns what the request needs on a host, or why it cannot go there.
func (r Request) on(h *Host) (Choice, Reason) {
	if r.Only != "" && h.ID != r.Only || r.Stored && !h.Store && h.ID != r.Prefer {
		return Choice{}, HostGone
	}
	t, known := r.template(h)
	if r.Size != nil {
		t, known = *r.Size, true
		t.Ready = true
	}
	c := Choice{HostID: h.ID, Template: t, NeedMB: t.MemoryMB + h.OverheadMB}
	switch {
	case !known:
		return c, UnknownTemplate
	case !t.Ready:
		return c, TemplateUnready
	case h.FreeMB < c.NeedMB, h.FreeSlots < 1:
		return c, NoCapacity
	case slices.Contains(r.Exclude, h.ID):
		return c, Excluded
	}
	return c, chosen
}

// template returns the host's template for the request. If the host has only another
// build of it, the template is not ready.
func (r Request) template(h *Host) (t Template, known bool) {
	for _, digest := range r.Builds {
		if t, ok := h.Builds[digest]; ok {
			return t, true
		}
	}
	t, known = h.Templates[r.Template]
	if len(r.Builds) > 0 {
		t.Ready = false
	}
	return t, known
}

// better reports whether a is preferred to b; both can take the request.
func better(a *Host, ca Choice, b *Host, cb Choice, prefer string) bool {
	if (a.ID == prefer) != (b.ID == prefer) {
		return a.ID == prefer
	}
	if a.Troubled != b.Troubled {
		return b.Troubled
	}
	if l, r := a.FreeMB-ca.NeedMB, b.FreeMB-cb.NeedMB; l != r {
		return l > r
	}
	if a.Boxes != b.Boxes {
		return a.Boxes < b.Boxes
	}
	return strings.Compare(a.ID, b.ID) < 0
}

// ChooseForVolume returns the host with the most free disk, if it has enough for a
// volume of sizeMB. Only the host itself knows how much it keeps free.
func ChooseForVolume(hosts []Host, sizeMB int, exclude []string) (string, error) {
	none := &Error{Reason: NoHost}
	best := -1
	for i, h := range hosts {
		switch {
		case !h.Accepting:
		case h.DiskFreeMB < int64(sizeMB):
			none.Reason = max(none.Reason, NoCapacity)
		case slices.Contains(exclude, h.ID):
			none.Reason = max(none.Reason, Excluded)
		case best < 0, h.DiskFreeMB > hosts[best].DiskFreeMB,
			h.DiskFreeMB == hosts[best].DiskFreeMB && h.ID < hosts[best].ID:
			best = i
		}
	}
	if best < 0 {
		return "", none
	}
	return hosts[best].ID, nil
}
