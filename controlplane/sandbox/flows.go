// Package sandbox is the life of a sandbox as flows: a create that ends with
// the sandbox running or with nothing left of it, and a delete that is never
// undone.
package sandbox

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Resource is the life of a sandbox.
var Resource = &resource.Kind[*record.Sandbox]{
	Name: "sandbox", Table: record.Sandboxes,
	Host:     func(s *record.Sandbox) string { return s.HostID },
	Creating: func(s *record.Sandbox) bool { return s.Status == record.SandboxStarting },
	Deleting: func(s *record.Sandbox) bool { return s.Status == record.SandboxDeleting },
	Delete: func(s *record.Sandbox) *record.Sandbox {
		c := s.Clone()
		c.Status = record.SandboxDeleting
		return c
	},
	Drop: DeleteRow,
}

// CreateDeadline is how long a create may take, over all the hosts it tries. A
// cold boot under emulation takes half a minute; sixteen at once take longer.
var CreateDeadline = timescale.Limit(5 * time.Minute)

// actTimeout is how long one host may take.
var actTimeout = timescale.Limit(3 * time.Minute)

// Flows are the steps of a sandbox's flows.
type Flows struct{ *core.Core }

// Kinds are for the engine.
func (f *Flows) Kinds() []flow.Kind {
	return []flow.Kind{
		{
			Name: Resource.CreateKind(), Expire: stepExpire, ActTimeout: actTimeout, Host: Resource.HostOf(stepPlace),
			Steps: map[string]flow.Step{stepPlace: f.place, stepStart: f.start, stepExpire: f.expire},
		},
		Resource.Removal(f.remove),
	}
}

// Created is the result of a create: where its time went.
type Created struct {
	Dispatched time.Time       `json:"dispatched"` // the host was asked
	Answered   time.Time       `json:"answered"`   // and had it running
	Stages     []hostapi.Stage `json:"stages,omitempty"`
	Took       time.Duration   `json:"took_ns,omitempty"` // of the host, all of it
}

func hostCtx(ctx context.Context, requestID string) context.Context {
	return hosts.WithRequestID(ctx, requestID)
}
