package record

import (
	"fmt"
	"slices"
)

// transitions is the state table of a kind of record: which statuses may follow
// each. Under "" are those that a new row may have. The control store enforces
// it at every Put, so no row ever has a status that the table does not have.
type transitions[S ~string] map[S][]S

// allow reports whether a row may go from one status to another. That a status
// stays what it is, is always allowed.
func (t transitions[S]) allow(from, to S) bool {
	_, known := t[to]
	return known && to != "" && (from == to || slices.Contains(t[from], to))
}

// check is the error of a row that may not go from one status to another.
func (t transitions[S]) check(from, to S) error {
	if t.allow(from, to) {
		return nil
	}
	return fmt.Errorf("no transition from %q to %q", from, to)
}

// checked is the Check of a table whose rows have a status.
func checked[T comparable, S ~string](t transitions[S], status func(T) S) func(before, after T) error {
	return func(before, after T) error {
		var none T
		from := S("")
		if before != none {
			from = status(before)
		}
		return t.check(from, status(after))
	}
}

// What a host does to a sandbox between two of its words the row never sees, so
// the statuses of a living sandbox follow each other in any order. A failed one
// comes back to life when its host was silent and returns with it.
var sandboxTransitions = transitions[SandboxStatus]{
	"":                {SandboxStarting},
	SandboxStarting:   {SandboxRunning, SandboxDeleting},
	SandboxRunning:    {SandboxPaused, SandboxHibernated, SandboxFailed, SandboxDeleting},
	SandboxPaused:     {SandboxRunning, SandboxHibernated, SandboxFailed, SandboxDeleting},
	SandboxHibernated: {SandboxRunning, SandboxPaused, SandboxFailed, SandboxDeleting},
	SandboxFailed:     {SandboxRunning, SandboxPaused, SandboxHibernated, SandboxDeleting},
	SandboxDeleting:   {},
}

var snapshotTransitions = transitions[ResourceStatus]{
	"":               {ResourceCreating},
	ResourceCreating: {ResourceReady, ResourceDeleting},
	ResourceReady:    {ResourceLost, ResourceDeleting},
	ResourceLost:     {ResourceReady, ResourceDeleting},
	ResourceDeleting: {},
}

var volumeTransitions = transitions[ResourceStatus]{
	"":               {ResourceCreating},
	ResourceCreating: {ResourceReady, ResourceDeleting},
	ResourceReady:    {ResourceDeleting},
	ResourceDeleting: {},
}

// A template that has a build stays ready while others of it are made. One that
// was built by hand on a host is ready at once.
var templateTransitions = transitions[TemplateStatus]{
	"":               {TemplateUnbuilt, TemplateBuilding, TemplateReady},
	TemplateUnbuilt:  {TemplateBuilding, TemplateReady},
	TemplateBuilding: {TemplateReady, TemplateFailed},
	TemplateFailed:   {TemplateBuilding, TemplateReady},
	TemplateReady:    {},
}

var buildTransitions = transitions[TemplateStatus]{
	"":               {TemplateQueued, TemplateReady},
	TemplateQueued:   {TemplateBuilding, TemplateReady, TemplateFailed},
	TemplateBuilding: {TemplateQueued, TemplateReady, TemplateFailed},
	TemplateReady:    {},
	TemplateFailed:   {},
}

var agentTransitions = transitions[AgentState]{
	"":        {AgentLost}, // until it is heard
	AgentUp:   {AgentLost},
	AgentLost: {AgentUp},
}
