// Package resource is the life that all have in common which a flow makes on a
// host and another flow takes away: a row that is being made, a create that ends
// with it in being or with nothing left of it, and a removal that is never
// undone.
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

	Host     func(T) string // that it is on, "" for none yet
	Creating func(T) bool   // it is being made
	Deleting func(T) bool   // it is being removed
	Delete   func(T) T      // a copy of the row that is being removed
	// Drop removes a row with what hangs on it; nil: the row alone.
	Drop func(tx *raftstore.Tx, row T)
}

// Data is what the data of every flow of a resource begins with.
type Data struct {
	RequestID        string `json:"request_id,omitempty"`
	IdempotencyKeyID string `json:"idempotency_key_id,omitempty"` // of the create's request
}

// FreeKey lets the same idempotency key try again after a create that failed.
func (d Data) FreeKey(tx *raftstore.Tx) {
	if d.IdempotencyKeyID != "" {
		raftstore.Delete(tx, record.IdempotencyKeys, d.IdempotencyKeyID)
	}
}

const stepRemove = "remove"

// CreateKind is the name of the flow that makes one.
func (k *Kind[T]) CreateKind() string { return k.Name + ".create" }

// DeleteKind is the name of the flow that removes one.
func (k *Kind[T]) DeleteKind() string { return k.Name + ".delete" }

// Subject names a resource for flows.
func (k *Kind[T]) Subject(id string) string { return flow.Subject(k.Table.Name, id) }

// ID is that of the resource that a flow is about.
func (k *Kind[T]) ID(fl *record.Flow) string { return strings.TrimPrefix(fl.Subject, k.Table.Name+"/") }

// Of finds the resource that a flow is about.
func (k *Kind[T]) Of(r raftstore.Reader, fl *record.Flow) (T, bool) {
	return raftstore.Get(r, k.Table, k.ID(fl))
}

// Made finds the resource that a create is about, while it is being made.
func (k *Kind[T]) Made(r raftstore.Reader, fl *record.Flow) (T, bool) {
	row, ok := k.Of(r, fl)
	return row, ok && k.Creating(row)
}

// HostOf is the host that a flow calls, "" at the step that looks for one.
func (k *Kind[T]) HostOf(placing string) func(r raftstore.Reader, fl *record.Flow) string {
	return func(r raftstore.Reader, fl *record.Flow) string {
		row, ok := k.Of(r, fl)
		if !ok || fl.Step == placing {
			return ""
		}
		return k.Host(row)
	}
}

// Begin puts a resource and the flow that makes it into a transaction.
func (k *Kind[T]) Begin(tx *raftstore.Tx, flowID string, row T, step string, data any, deadline time.Time) error {
	raftstore.Put(tx, k.Table, row)
	return flow.Begin(tx, flow.New{
		ID: flowID, Kind: k.CreateKind(), Subject: k.Subject(row.RowMeta().ID), Step: step, Data: data, Deadline: deadline,
	})
}

// GiveUp ends a create that failed, with nothing left of it: neither a row nor
// the idempotency key, with which the request may then be sent again. What a host
// may have made all the same has no row any more, and the inventory removes it.
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

// BeginDelete marks a resource and starts its removal in a transaction, whatever
// other flow is under way on it. It returns the id of the flow to wait for: the
// one there is already, when the resource is being removed.
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

// Removal is the flow that removes a resource: from its hosts, by remove, which is
// asked again until it returns nil, then from the store.
func (k *Kind[T]) Removal(remove func(ctx context.Context, view *raftstore.Snapshot, row T) error) flow.Kind {
	return flow.Kind{Name: k.DeleteKind(), ActTimeout: time.Minute, Host: k.HostOf(""), Steps: map[string]flow.Step{
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

// stray reports whether a resource is on its way somewhere with no flow to take it
// there. No transaction of ours leaves one; an old backup might.
func (k *Kind[T]) stray(r raftstore.Reader, row T) bool {
	_, live := flow.Live(r, k.Subject(row.RowMeta().ID))
	return !live && (k.Creating(row) || k.Deleting(row))
}

// Strays is the loop that removes resources that are on their way somewhere with no
// flow to take them there, if they may be removed; may is nil where all may.
func Strays[T record.Row](t *loops.Term, k *Kind[T], may func(raftstore.Reader, T) bool) loops.Loop {
	name := "stray " + k.Table.Name
	stray := func(r raftstore.Reader, row T) bool { return k.stray(r, row) && (may == nil || may(r, row)) }
	return loops.Loop{Name: name, Pass: func(ctx context.Context) {
		view := t.Store.View()
		for _, row := range raftstore.All(view, k.Table) {
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

// Finish ends a create that has nothing left to make.
func Finish(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }

func (k *Kind[T]) drop(tx *raftstore.Tx, row T) {
	if k.Drop != nil {
		k.Drop(tx, row)
		return
	}
	raftstore.Delete(tx, k.Table, row.RowMeta().ID)
}

// MayReturn reports whether a host that did not do it is worth asking again: it
// is up, or it answers. Nothing is expected of one that is lost: what no row has it
// is told to remove when it comes back.
func MayReturn(r raftstore.Reader, hostID string, err error) bool {
	agent, known := raftstore.Get(r, record.Hosts, hostID)
	return !hosts.Unreachable(err) || known && agent.State == record.HostUp
}
