// Package placement chooses the host of a sandbox or of a volume. It is pure:
// what it knows of the hosts is passed in, and the same input gives the same
// choice.
package placement

import (
	"fmt"
	"slices"
	"strings"
)

// Host is what placement looks at in one host.
type Host struct {
	ID         string
	Accepting  bool // heard lately, its inventory complete, not draining
	FreeMB     int  // memory not yet given to a box, worst case
	FreeSlots  int
	OverheadMB int // the engine's own memory, added to each box's
	Boxes      int
	Store      bool // it has a snapshot store
	DiskFreeMB int64
	Troubled   bool                // creates have failed there lately: any other host is preferred
	Templates  map[string]Template // by name
	Builds     map[string]Template // those that are ready, by the digest of the build
}

// Template is one template as a host reports it.
type Template struct {
	Ready    bool
	CPU      int
	MemoryMB int
	DiskMB   int
}

// Request is what to place.
type Request struct {
	Template string
	// Builds are the digests of builds that it may be started from; none:
	// whatever the template's name means on the host.
	Builds  []string
	Exclude []string // hosts that refused or did not answer

	// Size is what it takes, when that is known without a host's template: a
	// capture brings along all that it needs.
	Size *Template
	// Only is the one host where what it needs is; empty: any.
	Only string
	// Prefer is taken before all others, as long as there is room.
	Prefer string
	// Stored asks for a host with a snapshot store, unless it is Prefer.
	Stored bool
}

// Choice is where it goes and what it takes there.
type Choice struct {
	HostID   string
	Template Template
	NeedMB   int // memory to reserve, the overhead included
}

// Reason says why there is no choice; a later one means that more hosts came
// further.
type Reason int

// The reasons.
const (
	NoHost          Reason = iota // none accepts sandboxes
	Apart                         // what it needs is on more than one host
	HostGone                      // the one that could take it is not there
	UnknownTemplate               // none has heard of the template
	TemplateUnready               // none has it ready
	NoCapacity                    // those that have it are full
	Excluded                      // those that could take it have been tried
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

// Choose picks the host with the most memory left after the placement, then the
// one with the fewest boxes, then the first by id. Spreading keeps the loss of
// one host small and lets creates that come at once run on several.
func Choose(hosts []Host, req Request) (Choice, error) {
	none := &Error{Reason: NoHost}
	if req.Only != "" {
		none.Reason = HostGone
	}
	names := map[string]bool{}
	var best *Host
	var choice Choice
	for i := range hosts {
		h := &hosts[i]
		if !h.Accepting {
			continue
		}
		for name := range h.Templates {
			names[name] = true
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
	for name := range names {
		none.Templates = append(none.Templates, name)
	}
	slices.Sort(none.Templates)
	return Choice{}, none
}

// chosen is no reason against a host.
const chosen Reason = -1

// on says what the request takes on a host, or why it cannot go there.
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

// template finds what the request is made from. A host that knows only its name
// is yet to get the build.
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

// ChooseForVolume picks the host with the most free disk that has room for a
// volume of sizeMB. What it keeps free for itself a host knows alone.
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
