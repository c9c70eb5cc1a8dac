package eventstore

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

func TestSandboxesOfAppsAndDatabasesAreCountedByThem(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		appendAll(t, s, "h1",
			event(1, noon, "built", hostapi.EventRunning, `{"boot_ms":100}`),
			event(2, noon, "woken", hostapi.EventRunning, `{"boot_ms":30}`),
			event(3, noon.Add(time.Hour), "woken", hostapi.EventVMDied, `{}`),
			event(4, noon, "db", hostapi.EventRunning, `{"boot_ms":50}`),
			event(5, noon, "db", hostapi.EventHibernated, `{"snap_ms":9}`),
			event(6, noon, "db", hostapi.EventWoken, `{"wake_ms":4}`),
			event(7, noon, "other", hostapi.EventRunning, `{"boot_ms":1}`),
		)
		owned := []Owned{
			{SandboxID: "built", WorkspaceID: "w1", Kind: KindApp, ResourceID: "a", Deploys: true, CreatedAt: noon},
			{SandboxID: "woken", WorkspaceID: "w1", Kind: KindApp, ResourceID: "a", CreatedAt: noon},
			{SandboxID: "db", WorkspaceID: "w1", Kind: KindDatabase, ResourceID: "d", CreatedAt: noon},
		}
		for range 2 { // as each replica does that shares a store
			if err := s.Note(t.Context(), owned, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		one := func(ms float64) Summary { return Summary{Count: 1, P50: ms, P90: ms, P99: ms, Max: ms} }
		day := noon.Truncate(24 * time.Hour)
		for name, c := range map[string]struct {
			q    Query
			want []Day
		}{
			"apps":      {Query{Kind: KindApp}, []Day{{Date: day, Label: "a", Sandboxes: 2, Starts: 1, Wakes: 1, Deaths: 1, Boot: one(100), Wake: one(30)}}},
			"databases": {Query{Kind: KindDatabase}, []Day{{Date: day, Label: "d", Sandboxes: 1, Starts: 1, Wakes: 1, Hibernations: 1, Boot: one(50), Wake: one(4), Hibernate: one(9)}}},
			"hours": {Query{Kind: KindApp, Bucket: time.Hour}, []Day{
				{Date: noon.Add(time.Hour), Label: "a", Sandboxes: 1, Deaths: 1},
				{Date: noon, Label: "a", Sandboxes: 2, Starts: 1, Wakes: 1, Boot: one(100), Wake: one(30)},
			}},
			"another app":       {Query{Kind: KindApp, Label: "b"}, nil},
			"one app":           {Query{Kind: KindApp, Label: "a", Bucket: 48 * time.Hour}, nil},
			"another workspace": {Query{Kind: KindApp, WorkspaceID: "w2"}, nil},
		} {
			if c.q.WorkspaceID == "" {
				c.q.WorkspaceID = "w1"
			}
			c.q.From, c.q.To = noon, noon
			got, err := s.Sandboxes(t.Context(), c.q)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if name == "one app" {
				if len(got) != 1 || got[0].Starts != 1 {
					t.Errorf("%s: %+v", name, got)
				}
				continue
			}
			if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if _, err := s.Sandboxes(t.Context(), Query{WorkspaceID: "w1", Kind: KindApp, From: noon, To: noon, Bucket: time.Hour, Most: 1}); !errors.Is(err, ErrTooMany) {
			t.Errorf("two buckets of at most one: %v", err)
		}
	})
}

func TestDeploymentsAreCountedAndMeasured(t *testing.T) {
	eachDatabase(t, func(t *testing.T, open func() *Store) {
		s := open()
		old := noon.Add(-DefaultRetention - time.Hour)
		all := []Deployment{
			{ID: "1", WorkspaceID: "w1", AppID: "a", EndedAt: noon, Took: time.Second},
			{ID: "2", WorkspaceID: "w1", AppID: "a", EndedAt: noon, Took: 3 * time.Second},
			{ID: "3", WorkspaceID: "w1", AppID: "a", EndedAt: noon, Failed: true, Took: time.Minute},
			{ID: "4", WorkspaceID: "w1", AppID: "b", EndedAt: noon, Failed: true},
			{ID: "5", WorkspaceID: "w2", AppID: "c", EndedAt: noon},
			{ID: "6", WorkspaceID: "w1", AppID: "a", EndedAt: old},
		}
		for range 2 {
			if err := s.Note(t.Context(), []Owned{{SandboxID: "old", WorkspaceID: "w1", Kind: KindApp, ResourceID: "a", CreatedAt: old}}, all, nil); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Deployments(t.Context(), Query{WorkspaceID: "w1", From: noon, To: noon})
		if err != nil {
			t.Fatal(err)
		}
		day := noon.Truncate(24 * time.Hour)
		want := []Deployed{
			{Date: day, AppID: "a", Deployments: 3, Failed: 1, Took: Summary{Count: 2, P50: 1000, P90: 3000, P99: 3000, Max: 3000}},
			{Date: day, AppID: "b", Deployments: 1, Failed: 1},
		}
		byApp := cmpopts.SortSlices(func(a, b Deployed) bool { return a.AppID < b.AppID })
		if diff := cmp.Diff(want, got, byApp); diff != "" {
			t.Error(diff)
		}
		if got, err := s.Deployments(t.Context(), Query{WorkspaceID: "w1", Label: "b", From: noon, To: noon}); err != nil || len(got) != 1 {
			t.Errorf("of one app: %+v, %v", got, err)
		}
		if n, err := s.Prune(t.Context()); err != nil || n != 1 {
			t.Errorf("pruned %d, %v", n, err)
		}
		var left int
		if err := s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM owned").Scan(&left); err != nil || left != 0 {
			t.Errorf("%d sandboxes without events are left, %v", left, err)
		}
	})
}
