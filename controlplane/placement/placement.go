// Package placement chooses the host of a sandbox. It is pure: what it knows of
// the hosts is passed in, and the same input gives the same choice.
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
	Templates  map[string]Template
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
	Exclude  []string // hosts that refused or did not answer
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
	UnknownTemplate               // none has heard of the template
	TemplateUnready               // none has it ready
	NoCapacity                    // those that have it are full
	Excluded                      // those that could take it have been tried
)

var reasons = [...]string{
	NoHost:          "no host is accepting sandboxes",
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
	names := map[string]bool{}
	best := -1
	for i, h := range hosts {
		if !h.Accepting {
			continue
		}
		for name := range h.Templates {
			names[name] = true
		}
		t, known := h.Templates[req.Template]
		reason := UnknownTemplate
		switch {
		case !known:
		case !t.Ready:
			reason = TemplateUnready
		case h.FreeMB < t.MemoryMB+h.OverheadMB, h.FreeSlots < 1:
			reason = NoCapacity
		case slices.Contains(req.Exclude, h.ID):
			reason = Excluded
		case best < 0 || better(h, hosts[best], req.Template):
			best = i
		}
		none.Reason = max(none.Reason, reason)
	}
	if best < 0 {
		for name := range names {
			none.Templates = append(none.Templates, name)
		}
		slices.Sort(none.Templates)
		return Choice{}, none
	}
	h := hosts[best]
	t := h.Templates[req.Template]
	return Choice{HostID: h.ID, Template: t, NeedMB: t.MemoryMB + h.OverheadMB}, nil
}

// better reports whether a is preferred to b; both can take the template.
func better(a, b Host, template string) bool {
	left := func(h Host) int { return h.FreeMB - h.Templates[template].MemoryMB - h.OverheadMB }
	if l, r := left(a), left(b); l != r {
		return l > r
	}
	if a.Boxes != b.Boxes {
		return a.Boxes < b.Boxes
	}
	return strings.Compare(a.ID, b.ID) < 0
}
