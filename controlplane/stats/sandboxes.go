package stats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/timescale"
)

// Query selects days, both included, what is counted of them, and in which buckets. The
// zero times select the last thirty days, or the last two by the hour.
type Query struct {
	From, To time.Time
	Hourly   bool
	Label    string // one template, app or database; empty: all
}

// Bounds of a query.
const (
	defaultDays, maxDays             = 30, 92 // a little more than events are kept
	defaultHourlyDays, maxHourlyDays = 2, 7
	maxBuckets                       = 5000
)

// queryTimeout limits a query of the event store.
var queryTimeout = timescale.Limit(10 * time.Second)

// query checks a query and completes it.
func (m *Metrics) query(c core.Caller, q Query) (eventstore.Query, error) {
	days, most := defaultDays, maxDays
	out := eventstore.Query{WorkspaceID: c.WorkspaceID, Label: q.Label, Most: maxBuckets, Bucket: 24 * time.Hour}
	if q.Hourly {
		days, most, out.Bucket = defaultHourlyDays, maxHourlyDays, time.Hour
	}
	if q.To.IsZero() {
		q.To = m.cfg.Clock().UTC()
	}
	if q.From.IsZero() {
		q.From = q.To.AddDate(0, 0, -(days - 1))
	}
	switch {
	case q.To.Before(q.From) && q.To.Format(time.DateOnly) != q.From.Format(time.DateOnly):
		return out, apierror.Invalid("invalid time range", "from must not be later than to")
	case q.To.Sub(q.From) >= time.Duration(most)*24*time.Hour:
		return out, apierror.Invalid("invalid time range", "at most %d days", most)
	}
	out.From, out.To = q.From, q.To
	return out, nil
}

// ask runs a query of the event store, of which a workspace has a few at a time.
func (m *Metrics) ask(ctx context.Context, c core.Caller, query func(ctx context.Context) error) error {
	leave, err := m.questions.enter(c.WorkspaceID)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = query(ctx)
	switch {
	case errors.Is(err, eventstore.ErrTooMany):
		return apierror.Invalid("too many rows", "%s", fmt.Sprintf("at most %d are returned: ask for fewer days, or for one of them", maxBuckets))
	case err != nil:
		return core.EventStoreError(err)
	}
	return nil
}

// Sandboxes returns the metrics of the workspace's sandboxes by time and template, newest
// first.
func (m *Metrics) Sandboxes(ctx context.Context, c core.Caller, q Query) ([]api.SandboxMetrics, error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, err
	}
	of, err := m.query(c, q)
	if err != nil {
		return nil, err
	}
	// Hosts report a workspace's own templates under a key. Shared templates and the
	// workspace's own ones may have had the same name.
	own := template.Key(c.WorkspaceID, "")
	names := []string{q.Label}
	if q.Label != "" {
		names = append(names, own+q.Label)
	}
	var days []eventstore.Day
	err = m.ask(ctx, c, func(ctx context.Context) error {
		for _, of.Label = range names {
			some, err := m.cfg.Events.Sandboxes(ctx, of)
			if err != nil {
				return err
			}
			days = append(days, some...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range days {
		days[i].Label = strings.TrimPrefix(days[i].Label, own)
	}
	slices.SortStableFunc(days, func(a, b eventstore.Day) int {
		return cmp.Or(b.Date.Compare(a.Date), strings.Compare(a.Label, b.Label))
	})
	return core.Each(days, showDay), nil
}

func showDay(d eventstore.Day) api.SandboxMetrics {
	return api.SandboxMetrics{
		At: api.Time{Time: d.Date}, Day: d.Date.Format(time.DateOnly), Template: d.Label, Sandboxes: d.Sandboxes, Starts: d.Starts, Wakes: d.Wakes,
		Hibernations: d.Hibernations, Forks: d.Forks, Deaths: d.Deaths, Boot: api.Summary(d.Boot), Wake: api.Summary(d.Wake), Hibernate: api.Summary(d.Hibernate),
	}
}
