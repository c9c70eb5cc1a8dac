package hostapi

import (
	"fmt"
	"reflect"
	"slices"
)

// HeartbeatPart is a heartbeat without the lists that are as they were in the one before
// it. A host with a thousand templates and a hundred boxes says a few hundred bytes each
// second instead of a quarter of a megabyte.
type HeartbeatPart struct {
	Heartbeat
	// Before is the Sequence of the heartbeat that it is a part to: of the same boot, and
	// the last that the same leader has answered.
	Before uint64 `json:"before"`
	// Same names the lists that are as they were, and empty here.
	Same []string `json:"same"`
}

// list is one of the lists of a heartbeat.
type list struct {
	name string
	same func(a, b *Heartbeat) bool
	copy func(to, from *Heartbeat) // without from, it empties the list
}

func listOf[T any](name string, of func(*Heartbeat) *[]T, equal func(a, b T) bool) list {
	return list{
		name: name,
		same: func(a, b *Heartbeat) bool { return slices.EqualFunc(*of(a), *of(b), equal) },
		copy: func(to, from *Heartbeat) {
			*of(to) = nil
			if from != nil {
				*of(to) = *of(from)
			}
		},
	}
}

// The names of the lists in HeartbeatPart.Same, which are those in the JSON.
const (
	ListTemplates = "templates"
	ListSources   = "sources"
	ListBoxes     = "boxes"
	ListCaptures  = "captures"
	ListVolumes   = "volumes"
)

func equal[T comparable](a, b T) bool { return a == b }

var lists = []list{
	listOf(ListTemplates, func(hb *Heartbeat) *[]TemplateState { return &hb.Templates }, equal),
	listOf(ListSources, func(hb *Heartbeat) *[]TemplateSource { return &hb.Sources }, equal),
	listOf(ListBoxes, func(hb *Heartbeat) *[]BoxState { return &hb.Boxes }, sameBox),
	listOf(ListCaptures, func(hb *Heartbeat) *[]CaptureState { return &hb.Captures }, equal),
	listOf(ListVolumes, func(hb *Heartbeat) *[]VolumeState { return &hb.Volumes }, equal),
}

func sameBox(a, b BoxState) bool {
	if a.Persistent != nil && b.Persistent != nil && *a.Persistent == *b.Persistent {
		a.Persistent = b.Persistent
	}
	if a.Database != nil && b.Database != nil && reflect.DeepEqual(a.Database, b.Database) {
		a.Database = b.Database
	}
	return a == b
}

// Since returns the part of a heartbeat that differs from the one before it. Neither is
// changed.
func (hb Heartbeat) Since(before Heartbeat) HeartbeatPart {
	p := HeartbeatPart{Heartbeat: hb, Before: before.Sequence, Same: []string{}}
	for _, l := range lists {
		if l.same(&hb, &before) {
			p.Same = append(p.Same, l.name)
			l.copy(&p.Heartbeat, nil)
		}
	}
	return p
}

// Whole returns the heartbeat that a part stands for. Its lists are shared with before.
func (p HeartbeatPart) Whole(before Heartbeat) (Heartbeat, error) {
	hb := p.Heartbeat
	for _, name := range p.Same {
		i := slices.IndexFunc(lists, func(l list) bool { return l.name == name })
		if i < 0 {
			return Heartbeat{}, fmt.Errorf("a heartbeat has no list %q", name)
		}
		lists[i].copy(&hb, &before)
	}
	return hb, nil
}
