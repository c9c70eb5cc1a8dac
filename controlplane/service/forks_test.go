package service_test

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
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

var stranger = service.Caller{WorkspaceID: "other", KeyID: "k2", RequestID: "req"}

func (r *rig) forks() *service.Forks { return service.NewForks(r.Sandboxes, r.LeaderNode().Forks) }

func n(i int) *int { return &i }

// key makes a call repeatable.
func key(name, body string) service.Idempotency {
	return service.Idempotency{Key: name, BodySHA256: []byte(body)}
}

func TestForkRefusesBadInput(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	sb := r.must(t, service.CreateSandbox{})
	big := json.RawMessage(fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", 17<<10)))
	for name, c := range map[string]struct {
		in      service.Fork
		tree    bool
		message string
	}{
		"count 0":              {service.Fork{Count: n(0)}, false, "count must be from 1 to 16"},
		"count 17":             {service.Fork{Count: n(17)}, false, "count must be from 1 to 16"},
		"a tree of 0":          {service.Fork{Count: n(0)}, true, "count must be from 1 to 16"},
		"a tree of 17":         {service.Fork{Count: n(17)}, true, "count must be from 1 to 16"},
		"negative":             {service.Fork{Count: n(-1)}, true, "count must be from 1 to 16"},
		"warm with 2":          {service.Fork{Count: n(2), Mode: new("warm")}, false, "warm fork requires count 1"},
		"warm with 0":          {service.Fork{Count: n(0), Mode: new("warm")}, false, "count must be from 1 to 16"},
		"unknown mode":         {service.Fork{Mode: new("lukewarm")}, false, "unknown mode"},
		"empty mode":           {service.Fork{Mode: new("")}, false, "unknown mode"},
		"metadata is too long": {service.Fork{Metadata: big}, true, "invalid metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			call := f.Fork
			if c.tree {
				call = f.ForkTree
			}
			_, err := call(t.Context(), caller, sb.ID, c.in)
			want(t, err, apierror.EInvalid, c.message)
		})
	}
	if rows := r.Settled(r.host); len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
}

func TestForkOfWhatDoesNotRun(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	sb := r.must(t, service.CreateSandbox{})
	forks := map[string]func(context.Context, service.Caller, string) error{
		"fork": func(ctx context.Context, c service.Caller, id string) error {
			_, err := f.Fork(ctx, c, id, service.Fork{})
			return err
		},
		"warm": func(ctx context.Context, c service.Caller, id string) error {
			_, err := f.Fork(ctx, c, id, service.Fork{Mode: new("warm")})
			return err
		},
		"fork-tree": func(ctx context.Context, c service.Caller, id string) error {
			_, err := f.ForkTree(ctx, c, id, service.Fork{})
			return err
		},
		"snapshot": func(ctx context.Context, c service.Caller, id string) error {
			_, err := f.CreateSnapshot(ctx, c, id, service.CreateSnapshot{})
			return err
		},
	}
	for name, call := range forks {
		t.Run(name, func(t *testing.T) {
			want(t, call(t.Context(), stranger, sb.ID), apierror.ENotFound, "not found")
			want(t, call(t.Context(), caller, strings.Repeat("z", 26)), apierror.ENotFound, "not found")
			for _, status := range []record.SandboxStatus{record.SandboxPaused, record.SandboxHibernated} {
				r.change(sb.ID, func(s *record.Sandbox) { s.Status = status })
				want(t, call(t.Context(), caller, sb.ID), apierror.EConflict, "sandbox not running (paused or hibernated) — resume/wake it first")
			}
			r.change(sb.ID, func(s *record.Sandbox) { s.Status = record.SandboxRunning })
			// The record is behind its host.
			r.host.Become(sb.ID, hostapi.StatusPaused)
			want(t, call(t.Context(), caller, sb.ID), apierror.EConflict, "sandbox not running (paused or hibernated) — resume/wake it first")
			r.host.Become(sb.ID, hostapi.StatusRunning)
			testcluster.Await(t, 5*time.Second, "a running sandbox", func() bool { s, _ := r.Sandbox(sb.ID); return s.Status == record.SandboxRunning })
		})
	}
	r.change(sb.ID, func(s *record.Sandbox) { s.Status = record.SandboxFailed })
	for name, call := range forks {
		if e := want(t, call(t.Context(), caller, sb.ID), apierror.ENotFound, "sandbox not found or not running"); e.Detail == "" {
			t.Errorf("%s: no detail", name)
		}
	}
}

