package stats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/stats"
	"github.com/berth-cloud/berth/controlplane/template"
)

// told is an event store with events of templates by their keys.
type told []eventstore.Day

func (told) Requests(context.Context, eventstore.Query) ([]eventstore.RequestedIn, error) {
	return nil, nil
}

func (d told) Sandboxes(_ context.Context, q eventstore.Query) ([]eventstore.Day, error) {
	var out []eventstore.Day
	for _, day := range d {
		if q.Label == "" || q.Label == day.Label {
			out = append(out, day)
		}
	}
	return out, nil
}

func TestMetricsCallTemplatesByTheirNames(t *testing.T) {
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	at := func(d int) api.Time { return api.Time{Time: day(d)} }
	key := template.Key(testplane.Caller.WorkspaceID, "web")
	m := stats.New(stats.Config{Events: told{
		{Date: day(3), Label: "base"},
		{Date: day(3), Label: key, Starts: 1},
		{Date: day(2), Label: "web", Starts: 2}, // of everybody, when it was
		{Date: day(1), Label: key, Starts: 3},
	}, Clock: func() time.Time { return day(4) }})
	for name, want := range map[string][]api.SandboxMetrics{
		"": {
			{At: at(3), Day: "2026-11-03", Template: "base"},
			{At: at(3), Day: "2026-11-03", Template: "web", Starts: 1},
			{At: at(2), Day: "2026-11-02", Template: "web", Starts: 2},
			{At: at(1), Day: "2026-11-01", Template: "web", Starts: 3},
		},
		"web": {
			{At: at(3), Day: "2026-11-03", Template: "web", Starts: 1},
			{At: at(2), Day: "2026-11-02", Template: "web", Starts: 2},
			{At: at(1), Day: "2026-11-01", Template: "web", Starts: 3},
		},
		"base": {{At: at(3), Day: "2026-11-03", Template: "base"}},
	} {
		got, err := m.Sandboxes(t.Context(), testplane.Caller, stats.Query{Label: name})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", name, diff)
		}
	}
}

func (told) Deployments(context.Context, eventstore.Query) ([]eventstore.Deployed, error) {
	return nil, nil
}

type away struct{}

func (a away) Requests(ctx context.Context, q eventstore.Query) ([]eventstore.RequestedIn, error) {
	_, err := a.Sandboxes(ctx, q)
	return nil, err
}

func (away) Deployments(context.Context, eventstore.Query) ([]eventstore.Deployed, error) {
	return nil, errors.New("connection refused")
}

func (away) Sandboxes(context.Context, eventstore.Query) ([]eventstore.Day, error) {
	return nil, errors.New("connection refused by berth:secret@db")
}

func TestMetricsAreUnavailableWithTheirStore(t *testing.T) {
	_, err := stats.New(stats.Config{Events: away{}, Clock: time.Now}).Sandboxes(t.Context(), testplane.Caller, stats.Query{})
	var e *apierror.Error
	if !errors.As(err, &e) || e.Code != apierror.EUnavailable || e.Message != "event store unavailable" || e.Detail != "" || e.RetryAfter == 0 {
		t.Errorf("got %#v", err)
	}
}

// asked is an event store that was asked for something.
type asked struct {
	q   *eventstore.Query
	err error
}

func (a asked) Sandboxes(_ context.Context, q eventstore.Query) ([]eventstore.Day, error) {
	*a.q = q
	return []eventstore.Day{{Date: time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC), Label: "one", Starts: 1, Wakes: 2}}, a.err
}

func (a asked) Requests(context.Context, eventstore.Query) ([]eventstore.RequestedIn, error) {
	at := time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC)
	of := func(id string) (r eventstore.RequestedIn) {
		r.Date, r.AppID = at, id
		r.Statuses[2], r.Statuses[5], r.Buckets[3] = 3, 1, 4
		return r
	}
	return []eventstore.RequestedIn{of("one"), of("quiet"), of("fn-three")}, nil
}

func (a asked) Deployments(context.Context, eventstore.Query) ([]eventstore.Deployed, error) {
	return []eventstore.Deployed{
		{Date: time.Date(2026, 11, 3, 0, 0, 0, 0, time.UTC), AppID: "one", Deployments: 3, Failed: 1},
		{Date: time.Date(2026, 11, 4, 0, 0, 0, 0, time.UTC), AppID: "two", Deployments: 1},
		{Date: time.Date(2026, 11, 4, 0, 0, 0, 0, time.UTC), AppID: "fn-three", Deployments: 5, Failed: 2},
	}, a.err
}

