// Package stats contains the use cases of what a workspace sees of its resources'
// work: what the event store counts, and what hosts and replicas measure now.
package stats

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// EventStore evaluates events.
type EventStore interface {
	Sandboxes(ctx context.Context, q eventstore.Query) ([]eventstore.Day, error)
	Deployments(ctx context.Context, q eventstore.Query) ([]eventstore.Deployed, error)
	Requests(ctx context.Context, q eventstore.Query) ([]eventstore.RequestedIn, error)
}

// Databases finds a database of the caller's workspace.
type Databases interface {
	Get(ctx context.Context, c core.Caller, id string) (api.Database, error)
}

// Config says where the numbers come from.
type Config struct {
	Core      *core.Core
	Events    EventStore
	Databases Databases
	Traffic   Traffic  // of apps; nil: there is none
	Classes   []string // the names of the classes of requests to apps
	Clock     func() time.Time
}

// Metrics contains the use cases of /v1/metrics, and of the metrics of one resource.
type Metrics struct {
	cfg       Config
	questions *gate
	followers *gate
}

// New returns the use cases.
func New(cfg Config) *Metrics {
	if cfg.Traffic == nil {
		cfg.Traffic = func(context.Context, string, func(string) traffic.Question) ([]traffic.Report, []string) {
			return nil, nil
		}
	}
	return &Metrics{cfg: cfg, questions: newGate(maxQuestions, "too many questions at once"), followers: newGate(maxFollowers, "too many streams at once")}
}

// askTimeout limits a question that a host or a replica answers from memory.
var askTimeout = timescale.Limit(5 * time.Second)

// hostError converts the error of a question that has changed nothing.
func hostError(err error) error {
	if errors.Is(err, hostapi.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
		return apierror.Unreachable("its host does not answer", err)
	}
	return core.HostError(err)
}
