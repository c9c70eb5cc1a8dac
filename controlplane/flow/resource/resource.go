// Package resource contains the flows that all resources on hosts have in common: a
// row that is being created, a create that ends with the resource or with nothing
// left of it, and a removal that is never undone.
package resource

import (
	"context"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Kind is one kind of resource. Its flows are named after it: "volume.create",
// "volume.delete".
type Kind[T record.Row] struct {
	Name  string
	Table record.Table[T]

	Host     func(T) string // the host that it is on, "" for none yet
	Owner    func(T) string // the workspace that has it
	Moving   string         // index that has those that are being created or deleted under "yes"; empty: none
	Creating func(T) bool   // it is being created
	Deleting func(T) bool   // it is being deleted
	Delete   func(T) T      // returns a copy of the row, marked as being deleted
	// Drop removes a row and what depends on it; nil: only the row.
	Drop func(tx *raftstore.Tx, row T)
}

// Data is embedded in the data of every flow of a resource.
type Data struct {
	RequestID        string `json:"request_id,omitempty"`
	IdempotencyKeyID string `json:"idempotency_key_id,omitempty"` // of the create's request
}

// FreeKey allows the same idempotency key again after a failed create.
func (d Data) FreeKey(tx *raftstore.Tx) {
	if d.IdempotencyKeyID != "" {
		raftstore.Delete(tx, record.IdempotencyKeys, d.IdempotencyKeyID)
	}
}

const stepRemove = "remove"

// CreateKind is the name of the flow that creates one.
func (k *Kind[T]) CreateKind() string { return k.Name + ".create" }

// DeleteKind is the name of the flow that deletes one.
func (k *Kind[T]) DeleteKind() string { return k.Name + ".delete" }

// Subject returns a resource's name as a subject of flows.
func (k *Kind[T]) Subject(id string) string { return flow.Subject(k.Table.Name, id) }

// ID returns the id of a flow's resource.
func (k *Kind[T]) ID(fl *record.Flow) string { return strings.TrimPrefix(fl.Subject, k.Table.Name+"/") }

// Of returns a flow's resource.
func (k *Kind[T]) Of(r raftstore.Reader, fl *record.Flow) (T, bool) {
	return raftstore.Get(r, k.Table, k.ID(fl))
}

// Made returns the resource of a create while it is being created.
func (k *Kind[T]) Made(r raftstore.Reader, fl *record.Flow) (T, bool) {
	row, ok := k.Of(r, fl)
	return row, ok && k.Creating(row)
}

// HostOf returns a Kind.Host that returns the resource's host, except at the step
// that chooses one.
func (k *Kind[T]) HostOf(placing string) func(r raftstore.Reader, fl *record.Flow) string {
	return func(r raftstore.Reader, fl *record.Flow) string {
		row, ok := k.Of(r, fl)
		if !ok || fl.Step == placing {
			return ""
		}
		return k.Host(row)
	}
}

// OwnerOf is a Kind.Workspace that returns the workspace of the resource.
func (k *Kind[T]) OwnerOf(r raftstore.Reader, fl *record.Flow) string {
	row, ok := k.Of(r, fl)
	if !ok {
		return ""
	}
	return k.Owner(row)
}

// Begin adds a resource and the flow that creates it to a transaction. parent is the
// flow that begins it and joins it; "" for none.
func (k *Kind[T]) Begin(tx *raftstore.Tx, parent, flowID string, row T, step string, data any, deadline time.Time) error {
	raftstore.Put(tx, k.Table, row)
	return flow.Begin(tx, flow.New{
		ID: flowID, Kind: k.CreateKind(), Subject: k.Subject(row.RowMeta().ID), Step: step, Data: data, Deadline: deadline, Parent: parent,
	})
}

// GiveUp ends a failed create and leaves nothing of it: neither the row nor the
// idempotency key, so that the request may be repeated. If a host created something
// all the same, it has no row, and the inventory removes it.
func (k *Kind[T]) GiveUp(run flow.Run, data Data, failure error) flow.Commit {
	return func(tx *raftstore.Tx) (flow.Next, error) {
		if row, ok := k.Of(tx, run.Flow); ok {
			if !k.Creating(row) {
				return flow.Done(), nil
			}
			k.drop(tx, row)
		}
		data.FreeKey(tx)
		return flow.Fail(failure), nil
	}
}

// BeginDelete marks a resource as being deleted and begins its removal in a
// transaction, preempting any other flow on it. It returns the id of the flow to
// wait for, which is the existing one if the resource is being removed already.
func (k *Kind[T]) BeginDelete(tx *raftstore.Tx, flowID string, row T, requestID string) (string, error) {
	subject := k.Subject(row.RowMeta().ID)
	if !k.Deleting(row) {
		raftstore.Put(tx, k.Table, k.Delete(row))
	} else if live, ok := flow.Live(tx, subject); ok && live.Kind == k.DeleteKind() {
		return live.ID, nil
	}
	return flowID, flow.Preempt(tx, flow.New{
		ID: flowID, Kind: k.DeleteKind(), Subject: subject, Step: stepRemove, Data: Data{RequestID: requestID},
	})
}

// Removal is the flow that removes a resource: first from its hosts, by repeating
// remove until it returns nil, then from the store.
func (k *Kind[T]) Removal(remove func(ctx context.Context, view *raftstore.Snapshot, row T) error) flow.Kind {
	return flow.Kind{Name: k.DeleteKind(), ActTimeout: time.Minute, Host: k.HostOf(""), Workspace: k.OwnerOf, Steps: map[string]flow.Step{
		stepRemove: func(ctx context.Context, run flow.Run) (flow.Commit, error) {
			var data Data
			if err := run.Data(&data); err != nil {
				return nil, err
			}
			if row, ok := k.Of(run.View, run.Flow); ok {
				if err := remove(hosts.WithRequestID(ctx, data.RequestID), run.View, row); err != nil {
					return nil, err
				}
			}
			return func(tx *raftstore.Tx) (flow.Next, error) {
				if row, ok := k.Of(tx, run.Flow); ok {
					k.drop(tx, row)
				}
				return flow.Done(), nil
			}, nil
		},
	}}
}

// stray reports whether a resource is being created or deleted without a flow that
// does it. No transaction leaves such a row; an old backup might.
func (k *Kind[T]) stray(r raftstore.Reader, row T) bool {
	if !k.Creating(row) && !k.Deleting(row) {
		return false
	}
	_, live := flow.Live(r, k.Subject(row.RowMeta().ID))
	return !live
}

// moving returns the rows among which strays are.
func (k *Kind[T]) moving(view *raftstore.Snapshot) []T {
	if k.Moving == "" {
		return raftstore.All(view, k.Table)
	}
	return raftstore.Find(view, k.Table, k.Moving, "yes")
}

// Strays is the loop that removes resources that are being created or deleted
// without a flow, if may allows it; a nil may allows all.
func Strays[T record.Row](t *loops.Term, k *Kind[T], may func(raftstore.Reader, T) bool) loops.Loop {
	name := "stray " + k.Table.Name
	stray := func(r raftstore.Reader, row T) bool { return k.stray(r, row) && (may == nil || may(r, row)) }
	return loops.Loop{Name: name, Pass: func(ctx context.Context) {
		view := t.Store.View()
		for _, row := range k.moving(view) {
			if !stray(view, row) {
				continue
			}
			id := row.RowMeta().ID
			t.Logger.WarnContext(ctx, "resource is in transition without a flow", "kind", k.Name, "id", hostapi.ShortID(id))
			t.Update(ctx, name, func(tx *raftstore.Tx) error {
				now, ok := raftstore.Get(tx, k.Table, id)
				if !ok || !stray(tx, now) {
					return nil
				}
				_, err := k.BeginDelete(tx, flow.NewID(), now, "")
				return err
			})
		}
	}}
}

// Finish ends a create that is complete.
func Finish(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }

func (k *Kind[T]) drop(tx *raftstore.Tx, row T) {
	if k.Drop != nil {
		k.Drop(tx, row)
		return
	}
	raftstore.Delete(tx, k.Table, row.RowMeta().ID)
}

// MayReturn reports whether it is worth asking a host again after err: it is up, or
// it answers. A lost host is told to remove what has no row when it returns.
func MayReturn(r raftstore.Reader, hostID string, err error) bool {
	agent, known := raftstore.Get(r, record.Hosts, hostID)
	return !hosts.Unreachable(err) || known && agent.State == record.HostUp
}
