package fork_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func n(i int) *int { return &i }

func TestForkRefusesBadInput(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := r.Node.Forks
	sb := r.Must(t, api.CreateSandbox{})
	big := api.Object(fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", 17<<10)))
	for name, c := range map[string]struct {
		in       api.Fork
		metadata api.Object
		tree     bool
		message  string
	}{
		"count 0":              {api.Fork{Count: n(0)}, nil, false, "count must be from 1 to 16"},
		"count 17":             {api.Fork{Count: n(17)}, nil, false, "count must be from 1 to 16"},
		"a tree of 0":          {api.Fork{Count: n(0)}, nil, true, "count must be from 1 to 16"},
		"a tree of 17":         {api.Fork{Count: n(17)}, nil, true, "count must be from 1 to 16"},
		"negative":             {api.Fork{Count: n(-1)}, nil, true, "count must be from 1 to 16"},
		"warm with 2":          {api.Fork{Count: n(2), Mode: new(api.ForkMode("warm"))}, nil, false, "warm fork requires count 1"},
		"warm with 0":          {api.Fork{Count: n(0), Mode: new(api.ForkMode("warm"))}, nil, false, "count must be from 1 to 16"},
		"unknown mode":         {api.Fork{Mode: new(api.ForkMode("lukewarm"))}, nil, false, "unknown mode"},
		"empty mode":           {api.Fork{Mode: new(api.ForkMode(""))}, nil, false, "unknown mode"},
		"metadata is too long": {api.Fork{}, big, true, "invalid metadata"},
		"metadata no double":   {api.Fork{}, api.Object(`{"a":1e999}`), true, "invalid metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if c.tree {
				_, err = f.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{Count: c.in.Count, Metadata: c.metadata}, core.Idempotency{})
			} else {
				_, err = f.Fork(t.Context(), testplane.Caller, sb.ID, c.in, core.Idempotency{})
			}
			testplane.Want(t, err, apierror.EInvalid, c.message)
		})
	}
	if rows := r.Settled(r.H1); len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
}

// How many children a fork may have is an operator's to lower.
func TestTheMostChildrenOfAForkAreASetting(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := fork.New(r.Node.Core, r.Node.Sandboxes, 1)
	sb := r.Must(t, api.CreateSandbox{})
	_, err := f.Fork(t.Context(), testplane.Caller, sb.ID, api.Fork{Count: n(2)}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "count must be from 1 to 1")
	_, err = f.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{Count: n(2)}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "count must be from 1 to 1")
	// The default of a tree fits it.
	if tree, err := f.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{}, core.Idempotency{}); err != nil || len(tree.Children) != 1 {
		t.Errorf("%+v, %v", tree, err)
	}
}

// The rows of all children are one transaction: the error says how many fit. JSON has six
// bytes for a character of the metadata.
func TestLargeMetadataLimitsAFork(t *testing.T) {
	r := testplane.NewRig(t, 1)
	r.H1.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		c.MemoryMB = 64 * boxMB
	})
	sb := r.Must(t, api.CreateSandbox{})
	in := api.ForkTree{Count: n(5), Metadata: api.Object(`{"a":"` + strings.Repeat("<", 15<<10) + `"}`)}
	_, err := r.Node.Forks.ForkTree(t.Context(), testplane.Caller, sb.ID, in, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.ETooLarge, "request too large"); !strings.Contains(e.Detail, "make at most 4 children at once") {
		t.Errorf("detail %q", e.Detail)
	}
	in.Count = n(4)
	if out, err := r.Node.Forks.ForkTree(t.Context(), testplane.Caller, sb.ID, in, core.Idempotency{}); err != nil || len(out.Children) != 4 {
		t.Errorf("%d children, %v", len(out.Children), err)
	}
}

