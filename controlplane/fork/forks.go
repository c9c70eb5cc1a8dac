package fork

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// MaxFork is the maximum number of children of one call. An operator may set a lower one.
const MaxFork = 16

// Forks contains the use cases of forks.
type Forks struct {
	Flows     *Flows
	core      *core.Core
	sandboxes *sandbox.Sandboxes
	most      int
}

// New returns the use cases. most is the maximum number of children of one call; 0 means
// MaxFork.
func New(c *core.Core, sandboxes *sandbox.Sandboxes, most int) *Forks {
	return &Forks{
		Flows: &Flows{Core: c, sandboxes: sandboxes.Flows, StorePause: 10 * time.Second}, core: c, sandboxes: sandboxes, most: cmp.Or(most, MaxFork),
	}
}

// forking is a checked request for a fork.
type forking struct {
	mode     Mode
	count    int
	metadata json.RawMessage // of the children
	route    string
	key      core.Idempotency
}

// check sets the number of children, if it is given, and checks it.
func (f *forking) check(count *int, most int) error {
	if count != nil {
		f.count = *count
	}
	switch {
	case f.count < 1 || f.count > most:
		return &apierror.Error{Code: apierror.EInvalid, Message: fmt.Sprintf("count must be from 1 to %d", most)}
	case f.mode == Warm && f.count != 1:
		return &apierror.Error{Code: apierror.EInvalid, Message: "warm fork requires count 1"}
	}
	return nil
}

// forked is the outcome of a fork.
type forked struct {
	group    string
	children []api.Sandbox // those that run, by index
	failed   []api.FailedFork
	pauseMS  int64
	stored   bool // the capture of a tree is in the snapshot store
}

// Fork creates children that inherit the disk of a running sandbox, or one warm
// child that takes over its memory and address too.
func (s *Forks) Fork(ctx context.Context, c core.Caller, id string, in api.Fork, i core.Idempotency) (api.Forked, error) {
	f := forking{mode: Cold, count: 1, route: "fork", key: i}
	if !core.OneOf(in.Mode, api.ForkCold, api.ForkWarm) {
		return api.Forked{}, apierror.Invalid("unknown mode", `mode is "cold" or "warm"`)
	}
	if in.Mode != nil {
		f.mode = Mode(*in.Mode)
	}
	if err := f.check(in.Count, s.most); err != nil {
		return api.Forked{}, err
	}
	return run(ctx, s, c, id, f, func(out forked) api.Forked {
		return api.Forked{ParentID: id, Mode: api.ForkMode(f.mode), Children: out.children, Failed: out.failed, PauseMS: out.pauseMS}
	})
}

// ForkTree creates children that inherit the disk and memory of a running sandbox.
func (s *Forks) ForkTree(ctx context.Context, c core.Caller, id string, in api.ForkTree, i core.Idempotency) (api.ForkedTree, error) {
	f := forking{mode: Tree, count: min(2, s.most), metadata: json.RawMessage(in.Metadata), route: "fork-tree", key: i}
	if err := f.check(in.Count, s.most); err != nil {
		return api.ForkedTree{}, err
	}
	if err := sandbox.ValidMetadata(in.Metadata); err != nil {
		return api.ForkedTree{}, err
	}
	return run(ctx, s, c, id, f, func(out forked) api.ForkedTree {
		return api.ForkedTree{TreeID: out.group, ParentID: id, Children: out.children, Failed: out.failed, PauseMS: out.pauseMS, Stored: out.stored}
	})
}

