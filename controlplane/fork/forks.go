package fork

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/berth-cloud/berth/controlplane/core"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// MaxFork is how many children one call makes at most.
const MaxFork = 16

// Request asks for children of a running sandbox.
type Request struct {
	Count       *int            // 1 to MaxFork; nil: 1, or 2 of a tree
	Mode        *string         // "cold" or "warm"; nil: cold; not for a tree
	Metadata    json.RawMessage // of a tree's children
	Idempotency core.Idempotency
}

// Forked is what a fork came to.
type Forked struct {
	TreeID   string // of a fork-tree
	ParentID string
	Mode     string
	Children []sandbox.Sandbox // that live, in the order of their index
	Failed   []FailedFork
	PauseMS  int64
}

// FailedFork is a child that did not come to life.
type FailedFork struct {
	Index int
	Error string
}

// Forks are the use cases of forks.
type Forks struct {
	Flows     *Flows
	core      *core.Core
	sandboxes *sandbox.Sandboxes
}

// New makes the use cases.
func New(c *core.Core, sandboxes *sandbox.Sandboxes) *Forks {
	return &Forks{Flows: &Flows{Core: c, sandboxes: sandboxes.Flows}, core: c, sandboxes: sandboxes}
}

// forking is one call on its way.
type forking struct {
	Request
	mode  Mode
	count int
	route string
}

func (in Request) check(mode Mode, count int) (forking, error) {
	f := forking{Request: in, mode: mode, count: count}
	if in.Count != nil {
		f.count = *in.Count
	}
	switch {
	case f.count < 1 || f.count > MaxFork:
		return f, &apierror.Error{Code: apierror.EInvalid, Message: "count must be from 1 to 16"}
	case mode == Warm && f.count != 1:
		return f, &apierror.Error{Code: apierror.EInvalid, Message: "warm fork requires count 1"}
	}
	return f, sandbox.ValidMetadata(in.Metadata)
}

// Fork makes children with the disk of a running sandbox, or, warm, one child
// that takes over its memory and its address too.
func (s *Forks) Fork(ctx context.Context, c core.Caller, id string, in Request) (Forked, error) {
	mode := Cold
	if !core.OneOf(in.Mode, string(Cold), string(Warm)) {
		return Forked{}, apierror.Invalid("unknown mode", `mode is "cold" or "warm"`)
	}
	if in.Mode != nil {
		mode = Mode(*in.Mode)
	}
	f, err := in.check(mode, 1)
	if err != nil {
		return Forked{}, err
	}
	f.Metadata, f.route = nil, "fork"
	return s.run(ctx, c, id, f)
}

// ForkTree makes children with the disk and the memory of a running sandbox.
func (s *Forks) ForkTree(ctx context.Context, c core.Caller, id string, in Request) (Forked, error) {
	f, err := in.check(Tree, 2)
	if err != nil {
		return Forked{}, err
	}
	f.route = "fork-tree"
	return s.run(ctx, c, id, f)
}

func (s *Forks) run(ctx context.Context, c core.Caller, id string, f forking) (Forked, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Forked{}, err
	}
	return core.Once(ctx, s.core, c, "POST /v1/sandboxes/"+id+"/"+f.route, f.Idempotency,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (Forked, error) {
			group, children, _ := strings.Cut(key.ResourceID, " ")
			live, _ := flow.Live(view, Subject(group))
			if live == nil {
				out, err := s.forked(view, c, id, group, strings.Fields(children), f.mode, resultOf(key))
				if err != nil {
					return Forked{}, core.ErrKeyGone("fork")
				}
				return out, nil
			}
			return s.awaitFork(ctx, c, id, group, strings.Fields(children), live.ID, f.mode)
		},
		func(keyID string) (Forked, error) { return s.begin(ctx, c, id, f, keyID) })
}

// maxForkBytes keeps what a fork writes within one transaction.
const maxForkBytes = 384 << 10

func (s *Forks) begin(ctx context.Context, c core.Caller, id string, f forking, keyID string) (Forked, error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return Forked{}, err
	}
	parent, err := sandbox.Owned(view, c, id)
	if err != nil {
		return Forked{}, err
	}
	if err := core.MayCreate(view, c); err != nil {
		return Forked{}, err
	}
	if err := sandbox.CanCapture(parent, f.mode != Cold); err != nil {
		return Forked{}, err
	}
	order := &Order{
		FlowID: flow.NewID(), Group: f.newGroup(), RequestID: c.RequestID, IdempotencyKeyID: keyID,
		Mode: f.mode, Parent: parent,
	}
	if order.Children, err = s.children(parent, order.Group, f); err != nil {
		return Forked{}, err
	}
	ids := make([]string, len(order.Children))
	for i, child := range order.Children {
		ids[i] = child.ID
	}
	if err := s.Flows.Place(view, order); err != nil {
		var none *placement.Error
		if errors.As(err, &none) {
			return Forked{}, core.NoNode(err)
		}
		return Forked{}, core.StoreError(err)
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := core.MayCreate(tx, c); err != nil {
			return err
		}
		now, err := sandbox.Owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := sandbox.CanCapture(now, f.mode != Cold); err != nil {
			return err
		}
		if err := f.Idempotency.Claim(tx, keyID, strings.Join(append([]string{order.Group}, ids...), " ")); err != nil {
			return err
		}
		return s.Flows.Begin(tx, order)
	})
	if err != nil {
		s.Flows.Unplace(order)
		return Forked{}, err
	}
	return s.awaitFork(ctx, c, id, order.Group, ids, order.FlowID, f.mode)
}