func TestForkOfWhatDoesNotRun(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := r.Node.Forks
	sb := r.Must(t, api.CreateSandbox{})
	forks := map[string]func(context.Context, core.Caller, string) error{
		"fork": func(ctx context.Context, c core.Caller, id string) error {
			_, err := f.Fork(ctx, c, id, api.Fork{}, core.Idempotency{})
			return err
		},
		"warm": func(ctx context.Context, c core.Caller, id string) error {
			_, err := f.Fork(ctx, c, id, api.Fork{Mode: new(api.ForkMode("warm"))}, core.Idempotency{})
			return err
		},
		"fork-tree": func(ctx context.Context, c core.Caller, id string) error {
			_, err := f.ForkTree(ctx, c, id, api.ForkTree{}, core.Idempotency{})
			return err
		},
		"snapshot": func(ctx context.Context, c core.Caller, id string) error {
			_, err := r.Node.Snapshots.Create(ctx, c, id, api.CreateSnapshot{}, core.Idempotency{})
			return err
		},
	}
	for name, call := range forks {
		t.Run(name, func(t *testing.T) {
			testplane.Want(t, call(t.Context(), testplane.Stranger, sb.ID), apierror.ENotFound, "not found")
			testplane.Want(t, call(t.Context(), testplane.Caller, strings.Repeat("z", 26)), apierror.ENotFound, "not found")
			for _, status := range []hostapi.Status{hostapi.StatusPaused, hostapi.StatusHibernated} {
				r.Become(sb.ID, status)
				testplane.Want(t, call(t.Context(), testplane.Caller, sb.ID), apierror.EConflict, "sandbox not running (paused or hibernated) — resume/wake it first")
			}
			r.Become(sb.ID, hostapi.StatusRunning)
			// The record lags behind its host.
			r.H1.Become(sb.ID, hostapi.StatusPaused)
			testplane.Want(t, call(t.Context(), testplane.Caller, sb.ID), apierror.EConflict, "sandbox not running (paused or hibernated) — resume/wake it first")
			r.Become(sb.ID, hostapi.StatusRunning)
		})
	}
	r.Become(sb.ID, hostapi.StatusFailed)
	for name, call := range forks {
		if e := testplane.Want(t, call(t.Context(), testplane.Caller, sb.ID), apierror.ENotFound, "sandbox not found or not running"); e.Detail == "" {
			t.Errorf("%s: no detail", name)
		}
	}
}

// A tree of trees: a child can be forked like any sandbox. Promotion deletes its
// siblings, but neither its parent nor its own children.
func TestATreeOfTrees(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := r.Node.Forks
	ttl := int64(3600)
	root := r.Must(t, api.CreateSandbox{TTLSeconds: &ttl, Env: map[string]string{"A": "1"}, Preview: new(api.PreviewMode("token")), Persistent: true})
	first, err := f.ForkTree(t.Context(), testplane.Caller, root.ID, api.ForkTree{Metadata: api.Object(`{"try":1,"fork_tree_id":"forged"}`)}, core.Idempotency{})
	if err != nil || len(first.Children) != 2 || first.Failed == nil || first.ParentID != root.ID || first.PauseMS == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	for i, c := range first.Children {
		var m map[string]any
		if err := json.Unmarshal(c.Metadata, &m); err != nil {
			t.Fatal(err)
		}
		if m["try"] != 1.0 || m["fork_tree_id"] != first.TreeID || m["fork_tree_role"] != "child" || m["fork_parent_id"] != root.ID || m["fork_index"] != float64(i) {
			t.Errorf("metadata %s", c.Metadata)
		}
		if core.OrZero(c.ForkedFrom) != root.ID || c.Status != "running" || *c.TTLSeconds != ttl || c.ExpiresAt.IsZero() || c.Preview != "token" || c.Persistent {
			t.Errorf("%+v", c)
		}
		if spec := r.H1.Spec(c.ID); spec.Env["A"] != "1" || spec.Persistent {
			t.Errorf("%+v", spec)
		}
	}
	second, err := f.ForkTree(t.Context(), testplane.Caller, first.Children[0].ID, api.ForkTree{Count: n(3)}, core.Idempotency{})
	if err != nil || len(second.Children) != 3 || second.TreeID == first.TreeID {
		t.Fatalf("%+v, %v", second, err)
	}
	child := second.Children[1].ID
	for _, tree := range []string{first.TreeID, "tree-unknown"} {
		_, err := f.Promote(t.Context(), testplane.Caller, child, api.Promote{TreeID: tree, CleanupSiblings: true})
		if e := testplane.Want(t, err, apierror.ENotFound, "not found"); e.Detail == "" {
			t.Error("no detail")
		}
	}
	_, err = f.Promote(t.Context(), testplane.Stranger, child, api.Promote{TreeID: second.TreeID, CleanupSiblings: true})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = f.Promote(t.Context(), testplane.Caller, root.ID, api.Promote{TreeID: first.TreeID, CleanupSiblings: true})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = f.Promote(t.Context(), testplane.Caller, child, api.Promote{TreeID: "", CleanupSiblings: true})
	testplane.Want(t, err, apierror.EInvalid, "tree_id is required")

	out, err := f.Promote(t.Context(), testplane.Caller, child, api.Promote{TreeID: second.TreeID, CleanupSiblings: true})
	if err != nil || out.Promoted.ID != child || len(out.Deleted) != 2 || !strings.Contains(string(out.Promoted.Metadata), `"fork_tree_role":"promoted"`) {
		t.Fatalf("%+v, %v", out, err)
	}
	if rows := r.Settled(r.H1); len(rows) != 4 { // root, both children, the promoted one
		t.Fatalf("%d rows", len(rows))
	}
	// Repeating it changes nothing.
	if out, err := f.Promote(t.Context(), testplane.Caller, child, api.Promote{TreeID: second.TreeID, CleanupSiblings: true}); err != nil || len(out.Deleted) != 0 {
		t.Fatalf("%v, %v", out.Deleted, err)
	}
}

