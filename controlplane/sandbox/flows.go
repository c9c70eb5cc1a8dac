// Package sandbox contains the use cases, flows and loops of sandboxes: their life,
// the commands that run in them, and their files, logs, events and ports.
package sandbox

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Resource describes sandboxes to package resource.
var Resource = &resource.Kind[*record.Sandbox]{
	Name: "sandbox", Table: record.Sandboxes, Moving: "moving",
	Host:     func(s *record.Sandbox) string { return s.HostID },
	Owner:    func(s *record.Sandbox) string { return s.WorkspaceID },
	Creating: func(s *record.Sandbox) bool { return s.Status == record.SandboxStarting },
	Deleting: func(s *record.Sandbox) bool { return s.Status == record.SandboxDeleting },
	Delete: func(s *record.Sandbox) *record.Sandbox {
		c := s.Clone()
		c.Status = record.SandboxDeleting
		c.Ports = nil // a transaction may delete sixteen, with metadata and ports of any length
		return c
	},
	Drop: DeleteRow,
}

// CreateDeadline limits a create, over all the hosts that it tries. A cold boot
// under emulation takes half a minute; sixteen at once take longer.
var CreateDeadline = timescale.Limit(5 * time.Minute)

// actTimeout limits the call to one host.
var actTimeout = timescale.Limit(3 * time.Minute)

// Flows contains the steps of sandboxes' flows.
type Flows struct {
	*core.Core
	moves map[string]Moves // by type of owner
	show  func(*record.Sandbox) api.Sandbox
}

// Kinds returns the kinds of flows, for the engine.
func (f *Flows) Kinds() []flow.Kind {
	return []flow.Kind{
		{
			Name: Resource.CreateKind(), Expire: stepExpire, ActTimeout: actTimeout, Host: Resource.HostOf(stepPlace), Workspace: Resource.OwnerOf,
			Steps: map[string]flow.Step{stepPlace: f.place, stepStart: f.start, stepExpire: f.expire},
		},
		Resource.Removal(f.remove),
		f.moveKind(),
	}
}

// Created is the result of a create: how long its stages took.
type Created struct {
	Dispatched time.Time       `json:"dispatched"` // when the host was called
	Answered   time.Time       `json:"answered"`   // when the host answered that it runs
	Stages     []hostapi.Stage `json:"stages,omitempty"`
	Took       time.Duration   `json:"took_ns,omitempty"` // in total on the host
}
