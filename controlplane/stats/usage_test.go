package stats_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/stats"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var measured = hostapi.BoxStats{
	At: time.Date(2026, 11, 20, 13, 5, 9, 0, time.UTC), Since: time.Date(2026, 11, 20, 13, 0, 0, 0, time.UTC), CPU: 1500 * time.Millisecond,
	ReceivedBytes: 10, SentBytes: 20, MemoryBytes: 30, DiskBytes: 40, Every: 10 * time.Second,
	History: []hostapi.StatsSample{{
		At: time.Date(2026, 11, 20, 13, 5, 0, 0, time.UTC), Took: 10 * time.Second, CPU: time.Second, ReceivedBytes: 1, SentBytes: 2, MemoryBytes: 3, DiskBytes: 4,
	}},
}

func usageRig(t *testing.T) (*testplane.Rig, *stats.Metrics) {
	r := testplane.NewRig(t, 1)
	r.H1.SetStats(measured)
	return r, stats.New(stats.Config{Core: r.Node.Core, Databases: owned{r}, Clock: time.Now})
}

// owned finds databases of the workspace "ws".
type owned struct{ r *testplane.Rig }

func (o owned) Get(_ context.Context, c core.Caller, id string) (api.Database, error) {
	row, ok := raftstore.Get(o.r.Node.Store.View(), record.Databases, id)
	if !ok || row.WorkspaceID != c.WorkspaceID {
		return api.Database{}, apierror.NotFound()
	}
	return api.Database{ID: id, Status: api.DatabaseRunning}, nil
}

func TestASandboxesUsageIsItsHosts(t *testing.T) {
	r, m := usageRig(t)
	sb := r.Must(t, api.CreateSandbox{})
	var asked string
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "stats" {
			asked = c.ID + " " + c.RequestID
		}
		return nil
	})
	got, err := m.Sandbox(t.Context(), testplane.Caller, sb.ID, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	at := func(min, sec int) api.Time { return api.Time{Time: time.Date(2026, 11, 20, 13, min, sec, 0, time.UTC)} }
	want := api.SandboxUsage{SandboxID: sb.ID, Status: api.SandboxRunning, Usage: api.ResourceUsage{
		At: at(5, 9), Since: at(0, 0), CPU: 1, CPUSeconds: 1.5, MemoryBytes: 30, MemoryLimitBytes: 512 << 20, DiskBytes: 40, DiskLimitBytes: 2048 << 20,
		NetworkReceivedBytes: 10, NetworkSentBytes: 20, IntervalSeconds: 10,
		History: []api.UsageSample{{At: at(5, 0), Seconds: 10, CPUSeconds: 1, MemoryBytes: 3, DiskBytes: 4, NetworkReceivedBytes: 1, NetworkSentBytes: 2}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if asked != sb.ID+" req" {
		t.Errorf("the host was asked for %q", asked)
	}
	// Nothing is woken for it.
	if _, err := r.Hibernate(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Sandbox(t.Context(), testplane.Caller, sb.ID, 0); err != nil || got.Status != api.SandboxHibernated {
		t.Errorf("hibernated: %+v, %v", got, err)
	}
}

func TestWhoMayNotSeeUsage(t *testing.T) {
	r, m := usageRig(t)
	sb := r.Must(t, api.CreateSandbox{})
	_, err := m.Sandbox(t.Context(), testplane.Stranger, sb.ID, 0)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = m.Sandbox(t.Context(), testplane.Caller, "zzzzzzzzzzzzzzzzzzzzzzzzzz", 0)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = m.Sandbox(t.Context(), core.Caller{Admin: true}, sb.ID, 0)
	testplane.Want(t, err, apierror.EUnauthorized, "")
	r.Change(sb.ID, func(s *record.Sandbox) { s.Owner = &record.Owner{Type: "app", ID: "app-1"} })
	_, err = m.Sandbox(t.Context(), testplane.Caller, sb.ID, 0)
	testplane.Want(t, err, apierror.EConflict, "managed sandbox: delete it from the feature that owns it (Databases or Apps)")
}

func TestUsageOfAHostThatDoesNotAnswer(t *testing.T) {
	r, m := usageRig(t)
	sb := r.Must(t, api.CreateSandbox{})
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "stats" {
			return fakehost.ErrDrop
		}
		return nil
	})
	_, err := m.Sandbox(t.Context(), testplane.Caller, sb.ID, 0)
	if e := testplane.Want(t, err, apierror.EBadGateway, "agent unreachable"); e.Detail != "its host does not answer" {
		t.Errorf("detail %q", e.Detail)
	}
	r.H1.SetFault(nil)
	r.Change(sb.ID, func(s *record.Sandbox) { s.HostID = "h9" })
	_, err = m.Sandbox(t.Context(), testplane.Caller, sb.ID, 0)
	testplane.Want(t, err, apierror.EBadGateway, "agent unreachable")
	r.Change(sb.ID, func(s *record.Sandbox) { s.HostID = "" })
	_, err = m.Sandbox(t.Context(), testplane.Caller, sb.ID, 0)
	testplane.Want(t, err, apierror.ENotFound, "sandbox not found or not running")
}

func TestADatabasesUsageIsItsSandboxs(t *testing.T) {
	r, m := usageRig(t)
	sb := r.Must(t, api.CreateSandbox{})
	const id = "7d0c9a52-3f5e-4b61-9c0d-2a8e4f6b1c37"
	put := func(box string) {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Databases, &record.Database{Meta: record.Meta{ID: id}, WorkspaceID: "ws", SandboxID: box, Status: record.DatabaseProvisioning})
			return nil
		})
	}
	put("")
	got, err := m.Database(t.Context(), testplane.Caller, id, 0)
	if err != nil || got.Usage != nil || got.DatabaseID != id {
		t.Errorf("without a sandbox: %+v, %v", got, err)
	}
	put(sb.ID)
	got, err = m.Database(t.Context(), testplane.Caller, id, 0)
	if err != nil || got.Usage == nil || got.Usage.CPUSeconds != 1.5 || got.Status != api.DatabaseRunning {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = m.Database(t.Context(), testplane.Stranger, id, 0)
	testplane.Want(t, err, apierror.ENotFound, "")
}