const groupRandom = 20 // characters of an id after its prefix

// newGroup makes the id of a fork, which for a tree is the tree's.
func (f forking) newGroup() string {
	if f.mode == Tree {
		return "tree-" + core.RandomText(groupRandom)
	}
	return "fork-" + core.RandomText(groupRandom)
}

// children are the rows of a fork's children. They inherit template,
// environment, time to live and who may see their ports; not volumes, the
// registered ports, nor that the parent is persistent.
func (s *Forks) children(parent *record.Sandbox, group string, f forking) ([]*record.Sandbox, error) {
	env, err := s.sandboxes.Flows.OpenEnv(parent.ID, parent.EnvSealed)
	if err != nil {
		return nil, apierror.As(err)
	}
	out, size := make([]*record.Sandbox, f.count), 0
	for i := range out {
		row := &record.Sandbox{
			Meta: record.Meta{ID: core.RandomText(hostapi.IDLength)}, WorkspaceID: parent.WorkspaceID, Status: record.SandboxStarting,
			Template: parent.Template, TemplateKey: parent.TemplateKey, BuildID: parent.BuildID, CPU: parent.CPU, MemoryMB: parent.MemoryMB, DiskMB: parent.DiskMB,
			ForkedFrom: parent.ID, TTLSeconds: parent.TTLSeconds, Preview: parent.Preview,
		}
		if f.mode == Tree {
			row.ForkTree = group
		}
		if row.Metadata, err = Metadata(f.mode, f.Metadata, parent.ID, group, i); err != nil {
			return nil, apierror.As(err)
		}
		if row.EnvSealed, err = s.sandboxes.Flows.SealEnv(row.ID, env); err != nil {
			return nil, apierror.As(err)
		}
		size += len(row.Metadata) + len(row.EnvSealed)*4/3 + 1024
		out[i] = row
	}
	if size > maxForkBytes {
		return nil, &apierror.Error{
			Code: apierror.ETooLarge, Message: "request too large",
			Detail: "environment and metadata of all children together are too large: make fewer children at once",
		}
	}
	return out, nil
}

// awaitFork waits for a fork and answers with what it came to.
func (s *Forks) awaitFork(ctx context.Context, c core.Caller, id, group string, children []string, flowID string, mode Mode) (Forked, error) {
	var result Result
	if err := s.core.Await(ctx, flowID, &result); err != nil {
		return Forked{}, err
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return Forked{}, err
	}
	return s.forked(view, c, id, group, children, mode, result)
}

func resultOf(key *record.IdempotencyKey) (r Result) {
	_ = json.Unmarshal(key.Result, &r) // it is ours; what is not there is zero
	return r
}

// forked is the answer to a fork that is over.
func (s *Forks) forked(r raftstore.Reader, c core.Caller, parentID, group string, ids []string, mode Mode, result Result) (Forked, error) {
	out := Forked{ParentID: parentID, Mode: string(mode), PauseMS: result.PauseMS}
	if mode == Tree {
		out.TreeID, out.Mode = group, ""
	}
	for _, f := range result.Failed {
		out.Failed = append(out.Failed, FailedFork{Index: f.Index, Error: f.Error})
	}
	for _, id := range ids {
		if row, err := sandbox.Owned(r, c, id); err == nil {
			out.Children = append(out.Children, s.sandboxes.Show(row))
		}
	}
	if len(out.Children) == 0 {
		return Forked{}, &apierror.Error{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"}
	}
	return out, nil
}

// Promote chooses a fork-tree's child, and with cleanup deletes its siblings,
// whose ids it returns. It answers once they are gone.
func (s *Forks) Promote(ctx context.Context, c core.Caller, id, treeID string, cleanup bool) (promoted sandbox.Sandbox, deleted []string, err error) {
	if err := c.RequireWorkspace(); err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	if treeID == "" {
		return sandbox.Sandbox{}, nil, &apierror.Error{Code: apierror.EInvalid, Message: "tree_id is required"}
	}
	flowID := flow.NewID()
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row, err := sandbox.Owned(tx, c, id)
		switch {
		case err != nil:
			return err
		case row.ForkTree != treeID:
			return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the sandbox is no child of this fork-tree"}
		case row.Status == record.SandboxDeleting:
			return apierror.NotFound()
		}
		deleted, err = BeginPromote(tx, flowID, row, cleanup, c.RequestID)
		return err
	})
	if err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	if err := s.core.AwaitRemoval(ctx, flowID); err != nil {
		return sandbox.Sandbox{}, nil, err
	}
	promoted, err = s.sandboxes.Get(ctx, c, id)
	return promoted, deleted, err
}
