package service

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// MaxFork is how many children one call makes at most.
const MaxFork = 16

// Fork asks for children of a running sandbox.
type Fork struct {
	Count       *int            // 1 to MaxFork; nil: 1, or 2 of a tree
	Mode        *string         // "cold" or "warm"; nil: cold; not for a tree
	Metadata    json.RawMessage // of a tree's children
	Idempotency Idempotency
}

// Forked is what a fork came to.
type Forked struct {
	TreeID   string // of a fork-tree
	ParentID string
	Mode     string
	Children []Sandbox // that live, in the order of their index
	Failed   []FailedFork
	PauseMS  int64
}

// FailedFork is a child that did not come to life.
type FailedFork struct {
	Index int
	Error string
}

// Forks are the use cases of forks, and of snapshots.
type Forks struct {
	*Snapshots
	flows *fork.Flows
}

// NewForks makes the use cases.
func NewForks(s *Sandboxes, flows *fork.Flows) *Forks {
	return &Forks{Snapshots: NewSnapshots(s), flows: flows}
}

// forking is one call on its way.
type forking struct {
	Fork
	mode  fork.Mode
	count int
	route string
}

func (in Fork) check(mode fork.Mode, count int) (forking, error) {
	f := forking{Fork: in, mode: mode, count: count}
	if in.Count != nil {
		f.count = *in.Count
	}
	switch {
	case f.count < 1 || f.count > MaxFork:
		return f, &apierror.Error{Code: apierror.EInvalid, Message: "count must be from 1 to 16"}
	case mode == fork.Warm && f.count != 1:
		return f, &apierror.Error{Code: apierror.EInvalid, Message: "warm fork requires count 1"}
	}
	return f, validMetadata(in.Metadata)
}

// Fork makes children with the disk of a running sandbox, or, warm, one child
// that takes over its memory and its address too.
func (s *Forks) Fork(ctx context.Context, c Caller, id string, in Fork) (Forked, error) {
	mode := fork.Cold
	if !oneOf(in.Mode, string(fork.Cold), string(fork.Warm)) {
		return Forked{}, apierror.Invalid("unknown mode", `mode is "cold" or "warm"`)
	}
	if in.Mode != nil {
		mode = fork.Mode(*in.Mode)
	}
	f, err := in.check(mode, 1)
	if err != nil {
		return Forked{}, err
	}
	f.Metadata, f.route = nil, "fork"
	return s.run(ctx, c, id, f)
}

// ForkTree makes children with the disk and the memory of a running sandbox.
func (s *Forks) ForkTree(ctx context.Context, c Caller, id string, in Fork) (Forked, error) {
	f, err := in.check(fork.Tree, 2)
	if err != nil {
		return Forked{}, err
	}
	f.route = "fork-tree"
	return s.run(ctx, c, id, f)
}

func (s *Forks) run(ctx context.Context, c Caller, id string, f forking) (Forked, error) {
	if err := c.RequireWorkspace(); err != nil {
		return Forked{}, err
	}
	return once(ctx, s.cfg.Store, s.cfg.Clock, c, "POST /v1/sandboxes/"+id+"/"+f.route, f.Idempotency,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (Forked, error) {
			group, children, _ := strings.Cut(key.ResourceID, " ")
			live, _ := flow.Live(view, fork.Subject(group))
			if live == nil {
				out, err := s.forked(view, c, id, group, strings.Fields(children), f.mode, resultOf(key))
				if err != nil {
					return Forked{}, errKeyGone("fork")
				}
				return out, nil
			}
			return s.awaitFork(ctx, c, id, group, strings.Fields(children), live.ID, f.mode)
		},
		func(keyID string) (Forked, error) { return s.begin(ctx, c, id, f, keyID) })
}

// maxForkBytes keeps what a fork writes within one transaction.
const maxForkBytes = 384 << 10

func (s *Forks) begin(ctx context.Context, c Caller, id string, f forking, keyID string) (Forked, error) {
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return Forked{}, storeError(err)
	}
	parent, err := owned(view, c, id)
	if err != nil {
		return Forked{}, err
	}
	if err := mayCreate(view, c); err != nil {
		return Forked{}, err
	}
	if err := canCapture(parent, f.mode != fork.Cold); err != nil {
		return Forked{}, err
	}
	order := &fork.Order{
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
	if err := s.flows.Place(view, order); err != nil {
		var none *placement.Error
		if errors.As(err, &none) {
			return Forked{}, sandbox.NoNode(err)
		}
		return Forked{}, storeError(err)
	}
	err = s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if err := mayCreate(tx, c); err != nil {
			return err
		}
		now, err := owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := canCapture(now, f.mode != fork.Cold); err != nil {
			return err
		}
		if err := f.Idempotency.claim(tx, keyID, strings.Join(append([]string{order.Group}, ids...), " ")); err != nil {
			return err
		}
		return s.flows.Begin(tx, order)
	})
	if err != nil {
		s.flows.Unplace(order)
		return Forked{}, createError(err)
	}
	return s.awaitFork(ctx, c, id, order.Group, ids, order.FlowID, f.mode)
}

