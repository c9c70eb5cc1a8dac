// Package sandbox is the life of a sandbox as flows: a create that ends with
// the sandbox running or with nothing left of it, and a delete that is never
// undone.
package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

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
	Host:     func(s *record.Sandbox) string { return s.AgentID },
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

// Sealer keeps secrets out of the log.
type Sealer interface {
	Seal(plaintext, context []byte) ([]byte, error)
	Open(ciphertext, context []byte) ([]byte, error)
}

// Config is what the flows work with.
type Config struct {
	Hosts  *hosts.Registry
	Sealer Sealer
	Clock  func() time.Time
	Logger *slog.Logger
}

// Flows are the steps of both kinds.
type Flows struct{ cfg Config }

// New makes the flows.
func New(cfg Config) *Flows { return &Flows{cfg: cfg} }

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

// SealEnv seals the environment of a sandbox or a snapshot; none stays none.
func (f *Flows) SealEnv(id string, env map[string]string) ([]byte, error) {
	if len(env) == 0 {
		return nil, nil
	}
	raw, err := json.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("encode environment: %w", err)
	}
	sealed, err := f.cfg.Sealer.Seal(raw, envContext(id))
	if err != nil {
		return nil, fmt.Errorf("seal environment: %w", err)
	}
	return sealed, nil
}

// OpenEnv opens what SealEnv sealed for the same id.
func (f *Flows) OpenEnv(id string, sealed []byte) (map[string]string, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	raw, err := f.cfg.Sealer.Open(sealed, envContext(id))
	if err != nil {
		return nil, fmt.Errorf("open environment: %w", err)
	}
	var env map[string]string
	if err := json.Unmarshal(raw, &env); err != nil {
		return nil, fmt.Errorf("decode environment: %w", err)
	}
	return env, nil
}

// envContext binds a sealed environment to its row: it opens in no other.
func envContext(id string) []byte { return []byte("sandbox.env/" + id) }

// Created is the result of a create: where its time went.
type Created struct {
	Dispatched time.Time       `json:"dispatched"` // the host was asked
	Answered   time.Time       `json:"answered"`   // and had it running
	Stages     []hostapi.Stage `json:"stages,omitempty"`
	Took       time.Duration   `json:"took_ns,omitempty"`     // of the host, all of it
	Own        time.Duration   `json:"own_took_ns,omitempty"` // of that, not the engine's
}

func hostCtx(ctx context.Context, requestID string) context.Context {
	return hosts.WithRequestID(ctx, requestID)
}