func TestForkIsRepeatable(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := r.Node.Forks
	sb := r.Must(t, api.CreateSandbox{})
	fails := 1
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done && fails > 0 {
			fails--
			return &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest does not answer"}
		}
		return nil
	})
	in, key := api.ForkTree{Count: n(1)}, testplane.Key("k", "body")
	_, err := f.ForkTree(t.Context(), testplane.Caller, sb.ID, in, key)
	testplane.Want(t, err, apierror.EInternal, "sandbox failed to start")
	// The key of a fork without any child can be used again.
	first, err := f.ForkTree(t.Context(), testplane.Caller, sb.ID, in, key)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.ForkTree(t.Context(), testplane.Caller, sb.ID, in, key)
	if err != nil || again.TreeID != first.TreeID || again.Children[0].ID != first.Children[0].ID || again.PauseMS != first.PauseMS {
		t.Fatalf("%+v, then %+v, %v", first, again, err)
	}
	_, err = f.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{Count: n(2)}, testplane.Key("k", "another body"))
	testplane.Want(t, err, apierror.EConflict, "idempotency key reused")
	// The same key for another route or workspace is independent.
	if other, err := f.Fork(t.Context(), testplane.Caller, sb.ID, api.Fork{Count: n(1)}, key); err != nil || other.Children[0].ID == first.Children[0].ID {
		t.Fatalf("%+v, %v", other, err)
	}
	if rows := r.Settled(r.H1); len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	if err := r.Delete(t.Context(), testplane.Caller, first.Children[0].ID); err != nil {
		t.Fatal(err)
	}
	again, err = f.ForkTree(t.Context(), testplane.Caller, sb.ID, in, key)
	if diff := cmp.Diff(first, again); err != nil || diff != "" {
		t.Errorf("after the delete: %s, %v", diff, err)
	}
}

