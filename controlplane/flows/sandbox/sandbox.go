// Package sandbox is the life of a sandbox as flows: a create that ends with
// the sandbox running or with nothing left of it, and a delete that is never
// undone.
package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// The kinds of flow.
const (
	KindCreate = "sandbox.create"
	KindDelete = "sandbox.delete"
)

// How a create fails.
var (
	ErrNoHost      = errors.New("no host can take the sandbox")
	ErrUnreachable = errors.New("the hosts chosen for the sandbox do not answer")
	ErrNotStarted  = errors.New("the sandbox could not be started")
)

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
type Flows struct {
	cfg Config

	mu     sync.Mutex
	traces map[string]Trace // of creates under way here, by sandbox id
}

// New makes the flows.
func New(cfg Config) *Flows { return &Flows{cfg: cfg, traces: map[string]Trace{}} }

// Kinds are for the engine.
func (f *Flows) Kinds() []flow.Kind {
	return []flow.Kind{
		{
			Name: KindCreate, Expire: stepExpire, ActTimeout: actTimeout, Host: hostOf,
			Steps: map[string]flow.Step{stepPlace: f.place, stepStart: f.start, stepExpire: f.expire},
		},
		{
			Name: KindDelete, ActTimeout: time.Minute, Host: hostOf,
			Steps: map[string]flow.Step{stepRemove: f.remove},
		},
	}
}

// hostOf is the host that a flow calls.
func hostOf(r raftstore.Reader, fl *record.Flow) string {
	s, ok := sandboxOf(r, fl)
	if !ok || fl.Step == stepPlace {
		return ""
	}
	return s.AgentID
}

// Subject names a sandbox for flows.
func Subject(id string) string { return flow.Subject(record.Sandboxes.Name, id) }

// NewFlowID makes an id for a flow.
func NewFlowID() string {
	raw := make([]byte, 12)
	rand.Read(raw) // never fails: crypto/rand ends the process first
	return "flow-" + hex.EncodeToString(raw)
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

// Trace is where the time of a create went, as far as this replica saw it.
type Trace struct {
	Dispatched time.Time // the host was asked
	Answered   time.Time // and had it running
	Box        hostapi.Box
}

// TakeTrace returns the trace of a create that has just ended here, once.
func (f *Flows) TakeTrace(sandboxID string) (Trace, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.traces[sandboxID]
	delete(f.traces, sandboxID)
	return t, ok
}

// maxTraces bounds those that nobody takes: their requests have gone away.
const maxTraces = 4096

func (f *Flows) trace(sandboxID string, t Trace) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.traces) >= maxTraces {
		clear(f.traces)
	}
	f.traces[sandboxID] = t
}

// sandboxOf finds the flow's sandbox.
func sandboxOf(r raftstore.Reader, fl *record.Flow) (*record.Sandbox, bool) {
	return raftstore.Get(r, record.Sandboxes, strings.TrimPrefix(fl.Subject, record.Sandboxes.Name+"/"))
}

// finish ends a flow whose sandbox needs nothing more from it.
func finish(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }

func hostCtx(ctx context.Context, requestID string) context.Context {
	return hosts.WithRequestID(ctx, requestID)
}
