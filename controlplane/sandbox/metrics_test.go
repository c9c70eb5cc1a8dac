package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
)

// told is an event store that hosts have told of templates by their keys.
type told []eventstore.Day

func (d told) Sandboxes(_ context.Context, q eventstore.Query) ([]eventstore.Day, error) {
	var out []eventstore.Day
	for _, day := range d {
		if q.Template == "" || q.Template == day.Template {
			out = append(out, day)
		}
	}
	return out, nil
}

func TestMetricsCallTemplatesByTheirNames(t *testing.T) {
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	key := template.Key(testplane.Caller.WorkspaceID, "web")
	m := sandbox.NewMetrics(told{
		{Date: day(3), Template: "base"},
		{Date: day(3), Template: key, Starts: 1},
		{Date: day(2), Template: "web", Starts: 2}, // of everybody, when it was
		{Date: day(1), Template: key, Starts: 3},
	}, func() time.Time { return day(4) })
	for name, want := range map[string][]api.SandboxMetrics{
		"": {
			{Day: "2026-11-03", Template: "base"},
			{Day: "2026-11-03", Template: "web", Starts: 1},
			{Day: "2026-11-02", Template: "web", Starts: 2},
			{Day: "2026-11-01", Template: "web", Starts: 3},
		},
		"web": {
			{Day: "2026-11-03", Template: "web", Starts: 1},
			{Day: "2026-11-02", Template: "web", Starts: 2},
			{Day: "2026-11-01", Template: "web", Starts: 3},
		},
		"base": {{Day: "2026-11-03", Template: "base"}},
	} {
		got, err := m.Sandboxes(t.Context(), testplane.Caller, sandbox.MetricsQuery{Template: name})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", name, diff)
		}
	}
}

type away struct{}

func (away) Sandboxes(context.Context, eventstore.Query) ([]eventstore.Day, error) {
	return nil, errors.New("connection refused by berth:secret@db")
}

func TestMetricsAreUnavailableWithTheirStore(t *testing.T) {
	_, err := sandbox.NewMetrics(away{}, time.Now).Sandboxes(t.Context(), testplane.Caller, sandbox.MetricsQuery{})
	var e *apierror.Error
	if !errors.As(err, &e) || e.Code != apierror.EUnavailable || e.Message != "event store unavailable" || e.Detail != "" || e.RetryAfter == 0 {
		t.Errorf("got %#v", err)
	}
}