// newGroup makes the id of a fork, which for a tree is the tree's.
func (f forking) newGroup() string {
	if f.mode == fork.Tree {
		return "tree-" + randomText(snapshotRandom)
	}
	return "fork-" + randomText(snapshotRandom)
}

// children are the rows of a fork's children. They inherit template,
// environment, time to live and who may see their ports; not volumes, the
// registered ports, nor that the parent is persistent.
func (s *Forks) children(parent *record.Sandbox, group string, f forking) ([]*record.Sandbox, error) {
	env, err := s.cfg.Flows.OpenEnv(parent.ID, parent.EnvSealed)
	if err != nil {
		return nil, apierror.As(err)
	}
	out, size := make([]*record.Sandbox, f.count), 0
	for i := range out {
		row := &record.Sandbox{
			Meta: record.Meta{ID: randomText(hostapi.IDLength)}, WorkspaceID: parent.WorkspaceID, Status: record.SandboxStarting,
			Template: parent.Template, TemplateKey: parent.TemplateKey, BuildID: parent.BuildID, CPU: parent.CPU, MemoryMB: parent.MemoryMB, DiskMB: parent.DiskMB,
			ForkedFrom: parent.ID, TTLSeconds: parent.TTLSeconds, Preview: parent.Preview,
		}
		if f.mode == fork.Tree {
			row.ForkTree = group
		}
		if row.Metadata, err = fork.Metadata(f.mode, f.Metadata, parent.ID, group, i); err != nil {
			return nil, apierror.As(err)
		}
		if row.EnvSealed, err = s.cfg.Flows.SealEnv(row.ID, env); err != nil {
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
func (s *Forks) awaitFork(ctx context.Context, c Caller, id, group string, children []string, flowID string, mode fork.Mode) (Forked, error) {
	var result fork.Result
	if err := s.await(ctx, flowID, &result); err != nil {
		return Forked{}, err
	}
	view, err := s.cfg.Store.VerifiedView(ctx)
	if err != nil {
		return Forked{}, storeError(err)
	}
	return s.forked(view, c, id, group, children, mode, result)
}

func resultOf(key *record.IdempotencyKey) (r fork.Result) {
	_ = json.Unmarshal(key.Result, &r) // it is ours; what is not there is zero
	return r
}

// forked is the answer to a fork that is over.
func (s *Forks) forked(r raftstore.Reader, c Caller, parentID, group string, ids []string, mode fork.Mode, result fork.Result) (Forked, error) {
	out := Forked{ParentID: parentID, Mode: string(mode), PauseMS: result.PauseMS}
	if mode == fork.Tree {
		out.TreeID, out.Mode = group, ""
	}
	for _, f := range result.Failed {
		out.Failed = append(out.Failed, FailedFork{Index: f.Index, Error: f.Error})
	}
	for _, id := range ids {
		if row, err := owned(r, c, id); err == nil {
			out.Children = append(out.Children, s.show(row))
		}
	}
	if len(out.Children) == 0 {
		return Forked{}, &apierror.Error{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"}
	}
	return out, nil
}

// Promote chooses a fork-tree's child, and with cleanup deletes its siblings,
// whose ids it returns. It answers once they are gone.
func (s *Forks) Promote(ctx context.Context, c Caller, id, treeID string, cleanup bool) (promoted Sandbox, deleted []string, err error) {
	if err := c.RequireWorkspace(); err != nil {
		return Sandbox{}, nil, err
	}
	if treeID == "" {
		return Sandbox{}, nil, &apierror.Error{Code: apierror.EInvalid, Message: "tree_id is required"}
	}
	flowID := flow.NewID()
	err = s.cfg.Store.Update(ctx, func(tx *raftstore.Tx) error {
		row, err := owned(tx, c, id)
		switch {
		case err != nil:
			return err
		case row.ForkTree != treeID:
			return &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the sandbox is no child of this fork-tree"}
		case row.Status == record.SandboxDeleting:
			return apierror.NotFound()
		}
		deleted, err = fork.BeginPromote(tx, flowID, row, cleanup, c.RequestID)
		return err
	})
	if err != nil {
		return Sandbox{}, nil, storeError(err)
	}
	if err := s.awaitRemoval(ctx, flowID); err != nil {
		return Sandbox{}, nil, err
	}
	promoted, err = s.Get(ctx, c, id)
	return promoted, deleted, err
}
