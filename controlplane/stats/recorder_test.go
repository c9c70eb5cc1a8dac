package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// noted is an event store that keeps what it was told.
type noted struct {
	mu      sync.Mutex
	fails   int
	owned   []eventstore.Owned
	ended   []eventstore.Deployment
	events  []hostapi.Event
	largest int
}

func (n *noted) Note(_ context.Context, owned []eventstore.Owned, ended []eventstore.Deployment, events []hostapi.Event) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 {
		n.fails--
		return errors.New("connection refused")
	}
	n.owned, n.ended, n.events = append(n.owned, owned...), append(n.ended, ended...), append(n.events, events...)
	n.largest = max(n.largest, len(owned)+len(ended)+len(events))
	return nil
}

func (n *noted) told() (owned []eventstore.Owned, ended []eventstore.Deployment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.owned), slices.Clone(n.ended)
}

func TestTheEventStoreIsToldOfAppsAndDatabases(t *testing.T) {
	p := testcluster.New(t, 1)
	at := time.Date(2026, 11, 20, 13, 0, 0, 0, time.UTC)
	put := func(id string, owner *record.Owner) {
		p.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Sandboxes, &record.Sandbox{Meta: record.Meta{ID: id}, WorkspaceID: "ws", Status: record.SandboxStarting, Owner: owner, Template: "base"})
			return nil
		})
	}
	deploy := func(id, box string, change func(*record.Deployment)) {
		p.Update(func(tx *raftstore.Tx) error {
			d := &record.Deployment{Meta: record.Meta{ID: id}, WorkspaceID: "ws", AppID: "app-1", Status: record.DeploymentQueued, SandboxID: box}
			if change != nil {
				change(d)
			}
			raftstore.Put(tx, record.Deployments, d)
			return nil
		})
	}
	deploy("d1", "built", nil)
	put("built", &record.Owner{Type: "app", ID: "app-1"})
	put("free", nil)
	to := &noted{fails: 1}
	r := &Recorder{View: p.Leader().Store.View, Notes: to, Log: testcluster.Log(), Every: time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); r.Run(ctx) }()
	defer func() { cancel(); <-over }()
	await := func(what string, done func(owned []eventstore.Owned, ended []eventstore.Deployment) bool) {
		t.Helper()
		testcluster.Await(t, what, func() bool { return done(to.told()) })
	}
	await("the first sandbox", func(owned []eventstore.Owned, _ []eventstore.Deployment) bool {
		return len(owned) == 1 && owned[0].SandboxID == "built" && owned[0].Deploys && owned[0].Kind == eventstore.KindApp && owned[0].ResourceID == "app-1" && owned[0].WorkspaceID == "ws"
	})
	put("woken", &record.Owner{Type: "app", ID: "app-1"})
	put("db", &record.Owner{Type: "database", ID: "db-1"})
	deploy("d1", "built", func(d *record.Deployment) {
		d.Status, d.StartedAt, d.FinishedAt = record.DeploymentFailed, at, at.Add(time.Minute)
	})
	await("all of them, once", func(owned []eventstore.Owned, ended []eventstore.Deployment) bool {
		return len(owned) == 3 && len(ended) == 1 && ended[0] == eventstore.Deployment{ID: "d1", WorkspaceID: "ws", AppID: "app-1", EndedAt: at.Add(time.Minute), Failed: true, Took: time.Minute}
	})
	owned, _ := to.told()
	for _, o := range owned[1:] {
		if o.Deploys || o.SandboxID == "db" != (o.Kind == eventstore.KindDatabase) {
			t.Errorf("%+v", o)
		}
	}
}

// TestTheHistoryOfLostSandboxes: while its host is lost, a sandbox's history says so, once
// for each loss, also when the row changes meanwhile or the replica starts again.
func TestTheHistoryOfLostSandboxes(t *testing.T) {
	p := testcluster.New(t, 1)
	store, err := eventstore.Open(eventstore.Config{File: filepath.Join(t.TempDir(), "events.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	view := p.Leader().Store.View
	const many = 1000
	lose := func(at time.Time, status record.SandboxStatus) {
		for part := range many / 100 {
			p.Update(func(tx *raftstore.Tx) error {
				for i := range 100 {
					raftstore.Put(tx, record.Sandboxes, &record.Sandbox{
						Meta: record.Meta{ID: fmt.Sprint("box", 100*part+i)}, WorkspaceID: "ws", Status: status, Template: "base", HostID: "h1",
						Lost: record.HostLoss{HostID: "h1", At: at, Why: "its host is unreachable"},
					})
				}
				return nil
			})
		}
	}
	first := time.Now().UTC().Truncate(time.Millisecond).Add(-time.Hour)
	second := first.Add(time.Minute)
	for _, step := range []struct {
		at     time.Time
		status record.SandboxStatus
		want   []time.Time
	}{
		{time.Time{}, record.SandboxStarting, nil},
		{time.Time{}, record.SandboxRunning, nil},
		{first, record.SandboxFailed, []time.Time{first}},
		{first, record.SandboxRunning, []time.Time{first}}, // the host has returned
		{second, record.SandboxFailed, []time.Time{first, second}},
	} {
		lose(step.at, step.status)
		for range 2 { // replicas that share a store, or one that starts again
			r := &Recorder{View: view, Notes: store, Log: testcluster.Log()}
			for range 2 {
				if more, err := r.look(t.Context(), view()); err != nil || more {
					t.Fatal(more, err)
				}
			}
		}
		for _, id := range []string{"box0", fmt.Sprint("box", many-1)} {
			found, err := store.OfSandbox(t.Context(), "ws", id, time.Time{}, 10)
			if err != nil {
				t.Fatal(err)
			}
			var at []time.Time
			for _, e := range found {
				at = append(at, e.Time)
				if e.Type != "recover.lost" || e.Code != "error" || e.HostID != "h1" || e.Message != "its host is unreachable" {
					t.Errorf("%+v", e)
				}
			}
			if !slices.EqualFunc(at, step.want, time.Time.Equal) {
				t.Errorf("%s: lost at %v, want %v", id, at, step.want)
			}
		}
	}
	// The host's own numbers go on as if nothing were there.
	if cursor, err := store.Cursor(t.Context(), "h1"); err != nil || cursor != 0 {
		t.Errorf("cursor %d, %v", cursor, err)
	}
}

func TestManyAreToldInParts(t *testing.T) {
	p := testcluster.New(t, 1)
	p.Update(func(tx *raftstore.Tx) error {
		for i := range maxNotes + 10 {
			raftstore.Put(tx, record.Sandboxes, &record.Sandbox{
				Meta: record.Meta{ID: fmt.Sprint("box", i)}, WorkspaceID: "ws", Status: record.SandboxStarting, Owner: &record.Owner{Type: "app", ID: "a"}, Template: "base",
			})
		}
		return nil
	})
	to := &noted{}
	r := &Recorder{View: p.Leader().Store.View, Notes: to, Log: testcluster.Log()}
	view := p.Leader().Store.View()
	for _, want := range []struct {
		more bool
		all  int
	}{{true, maxNotes}, {false, maxNotes + 10}, {false, maxNotes + 10}} {
		more, err := r.look(t.Context(), view)
		owned, _ := to.told()
		if err != nil || more != want.more || len(owned) != want.all {
			t.Fatalf("%d told, more %v, %v; want %+v", len(owned), more, err, want)
		}
	}
	if to.largest > maxNotes {
		t.Errorf("%d at a time", to.largest)
	}
}
