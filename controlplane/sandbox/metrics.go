package sandbox

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/template"
)

// MetricsQuery says which days count, both included; the zero times stand for
// the last thirty days.
type MetricsQuery struct {
	From, To time.Time
	Template string
}

// defaultDays is how far back metrics go when nobody says.
const defaultDays = 30

// EventStore answers questions about what happened.
type EventStore interface {
	Sandboxes(ctx context.Context, q eventstore.Query) ([]eventstore.Day, error)
}

// Metrics are the use cases of /v1/metrics.
type Metrics struct {
	events EventStore
	clock  func() time.Time
}

// NewMetrics makes the use cases.
func NewMetrics(events EventStore, clock func() time.Time) *Metrics {
	return &Metrics{events: events, clock: clock}
}

// Sandboxes returns the workspace's sandbox metrics by day and template, the
// newest day first.
func (m *Metrics) Sandboxes(ctx context.Context, c core.Caller, q MetricsQuery) ([]api.SandboxMetrics, error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, err
	}
	if q.To.IsZero() {
		q.To = m.clock().UTC()
	}
	if q.From.IsZero() {
		q.From = q.To.AddDate(0, 0, -(defaultDays - 1))
	}
	if q.To.Before(q.From) {
		return nil, apierror.Invalid("invalid time range", "from must not be later than to")
	}
	// Hosts, who tell what happens, have a workspace's own templates under a key.
	// A name may have been both, a public template's and the workspace's own.
	own := template.Key(c.WorkspaceID, "")
	asked := []string{q.Template}
	if q.Template != "" {
		asked = append(asked, own+q.Template)
	}
	var days []eventstore.Day
	for _, name := range asked {
		some, err := m.events.Sandboxes(ctx, eventstore.Query{WorkspaceID: c.WorkspaceID, From: q.From, To: q.To, Template: name})
		if err != nil {
			return nil, core.EventStoreError(err)
		}
		days = append(days, some...)
	}
	for i := range days {
		days[i].Template = strings.TrimPrefix(days[i].Template, own)
	}
	slices.SortStableFunc(days, func(a, b eventstore.Day) int {
		return cmp.Or(b.Date.Compare(a.Date), strings.Compare(a.Template, b.Template))
	})
	return core.Each(days, showDay), nil
}

func showDay(d eventstore.Day) api.SandboxMetrics {
	return api.SandboxMetrics{
		Day: d.Date.Format(time.DateOnly), Template: d.Template, Sandboxes: d.Sandboxes, Starts: d.Starts, Wakes: d.Wakes,
		Forks: d.Forks, Deaths: d.Deaths, Boot: api.Summary(d.Boot), Wake: api.Summary(d.Wake),
	}
}
