package testplane

import (
	"errors"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Rig is a plane with a host h1 that has the template base, two workspaces, and the
// use cases of sandboxes on the replica that led when it was created.
type Rig struct {
	*Plane
	*sandbox.Sandboxes
	Node *Node // whose use cases these are
	H1   *fakehost.Host
}

// Caller belongs to the workspace "ws", Stranger to another one.
var (
	Caller   = core.Caller{WorkspaceID: "ws", KeyID: "k", RequestID: "req"}
	Stranger = core.Caller{WorkspaceID: "other", KeyID: "k2", RequestID: "req"}
)

// NewRig returns a rig with a number of replicas.
func NewRig(t *testing.T, replicas int) *Rig {
	t.Helper()
	p := New(t, replicas, nil)
	n := p.LeaderNode()
	r := &Rig{Plane: p, Sandboxes: n.Sandboxes, Node: n, H1: p.Host("h1", 16<<10)}
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "other"}})
		return nil
	})
	testcluster.Await(t, "the record of base", func() bool {
		_, ok := template.Operators(p.Leader().Store.View(), "base")
		return ok
	})
	return r
}

// Must creates a sandbox, from base unless in says otherwise.
func (r *Rig) Must(t *testing.T, in api.CreateSandbox) api.Sandbox {
	t.Helper()
	if in.Template == "" {
		in.Template = "base"
	}
	sb, err := r.Create(t.Context(), Caller, in, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// Become changes a sandbox's status on the first host and waits until its record says so: the
// next heartbeat would undo a change of the record alone.
func (r *Rig) Become(id string, status hostapi.Status) {
	r.t.Helper()
	r.H1.Become(id, status)
	testcluster.Await(r.t, "a sandbox that is "+string(status), func() bool {
		s, _ := r.Sandbox(id)
		return string(s.Status) == string(status)
	})
}

// Change edits a sandbox's row directly.
func (r *Rig) Change(id string, f func(s *record.Sandbox)) {
	r.Update(func(tx *raftstore.Tx) error {
		s, ok := raftstore.Get(tx, record.Sandboxes, id)
		if !ok {
			return errors.New("no such sandbox")
		}
		c := s.Clone()
		f(c)
		raftstore.Put(tx, record.Sandboxes, c)
		return nil
	})
}

// Want fails the test unless err has a code and, if it is not "", a message.
func Want(t *testing.T, err error, code apierror.Code, message string) *apierror.Error {
	t.Helper()
	var e *apierror.Error
	if !errors.As(err, &e) || e.Code != code || message != "" && e.Message != message {
		t.Fatalf("error %v (%s), want %s %q", err, apierror.CodeOf(err), code, message)
	}
	return e
}

// Passes waits for a number of heartbeats of h1, each of which starts a pass of the
// inventory.
func (p *Plane) Passes(n int) {
	p.t.Helper()
	first := p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Sequence
	testcluster.Await(p.t, "heartbeats", func() bool {
		return p.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Sequence >= first+uint64(n)
	})
}

// Key returns an idempotency key.
func Key(name, body string) core.Idempotency {
	return core.Idempotency{Key: name, BodySHA256: []byte(body)}
}