// A tree of trees: a child is forked like any sandbox, and promotion deletes its
// siblings, not its parent, not its own children.
func TestATreeOfTrees(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	ttl := int64(3600)
	root := r.must(t, service.CreateSandbox{TTLSeconds: &ttl, Env: map[string]string{"A": "1"}, Preview: new("token"), Persistent: true})
	first, err := f.ForkTree(t.Context(), caller, root.ID, service.Fork{Metadata: json.RawMessage(`{"try":1,"fork_tree_id":"forged"}`)})
	if err != nil || len(first.Children) != 2 || first.ParentID != root.ID || first.PauseMS == 0 {
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
		if c.ForkedFrom != root.ID || c.Status != "running" || *c.TTLSeconds != ttl || c.ExpiresAt.IsZero() || c.Preview != "token" || c.Persistent {
			t.Errorf("%+v", c)
		}
		if spec := r.host.Spec(c.ID); spec.Env["A"] != "1" || spec.Persistent {
			t.Errorf("%+v", spec)
		}
	}
	second, err := f.ForkTree(t.Context(), caller, first.Children[0].ID, service.Fork{Count: n(3)})
	if err != nil || len(second.Children) != 3 || second.TreeID == first.TreeID {
		t.Fatalf("%+v, %v", second, err)
	}
	child := second.Children[1].ID
	for _, tree := range []string{first.TreeID, "tree-unknown"} {
		_, _, err := f.Promote(t.Context(), caller, child, tree, true)
		if e := want(t, err, apierror.ENotFound, "not found"); e.Detail == "" {
			t.Error("no detail")
		}
	}
	_, _, err = f.Promote(t.Context(), stranger, child, second.TreeID, true)
	want(t, err, apierror.ENotFound, "not found")
	_, _, err = f.Promote(t.Context(), caller, root.ID, first.TreeID, true)
	want(t, err, apierror.ENotFound, "not found")
	_, _, err = f.Promote(t.Context(), caller, child, "", true)
	want(t, err, apierror.EInvalid, "tree_id is required")

	promoted, deleted, err := f.Promote(t.Context(), caller, child, second.TreeID, true)
	if err != nil || promoted.ID != child || len(deleted) != 2 || !strings.Contains(string(promoted.Metadata), `"fork_tree_role":"promoted"`) {
		t.Fatalf("%+v, %v, %v", promoted, deleted, err)
	}
	if rows := r.Settled(r.host); len(rows) != 4 { // root, both children, the promoted one
		t.Fatalf("%d rows", len(rows))
	}
	// Once more is the same again.
	if _, deleted, err := f.Promote(t.Context(), caller, child, second.TreeID, true); err != nil || len(deleted) != 0 {
		t.Fatalf("%v, %v", deleted, err)
	}
}

func TestForkIsRepeatable(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	sb := r.must(t, service.CreateSandbox{})
	// The first fork fails with its only child.
	fails := 1
	r.host.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done && fails > 0 {
			fails--
			return &hostapi.Error{Code: hostapi.CodeGuest, Message: "guest does not answer"}
		}
		return nil
	})
	in := service.Fork{Count: n(1), Idempotency: key("k", "body")}
	_, err := f.ForkTree(t.Context(), caller, sb.ID, in)
	want(t, err, apierror.EInternal, "sandbox failed to start")
	// The key of a fork that left nothing is free again.
	first, err := f.ForkTree(t.Context(), caller, sb.ID, in)
	if err != nil {
		t.Fatal(err)
	}
	again, err := f.ForkTree(t.Context(), caller, sb.ID, in)
	if err != nil || again.TreeID != first.TreeID || again.Children[0].ID != first.Children[0].ID || again.PauseMS != first.PauseMS {
		t.Fatalf("%+v, then %+v, %v", first, again, err)
	}
	_, err = f.ForkTree(t.Context(), caller, sb.ID, service.Fork{Count: n(2), Idempotency: key("k", "another body")})
	want(t, err, apierror.EConflict, "idempotency key reused")
	// Another route and another workspace have keys of their own.
	if other, err := f.Fork(t.Context(), caller, sb.ID, in); err != nil || other.Children[0].ID == first.Children[0].ID {
		t.Fatalf("%+v, %v", other, err)
	}
	if rows := r.Settled(r.host); len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	if err := r.Delete(t.Context(), caller, first.Children[0].ID); err != nil {
		t.Fatal(err)
	}
	_, err = f.ForkTree(t.Context(), caller, sb.ID, in)
	want(t, err, apierror.ENotFound, "not found") // as of any key whose resource is gone
}

