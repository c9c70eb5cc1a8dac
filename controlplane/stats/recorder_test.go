package stats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// noted is an event store that keeps what it was told.
type noted struct {
	mu      sync.Mutex
	fails   int
	owned   []eventstore.Owned
	ended   []eventstore.Deployment
	largest int
}

func (n *noted) Note(_ context.Context, owned []eventstore.Owned, ended []eventstore.Deployment) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 {
		n.fails--
		return errors.New("connection refused")
	}
	n.owned, n.ended = append(n.owned, owned...), append(n.ended, ended...)
	n.largest = max(n.largest, len(owned)+len(ended))
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