// run forks once, and returns what show makes of it.
func run[T any](ctx context.Context, s *Forks, c core.Caller, id string, f forking, show func(forked) T) (T, error) {
	shown := func(out forked, err error) (T, error) {
		if err != nil {
			var none T
			return none, err
		}
		return show(out), nil
	}
	if err := c.RequireWorkspace(); err != nil {
		return shown(forked{}, err)
	}
	return core.Once(ctx, s.core, c, "POST /v1/sandboxes/"+id+"/"+f.route, f.key,
		func(ctx context.Context, view *raftstore.Snapshot, key *record.IdempotencyKey) (T, error) {
			group, children, _ := strings.Cut(key.ResourceID, " ")
			live, _ := flow.Live(view, Subject(group))
			if live == nil {
				out, err := s.answer(view, c, group, strings.Fields(children), resultOf(key))
				if err != nil {
					err = core.ErrKeyGone("fork")
				}
				return shown(out, err)
			}
			return shown(s.awaitFork(ctx, c, group, strings.Fields(children), live.ID))
		},
		func(keyID string) (T, error) { return shown(s.begin(ctx, c, id, f, keyID)) })
}

// maxForkBytes limits the rows of a fork so that they fit into one transaction.
const maxForkBytes = 384 << 10

func (s *Forks) begin(ctx context.Context, c core.Caller, id string, f forking, keyID string) (forked, error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return forked{}, err
	}
	parent, err := sandbox.Owned(view, c, id)
	if err != nil {
		return forked{}, err
	}
	need := limits.Need{Sandboxes: f.count, CPU: f.count * parent.CPU, MemoryMB: f.count * parent.MemoryMB, DiskMB: f.count * parent.DiskMB}
	if err := s.core.Admissible(view, c, need); err != nil {
		return forked{}, err
	}
	if err := sandbox.CanCapture(parent, f.mode != Cold); err != nil {
		return forked{}, err
	}
	order := &Order{
		FlowID: flow.NewID(), Group: f.newGroup(), RequestID: c.RequestID, IdempotencyKeyID: keyID,
		Mode: f.mode, Parent: parent,
	}
	env, err := s.sandboxes.Flows.Inherit(view, parent)
	if err != nil {
		return forked{}, apierror.As(err)
	}
	if order.Children, err = s.children(parent, env.Ref, order.Group, f); err != nil {
		return forked{}, err
	}
	ids := make([]string, len(order.Children))
	for i, child := range order.Children {
		ids[i] = child.ID
	}
	leave, err := s.core.AdmissionTurn(ctx, c, false)
	if err != nil {
		return forked{}, err
	}
	defer leave()
	if err := s.Flows.Place(view, order); err != nil {
		var none *placement.Error
		if errors.As(err, &none) {
			return forked{}, core.NoNode(err)
		}
		return forked{}, core.StoreError(err)
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if err := s.core.Admit(tx, c, need); err != nil {
			return err
		}
		now, err := sandbox.Owned(tx, c, id)
		if err != nil {
			return err
		}
		if err := sandbox.CanCapture(now, f.mode != Cold); err != nil {
			return err
		}
		if err := f.key.Claim(tx, keyID, strings.Join(append([]string{order.Group}, ids...), " ")); err != nil {
			return err
		}
		if err := env.Put(tx, c.WorkspaceID, f.count); err != nil {
			return err
		}
		return s.Flows.Begin(tx, order)
	})
	if err != nil {
		s.Flows.Unplace(order)
		return forked{}, err
	}
	leave()
	return s.awaitFork(ctx, c, order.Group, ids, order.FlowID)
}

const groupRandom = 20 // characters of an id after its prefix

// newGroup returns an id for a fork. In a fork-tree it is the tree's id.
func (f forking) newGroup() string {
	if f.mode == Tree {
		return "tree-" + core.RandomText(groupRandom)
	}
	return "fork-" + core.RandomText(groupRandom)
}