func TestQueriesAreBounded(t *testing.T) {
	now := time.Date(2026, 11, 20, 15, 0, 0, 0, time.UTC)
	var q eventstore.Query
	m := stats.New(stats.Config{Events: asked{q: &q}, Clock: func() time.Time { return now }})
	day := func(month, d int) time.Time { return time.Date(2026, time.Month(month), d, 0, 0, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		q      stats.Query
		detail string // "": it is good
		from   time.Time
	}{
		"the default":      {stats.Query{}, "", day(10, 22)},
		"by the hour":      {stats.Query{Hourly: true}, "", day(11, 19)},
		"92 days":          {stats.Query{From: day(8, 1), To: day(10, 31)}, "", day(8, 1)},
		"93 days":          {stats.Query{From: day(8, 1), To: day(11, 1)}, "at most 92 days", time.Time{}},
		"today":            {stats.Query{From: day(11, 20)}, "", day(11, 20)},
		"8 days of hours":  {stats.Query{From: day(11, 1), To: day(11, 8), Hourly: true}, "at most 7 days", time.Time{}},
		"the wrong way":    {stats.Query{From: day(11, 2), To: day(11, 1)}, "from must not be later than to", time.Time{}},
		"from the future":  {stats.Query{From: day(11, 22)}, "from must not be later than to", time.Time{}},
		"a very long time": {stats.Query{From: time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC)}, "at most 92 days", time.Time{}},
	} {
		_, err := m.AppsOverTime(t.Context(), testplane.Caller, c.q)
		if c.detail == "" {
			if err != nil || q.From.Format(time.DateOnly) != c.from.Format(time.DateOnly) || q.WorkspaceID != "ws" || q.Most == 0 || q.Kind != eventstore.KindApp {
				t.Errorf("%s: asked for %+v, %v", name, q, err)
			}
			continue
		}
		if e := testplane.Want(t, err, apierror.EInvalid, "invalid time range"); e.Detail != c.detail {
			t.Errorf("%s: %q", name, e.Detail)
		}
	}
	many := stats.New(stats.Config{Events: asked{q: &q, err: fmt.Errorf("count: %w", eventstore.ErrTooMany)}, Clock: time.Now})
	_, err := many.DatabasesOverTime(t.Context(), testplane.Caller, stats.Query{})
	testplane.Want(t, err, apierror.EInvalid, "too many rows")
	_, err = m.AppsOverTime(t.Context(), core.Caller{Admin: true}, stats.Query{})
	testplane.Want(t, err, apierror.EUnauthorized, "")
}

func TestAppsHaveTheirDeploymentsBesideTheirWakes(t *testing.T) {
	var q eventstore.Query
	m := stats.New(stats.Config{Events: asked{q: &q}, Clock: time.Now})
	got, err := m.AppsOverTime(t.Context(), testplane.Caller, stats.Query{Label: "one"})
	if err != nil || q.Label != "one" || len(got) != 3 || got[0].AppID != "two" || got[1].Wakes != 2 || got[1].Deployments != 3 || got[1].FailedDeployments != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if r := got[1].Requests; r.Count != 4 || r.Statuses.S2xx != 3 || r.Statuses.S5xx != 1 || r.P50MS <= 25 || r.P99MS > 50 || got[0].Requests.Count != 0 || got[2].AppID != "quiet" || got[2].Requests.Count != 4 {
		t.Errorf("requests %+v", got)
	}
}

func TestFunctionsAreNotAmongApps(t *testing.T) {
	var q eventstore.Query
	m := stats.New(stats.Config{Events: asked{q: &q}, Clock: time.Now})
	got, err := m.FunctionsOverTime(t.Context(), testplane.Caller, stats.Query{Label: "fn-three"})
	if err != nil || q.Label != "fn-three" || len(got) != 1 || got[0].FunctionID != "fn-three" || got[0].Deployments != 5 || got[0].FailedDeployments != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = m.FunctionsOverTime(t.Context(), core.Caller{Admin: true}, stats.Query{})
	testplane.Want(t, err, apierror.EUnauthorized, "")
}
