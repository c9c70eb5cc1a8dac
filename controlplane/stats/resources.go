package stats

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/traffic"
)

// DatabasesOverTime returns the metrics of the workspace's databases by time and
// database, newest first.
func (m *Metrics) DatabasesOverTime(ctx context.Context, c core.Caller, q Query) ([]api.DatabaseMetrics, error) {
	days, err := m.resources(ctx, c, q, eventstore.KindDatabase, nil, nil)
	return core.Each(days, func(d eventstore.Day) api.DatabaseMetrics {
		return api.DatabaseMetrics{
			At: api.Time{Time: d.Date}, DatabaseID: d.Label, Starts: d.Starts, Hibernations: d.Hibernations, Wakes: d.Wakes, Deaths: d.Deaths,
			Boot: api.Summary(d.Boot), Hibernate: api.Summary(d.Hibernate), Wake: api.Summary(d.Wake),
		}
	}), err
}

// AppsOverTime returns the metrics of the workspace's apps by time and app, newest first.
func (m *Metrics) AppsOverTime(ctx context.Context, c core.Caller, q Query) ([]api.AppsMetrics, error) {
	return m.deployedOverTime(ctx, c, q, false)
}

// FunctionsOverTime returns the metrics of the workspace's functions by time and function,
// newest first.
func (m *Metrics) FunctionsOverTime(ctx context.Context, c core.Caller, q Query) ([]api.FunctionMetrics, error) {
	rows, err := m.deployedOverTime(ctx, c, q, true)
	return core.Each(rows, func(r api.AppsMetrics) api.FunctionMetrics {
		return api.FunctionMetrics{
			At: r.At, FunctionID: r.AppID, Deployments: r.Deployments, FailedDeployments: r.FailedDeployments, Wakes: r.Wakes, Deaths: r.Deaths,
			Deploy: r.Deploy, Wake: r.Wake,
		}
	}), err
}

// deployedOverTime returns the metrics of functions, or of apps. The event store does not
// tell them apart, but their ids do.
func (m *Metrics) deployedOverTime(ctx context.Context, c core.Caller, q Query, functions bool) ([]api.AppsMetrics, error) {
	var deployed []eventstore.Deployed
	var requested []eventstore.RequestedIn
	days, err := m.resources(ctx, c, q, eventstore.KindApp, &deployed, &requested)
	if err != nil {
		return nil, err
	}
	type key struct {
		at int64
		id string
	}
	found := map[key]*api.AppsMetrics{}
	of := func(at time.Time, id string) *api.AppsMetrics {
		k := key{at.Unix(), id}
		if found[k] == nil {
			found[k] = &api.AppsMetrics{At: api.Time{Time: at}, AppID: id}
		}
		return found[k]
	}
	for _, d := range days {
		one := of(d.Date, d.Label)
		one.Wakes, one.Deaths, one.Wake = d.Wakes, d.Deaths, api.Summary(d.Wake)
	}
	for _, d := range deployed {
		one := of(d.Date, d.AppID)
		one.Deployments, one.FailedDeployments, one.Deploy = d.Deployments, d.Failed, api.Summary(d.Took)
	}
	for _, r := range requested {
		if !functions && !app.IsFunction(r.AppID) { // a function's calls are in no row
			of(r.Date, r.AppID).Requests = totals(&r.Counts)
		}
	}
	out := make([]api.AppsMetrics, 0, len(found))
	for _, one := range found {
		if app.IsFunction(one.AppID) == functions {
			out = append(out, *one)
		}
	}
	slices.SortFunc(out, func(a, b api.AppsMetrics) int {
		return cmp.Or(b.At.Compare(a.At.Time), strings.Compare(a.AppID, b.AppID))
	})
	return out, nil
}

func totals(c *traffic.Counts) api.AppsRequests {
	out := requestsOf(c, nil)
	return api.AppsRequests{Count: out.Count, Statuses: out.Statuses, P50MS: out.Latency.P50MS, P95MS: out.Latency.P95MS, P99MS: out.Latency.P99MS}
}

func (m *Metrics) resources(ctx context.Context, c core.Caller, q Query, kind string, deployed *[]eventstore.Deployed, requested *[]eventstore.RequestedIn) (days []eventstore.Day, err error) {
	if err := c.RequireWorkspace(); err != nil {
		return nil, err
	}
	of, err := m.query(c, q)
	if err != nil {
		return nil, err
	}
	of.Kind = kind
	err = m.ask(ctx, c, func(ctx context.Context) (err error) {
		if days, err = m.cfg.Events.Sandboxes(ctx, of); err == nil && deployed != nil {
			*deployed, err = m.cfg.Events.Deployments(ctx, of)
		}
		if err == nil && requested != nil {
			*requested, err = m.cfg.Events.Requests(ctx, of)
		}
		return err
	})
	return days, err
}