// All who wait for one fork are told the same of it.
func TestARepetitionOfAForkUnderWay(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	sb := r.must(t, service.CreateSandbox{})
	begun, hold := make(chan struct{}), make(chan struct{})
	var puts atomic.Int32
	r.host.SetFault(func(_ context.Context, c fakehost.Call) error {
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
		service.Forked
		err error
	}
	answers := make(chan answer)
	call := func() {
		out, err := f.ForkTree(t.Context(), caller, sb.ID, service.Fork{Count: n(2), Idempotency: key("k", "body")})
		answers <- answer{out, err}
	}
	go call()
	<-begun
	go call()
	testcluster.Await(t, 10*time.Second, "two who wait", func() bool {
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
	r.Settled(r.host)
}

func TestWarmForkStopsItsParent(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	sb := r.must(t, service.CreateSandbox{})
	out, err := f.Fork(t.Context(), caller, sb.ID, service.Fork{Mode: new("warm")})
	if err != nil || len(out.Children) != 1 || out.Mode != "warm" || out.PauseMS == 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	if s, _ := r.Get(t.Context(), caller, sb.ID); s.Status != "paused" {
		t.Fatalf("the parent is %s", s.Status)
	}
	if s, err := r.Resume(t.Context(), caller, sb.ID); err != nil || s.Status != "running" {
		t.Fatalf("%+v, %v", s, err)
	}
	r.Settled(r.host)
}

func TestSnapshots(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	sb := r.must(t, service.CreateSandbox{Env: map[string]string{"A": "1", "B": "1"}})
	other := r.must(t, service.CreateSandbox{})
	_, err := f.CreateSnapshot(t.Context(), caller, sb.ID, service.CreateSnapshot{Name: strings.Repeat("n", 64)})
	want(t, err, apierror.EInvalid, "invalid name")

	var snaps []service.Snapshot
	for i, id := range []string{sb.ID, sb.ID, other.ID} {
		in := service.CreateSnapshot{Name: fmt.Sprint(i), Idempotency: key(fmt.Sprint(i), "body")}
		s, err := f.CreateSnapshot(t.Context(), caller, id, in)
		if err != nil || s.SandboxID != id || s.Status != "ready" || s.MemoryBytes == 0 || s.Name != fmt.Sprint(i) {
			t.Fatalf("%+v, %v", s, err)
		}
		if again, err := f.CreateSnapshot(t.Context(), caller, id, in); err != nil || again.ID != s.ID {
			t.Fatalf("%+v, %v", again, err)
		}
		snaps = append(snaps, s)
	}
	list := func(c service.Caller, sandboxID string, o service.ListOptions) (ids []string, next string) {
		page, next, err := f.ListSnapshots(t.Context(), c, sandboxID, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page {
			ids = append(ids, s.ID)
		}
		return ids, next
	}
	if all, _ := list(caller, "", service.ListOptions{}); !slices.Equal(all, []string{snaps[2].ID, snaps[1].ID, snaps[0].ID}) {
		t.Errorf("%v", all)
	}
	page, next := list(caller, sb.ID, service.ListOptions{Limit: 1})
	rest, _ := list(caller, sb.ID, service.ListOptions{Limit: 5, Cursor: next})
	if !slices.Equal(append(page, rest...), []string{snaps[1].ID, snaps[0].ID}) {
		t.Errorf("%v, then %v", page, rest)
	}
	if none, _ := list(stranger, "", service.ListOptions{}); len(none) != 0 {
		t.Errorf("another workspace sees %v", none)
	}
	_, err = f.GetSnapshot(t.Context(), stranger, snaps[0].ID)
	want(t, err, apierror.ENotFound, "not found")
	want(t, f.DeleteSnapshot(t.Context(), stranger, snaps[0].ID), apierror.ENotFound, "not found")

	// A sandbox from it, over its environment.
	_, err = r.Create(t.Context(), stranger, service.CreateSandbox{Template: "base", FromSnapshot: snaps[0].ID})
	want(t, err, apierror.ENotFound, "not found")
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "node", FromSnapshot: snaps[0].ID})
	want(t, err, apierror.EInvalid, "template does not match the snapshot")
	if err := r.Delete(t.Context(), caller, sb.ID); err != nil { // it does not need its sandbox
		t.Fatal(err)
	}
	made := r.must(t, service.CreateSandbox{FromSnapshot: snaps[0].ID, Env: map[string]string{"B": "2"}})
	spec := r.host.Spec(made.ID)
	if made.FromSnapshot != snaps[0].ID || spec.Capture != snaps[0].ID || !maps.Equal(spec.Env, map[string]string{"A": "1", "B": "2"}) ||
		spec.Origin["from_snapshot"] != snaps[0].ID {
		t.Fatalf("%+v", spec)
	}
	for _, s := range snaps {
		if err := f.DeleteSnapshot(t.Context(), caller, s.ID); err != nil {
			t.Fatal(err)
		}
		want(t, f.DeleteSnapshot(t.Context(), caller, s.ID), apierror.ENotFound, "not found")
	}
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", FromSnapshot: snaps[0].ID})
	want(t, err, apierror.ENotFound, "not found")
	_, err = f.CreateSnapshot(t.Context(), caller, other.ID, service.CreateSnapshot{Name: "2", Idempotency: key("2", "body")})
	want(t, err, apierror.ENotFound, "not found") // the key's snapshot is gone
	r.Settled(r.host)
}

func TestASnapshotsHostIsFullOrGone(t *testing.T) {
	r := newRig(t)
	f := r.forks()
	store := fakehost.NewStore()
	r.host.SetStore(store)
	h2 := r.Host("h2", 512+32)
	h2.SetStore(store)
	testcluster.Await(t, 5*time.Second, "the stores", func() bool {
		s := r.LeaderNode().Hosts.Sessions()
		return s["h1"].Heartbeat.Store && s["h2"].Heartbeat.Store
	})
	sb := r.must(t, service.CreateSandbox{})
	stored, err := f.CreateSnapshot(t.Context(), caller, sb.ID, service.CreateSnapshot{})
	if err != nil || !stored.Stored {
		t.Fatalf("%+v, %v", stored, err)
	}
	r.host.SetStore(nil)
	testcluster.Await(t, 5*time.Second, "the heartbeat", func() bool { return !r.LeaderNode().Hosts.Sessions()["h1"].Heartbeat.Store })
	local, err := f.CreateSnapshot(t.Context(), caller, sb.ID, service.CreateSnapshot{})
	if err != nil || local.Stored {
		t.Fatalf("%+v, %v", local, err)
	}
	near := r.must(t, service.CreateSandbox{FromSnapshot: stored.ID})
	if near.AgentID != "h1" {
		t.Fatalf("it is on %s, the snapshot on h1", near.AgentID)
	}
	r.host.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}
		}
		return nil
	})
	if far := r.must(t, service.CreateSandbox{FromSnapshot: stored.ID}); far.AgentID != "h2" {
		t.Fatalf("it is on %s", far.AgentID)
	}
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", FromSnapshot: local.ID})
	want(t, err, apierror.EBadGateway, "no available compute node")

	// A damaged one is refused, by name.
	r.host.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			return &hostapi.Error{Code: hostapi.CodeBadSnapshot, Message: "snapshot refused", Detail: "chunk 7 is damaged"}
		}
		return nil
	})
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", FromSnapshot: local.ID})
	if e := want(t, err, apierror.EUnprocessable, "snapshot cannot be restored"); !strings.Contains(e.Detail, "chunk 7 is damaged") {
		t.Errorf("detail %q", e.Detail)
	}
	r.host.SetFault(nil)

	r.host.Silence(true)
	testcluster.Await(t, 10*time.Second, "the snapshot's end", func() bool {
		s, err := f.GetSnapshot(t.Context(), caller, local.ID)
		return err == nil && s.Status == "lost"
	})
	_, err = r.Create(t.Context(), caller, service.CreateSandbox{Template: "base", FromSnapshot: local.ID})
	if e := want(t, err, apierror.EBadGateway, "no available compute node"); e.Detail == "" {
		t.Error("no detail")
	}
	r.host.Silence(false)
	testcluster.Await(t, 10*time.Second, "the snapshot's return", func() bool {
		s, err := f.GetSnapshot(t.Context(), caller, local.ID)
		return err == nil && s.Status == "ready"
	})
	// The disk that had it is new.
	r.host.DropCapture(local.ID)
	testcluster.Await(t, 10*time.Second, "the snapshot's end", func() bool {
		row, ok := raftstore.Get(r.Leader().Store.View(), record.Snapshots, local.ID)
		return ok && row.Status == record.ResourceLost
	})
}