// children returns the rows of a fork's children. They inherit template,
// environment, time to live and preview mode, but not volumes, registered ports or
// persistence.
func (s *Forks) children(parent *record.Sandbox, env record.EnvRef, group string, f forking) ([]*record.Sandbox, error) {
	out, size := make([]*record.Sandbox, f.count), 0
	for i := range out {
		row := &record.Sandbox{
			Meta: record.Meta{ID: core.RandomText(hostapi.IDLength)}, WorkspaceID: parent.WorkspaceID, Status: record.SandboxStarting,
			Template: parent.Template, TemplateKey: parent.TemplateKey, BuildID: parent.BuildID, CPU: parent.CPU, MemoryMB: parent.MemoryMB, DiskMB: parent.DiskMB,
			ForkedFrom: parent.ID, TTLSeconds: parent.TTLSeconds, Preview: parent.Preview, EnvRef: env,
		}
		if f.mode == Tree {
			row.ForkTree = group
		}
		var err error
		if row.Metadata, err = Metadata(f.mode, f.metadata, parent.ID, group, i); err != nil {
			return nil, apierror.As(err)
		}
		size += len(row.Metadata) + 1024
		out[i] = row
	}
	if size > maxForkBytes {
		return nil, &apierror.Error{
			Code: apierror.ETooLarge, Message: "request too large",
			Detail: fmt.Sprintf("a child's metadata takes %d bytes, in which JSON escapes some characters, and all children's may take %d: make at most %d children at once",
				size/f.count, maxForkBytes, maxForkBytes*f.count/size),
		}
	}
	return out, nil
}

// awaitFork waits for a fork and returns its outcome.
func (s *Forks) awaitFork(ctx context.Context, c core.Caller, group string, children []string, flowID string) (forked, error) {
	var result Result
	if err := s.core.Await(ctx, flowID, &result); err != nil {
		return forked{}, err
	}
	view, err := s.core.CurrentAfter(ctx)
	if err != nil {
		return forked{}, err
	}
	return s.answer(view, c, group, children, result)
}

func resultOf(key *record.IdempotencyKey) (r Result) {
	_ = json.Unmarshal(key.Result, &r) // written by finish; missing members are zero
	return r
}

// answer returns the outcome of a fork that has ended.
func (s *Forks) answer(r raftstore.Reader, c core.Caller, group string, ids []string, result Result) (forked, error) {
	out := forked{group: group, failed: core.Each(result.Failed, func(f Failed) api.FailedFork { return api.FailedFork(f) }), pauseMS: result.PauseMS, stored: result.Stored}
	for _, id := range ids {
		if row, err := sandbox.Owned(r, c, id); err == nil {
			out.children = append(out.children, s.sandboxes.Show(row))
		}
	}
	if len(out.children) == 0 {
		return forked{}, &apierror.Error{Code: apierror.EConflict, Message: "sandbox was deleted while it was being created"}
	}
	return out, nil
}

// Promote chooses a child of a fork-tree and, if requested, deletes its siblings. It
// returns once they are gone.
func (s *Forks) Promote(ctx context.Context, c core.Caller, id string, in api.Promote) (api.Promoted, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Promoted{}, err
	}
	if in.TreeID == "" {
		return api.Promoted{}, &apierror.Error{Code: apierror.EInvalid, Message: "tree_id is required"}
	}
	var deleted []string
	err := s.core.Remove(ctx, c, func(tx *raftstore.Tx, flowID string) (string, error) {
		row, err := sandbox.Owned(tx, c, id)
		switch {
		case err != nil:
			return "", err
		case row.Owner != nil:
			return "", sandbox.Unmanaged(row)
		case row.ForkTree != in.TreeID:
			return "", &apierror.Error{Code: apierror.ENotFound, Message: "not found", Detail: "the sandbox is no child of this fork-tree"}
		case row.Status == record.SandboxDeleting:
			return "", apierror.NotFound()
		}
		ids, err := BeginPromote(tx, flowID, row, in.CleanupSiblings, c.RequestID)
		deleted = append([]string{}, ids...) // never null in the answer
		return flowID, err
	})
	if err != nil && !errors.Is(err, core.ErrRemoving) {
		return api.Promoted{}, err
	}
	view, err := s.core.CurrentAfter(ctx)
	if err != nil {
		return api.Promoted{}, err
	}
	row, err := sandbox.Owned(view, c, id)
	if err != nil {
		return api.Promoted{}, err
	}
	return api.Promoted{Promoted: s.sandboxes.Show(row), Deleted: deleted}, nil
}