// All who wait for one fork get the same result.
func TestARepetitionOfAForkUnderWay(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := r.Node.Forks
	sb := r.Must(t, api.CreateSandbox{})
	begun, hold := make(chan struct{}), make(chan struct{})
	var puts atomic.Int32
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op != "put" || c.Done {
			return nil
		}
		first := puts.Add(1) == 1
		if first {
			close(begun)
		}
		<-hold
		if first {
			return &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest does not answer"}
		}
		return nil
	})
	type answer struct {
		api.ForkedTree
		err error
	}
	answers := make(chan answer)
	call := func() {
		out, err := f.ForkTree(t.Context(), testplane.Caller, sb.ID, api.ForkTree{Count: n(2)}, testplane.Key("k", "body"))
		answers <- answer{out, err}
	}
	go call()
	<-begun
	go call()
	testcluster.Await(t, "two who wait", func() bool {
		var stacks strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
			t.Error(err)
		}
		return strings.Count(stacks.String(), "(*Forks).awaitFork(") == 2
	})
	close(hold)
	for range 2 {
		if a := <-answers; a.err != nil || len(a.Children) != 1 || len(a.Failed) != 1 || a.PauseMS == 0 {
			t.Errorf("%+v", a)
		}
	}
	go call() // nor otherwise once it is over
	if a := <-answers; a.err != nil || len(a.Children) != 1 || len(a.Failed) != 1 || a.PauseMS == 0 {
		t.Errorf("afterwards: %+v", a)
	}
	r.Settled(r.H1)
}

func TestWarmForkStopsItsParent(t *testing.T) {
	r := testplane.NewRig(t, 1)
	f := r.Node.Forks
	sb := r.Must(t, api.CreateSandbox{})
	out, err := f.Fork(t.Context(), testplane.Caller, sb.ID, api.Fork{Mode: new(api.ForkMode("warm"))}, core.Idempotency{})
	if err != nil || len(out.Children) != 1 || out.Mode != "warm" || out.PauseMS == 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	if s, _ := r.Get(t.Context(), testplane.Caller, sb.ID); s.Status != "paused" {
		t.Fatalf("the parent is %s", s.Status)
	}
	if s, err := r.Resume(t.Context(), testplane.Caller, sb.ID); err != nil || s.Status != "running" {
		t.Fatalf("%+v, %v", s, err)
	}
	r.Settled(r.H1)
}

func TestSnapshots(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{Env: map[string]string{"A": "1", "B": "1"}})
	other := r.Must(t, api.CreateSandbox{})
	_, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{Name: strings.Repeat("n", 64)}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "invalid name")

	var snaps []api.Snapshot
	for i, id := range []string{sb.ID, sb.ID, other.ID} {
		in, key := api.CreateSnapshot{Name: fmt.Sprint(i)}, testplane.Key(fmt.Sprint(i), "body")
		s, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, id, in, key)
		if err != nil || s.SandboxID != id || s.Status != "ready" || s.MemoryBytes == 0 || s.Name != fmt.Sprint(i) {
			t.Fatalf("%+v, %v", s, err)
		}
		if again, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, id, in, key); err != nil || again.ID != s.ID {
			t.Fatalf("%+v, %v", again, err)
		}
		snaps = append(snaps, s)
	}
	list := func(c core.Caller, sandboxID string, o core.ListOptions) (ids []string, next string) {
		page, next, err := r.Node.Snapshots.List(t.Context(), c, sandboxID, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page {
			ids = append(ids, s.ID)
		}
		return ids, next
	}
	if all, _ := list(testplane.Caller, "", core.ListOptions{}); !slices.Equal(all, []string{snaps[2].ID, snaps[1].ID, snaps[0].ID}) {
		t.Errorf("%v", all)
	}
	page, next := list(testplane.Caller, sb.ID, core.ListOptions{Limit: 1})
	rest, _ := list(testplane.Caller, sb.ID, core.ListOptions{Limit: 5, Cursor: next})
	if !slices.Equal(append(page, rest...), []string{snaps[1].ID, snaps[0].ID}) {
		t.Errorf("%v, then %v", page, rest)
	}
	if none, _ := list(testplane.Stranger, "", core.ListOptions{}); len(none) != 0 {
		t.Errorf("another workspace sees %v", none)
	}
	_, err = r.Node.Snapshots.Get(t.Context(), testplane.Stranger, snaps[0].ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	testplane.Want(t, r.Node.Snapshots.Delete(t.Context(), testplane.Stranger, snaps[0].ID), apierror.ENotFound, "not found")

	// A sandbox from the snapshot, with its environment overridden.
	_, err = r.Create(t.Context(), testplane.Stranger, api.CreateSandbox{Template: "base", FromSnapshot: snaps[0].ID}, core.Idempotency{})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "node", FromSnapshot: snaps[0].ID}, core.Idempotency{})
	testplane.Want(t, err, apierror.EInvalid, "template does not match the snapshot")
	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil { // it does not need its sandbox
		t.Fatal(err)
	}
	made := r.Must(t, api.CreateSandbox{FromSnapshot: snaps[0].ID, Env: map[string]string{"B": "2"}})
	spec := r.H1.Spec(made.ID)
	if core.OrZero(made.FromSnapshot) != snaps[0].ID || spec.Capture != snaps[0].ID || !maps.Equal(spec.Env, map[string]string{"A": "1", "B": "2"}) ||
		spec.Origin["from_snapshot"] != snaps[0].ID {
		t.Fatalf("%+v", spec)
	}
	for _, s := range snaps {
		if err := r.Node.Snapshots.Delete(t.Context(), testplane.Caller, s.ID); err != nil {
			t.Fatal(err)
		}
		testplane.Want(t, r.Node.Snapshots.Delete(t.Context(), testplane.Caller, s.ID), apierror.ENotFound, "not found")
	}
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: snaps[0].ID}, core.Idempotency{})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	again, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, other.ID, api.CreateSnapshot{Name: "2"}, testplane.Key("2", "body"))
	if err != nil || again.ID != snaps[2].ID {
		t.Errorf("a key whose snapshot is gone: %+v, %v", again, err)
	}
	r.Settled(r.H1)
}

