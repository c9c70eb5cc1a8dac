package stats

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-cloud/berth/controlplane/eventstore"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/traffic"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// requestNotes is an event store that keeps what it was told of requests.
type requestNotes struct {
	err error
	all []eventstore.Requested
}

func (n *requestNotes) NoteRequests(_ context.Context, all []eventstore.Requested) error {
	if n.err == nil {
		n.all = append(n.all, all...)
	}
	return n.err
}

// TestTheEventStoreIsToldOfRequests: of what has grown, and again of what it did not take.
func TestTheEventStoreIsToldOfRequests(t *testing.T) {
	p := testcluster.New(t, 1)
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-1"}, WorkspaceID: "ws", Status: record.AppCreated})
		return nil
	})
	hours := func(id string, n int64) []traffic.Hour {
		h := traffic.Hour{AppID: id}
		h.At, h.Statuses[2] = 3600, n
		return []traffic.Hour{h}
	}
	counted := []traffic.Counted{{Replica: "r1", Epoch: "e", Hours: hours("app-1", 5)}, {Replica: "r2", Epoch: "e", Hours: append(hours("app-1", 1), hours("app-gone", 9)...)}}
	to := &requestNotes{err: errors.New("connection refused")}
	r := &RequestRecorder{View: p.Leader().Store.View, Hours: func(context.Context) ([]traffic.Counted, []string) { return counted, nil }, Notes: to}
	if err := r.look(t.Context()); err == nil {
		t.Error("no error")
	}
	to.err = nil
	for range 2 {
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(to.all) != 2 || to.all[0].Replica != "r1" || to.all[0].WorkspaceID != "ws" || to.all[0].Hour.Unix() != 3600 || to.all[0].Statuses[2] != 5 || to.all[1].Replica != "r2" {
		t.Errorf("%+v", to.all)
	}
	counted[1].Hours = hours("app-1", 2)
	if err := r.look(t.Context()); err != nil || len(to.all) != 3 || to.all[2].Replica != "r2" || to.all[2].Statuses[2] != 2 {
		t.Errorf("%v, %+v", err, to.all)
	}
}