func TestASnapshotsHostIsFullOrGone(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	store := fakehost.NewStore()
	r.H1.SetStore(store)
	h2 := r.Host("h2", 512+32)
	h2.SetStore(store)
	testcluster.Await(t, "the stores", func() bool {
		s := r.LeaderNode().Hosts.Sessions()
		return s["h1"].Heartbeat.Store && s["h2"].Heartbeat.Store
	})
	sb := r.Must(t, api.CreateSandbox{})
	stored, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	if err != nil || !stored.Stored {
		t.Fatalf("%+v, %v", stored, err)
	}
	r.H1.SetStore(nil)
	testcluster.Await(t, "the heartbeat", func() bool { return !r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Store })
	local, err := r.Node.Snapshots.Create(t.Context(), testplane.Caller, sb.ID, api.CreateSnapshot{}, core.Idempotency{})
	if err != nil || local.Stored {
		t.Fatalf("%+v, %v", local, err)
	}
	near := r.Must(t, api.CreateSandbox{FromSnapshot: stored.ID})
	if near.AgentID != "h1" {
		t.Fatalf("it is on %s, the snapshot on h1", near.AgentID)
	}
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}
		}
		return nil
	})
	if far := r.Must(t, api.CreateSandbox{FromSnapshot: stored.ID}); far.AgentID != "h2" {
		t.Fatalf("it is on %s", far.AgentID)
	}
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: local.ID}, core.Idempotency{})
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")

	// A damaged snapshot is refused, with what is damaged.
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeBadSnapshot, Message: "snapshot refused", Detail: "chunk 7 is damaged"}
		}
		return nil
	})
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: local.ID}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EUnprocessable, "snapshot cannot be restored"); !strings.Contains(e.Detail, "chunk 7 is damaged") {
		t.Errorf("detail %q", e.Detail)
	}
	r.H1.SetFault(nil)

	r.H1.Silence(true)
	testcluster.Await(t, "the snapshot's end", func() bool {
		s, err := r.Node.Snapshots.Get(t.Context(), testplane.Caller, local.ID)
		return err == nil && s.Status == "lost"
	})
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base", FromSnapshot: local.ID}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.EBadGateway, "no available compute node"); e.Detail == "" {
		t.Error("no detail")
	}
	r.H1.Silence(false)
	testcluster.Await(t, "the snapshot's return", func() bool {
		s, err := r.Node.Snapshots.Get(t.Context(), testplane.Caller, local.ID)
		return err == nil && s.Status == "ready"
	})
	// The disk that had it is new.
	r.H1.DropCapture(local.ID)
	testcluster.Await(t, "the snapshot's end", func() bool {
		row, ok := raftstore.Get(r.Leader().Store.View(), record.Snapshots, local.ID)
		return ok && row.Status == record.ResourceLost
	})
}
