package flow_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig runs an engine on each replica of a cluster while it leads.
type rig struct {
	*testcluster.Cluster
	t       testing.TB
	engines map[string]*flow.Engine
}

func newRig(t testing.TB, replicas int, fault func(f *record.Flow, at flow.Point) error, kinds ...flow.Kind) *rig {
	t.Helper()
	return newRigWith(t, replicas, testcluster.Log(), fault, kinds...)
}

func newRigWith(t testing.TB, replicas int, log *slog.Logger, fault func(f *record.Flow, at flow.Point) error, kinds ...flow.Kind) *rig {
	t.Helper()
	r := &rig{Cluster: testcluster.New(t, replicas), t: t, engines: map[string]*flow.Engine{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, rep := range r.Replicas {
		e := flow.NewEngine(flow.Config{
			Store: rep.Store, Clock: time.Now, Random: func() float64 { return 0 }, Logger: log, Fault: fault,
		})
		if err := e.Register(kinds...); err != nil {
			t.Fatal(err)
		}
		r.engines[rep.ID] = e
		wg.Go(func() { loops.WhileLeading(ctx, rep.Store.Leadership(), e.Run) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

func (r *rig) begin(n flow.New) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error { return flow.Begin(tx, n) })
}

// wait waits for a flow on the replica that runs it.
func (r *rig) wait(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return r.engines[r.Leader().ID].Wait(ctx, id, nil)
}

func (r *rig) gone(id string) {
	r.t.Helper()
	testcluster.Await(r.t, "end of flow "+id, func() bool {
		_, live := raftstore.Get(r.Leader().Store.View(), record.Flows, id)
		return !live
	})
}

// mark writes a workspace row, as the visible effect of a commit.
func mark(tx *raftstore.Tx, id string) {
	raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}})
}

func count(v raftstore.Reader) int { return len(raftstore.All(v, record.Workspaces)) }

// threeSteps commits one row in each of its steps a, b and c; a row that is
// there already means that a commit took effect twice.
func threeSteps(acted func(step string) error) flow.Kind {
	step := func(name string, next flow.Next) flow.Step {
		return func(context.Context, flow.Run) (flow.Commit, error) {
			if err := acted(name); err != nil {
				return nil, err
			}
			return func(tx *raftstore.Tx) (flow.Next, error) {
				if _, twice := raftstore.Get(tx, record.Workspaces, name); twice {
					return flow.Fail(fmt.Errorf("step %s took effect twice", name)), nil
				}
				mark(tx, name)
				return next, nil
			}, nil
		}
	}
	return flow.Kind{Name: "three", Steps: map[string]flow.Step{
		"a": step("a", flow.Goto("b", map[string]int{"n": 1})),
		"b": step("b", flow.Sleep("c", 20*time.Millisecond, nil)),
		"c": step("c", flow.Done()),
	}}
}

func three(id string) flow.New {
	return flow.New{ID: id, Kind: "three", Subject: flow.Subject("test", id), Step: "a"}
}

func TestFlowRunsItsStepsInOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	r := newRig(t, 1, nil, threeSteps(func(s string) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
		return nil
	}))
	r.begin(three("f1"))
	if err := r.wait("f1"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(order, []string{"a", "b", "c"}) || count(r.Leader().Store.View()) != 3 {
		t.Fatalf("steps %v, %d rows", order, count(r.Leader().Store.View()))
	}
}

func TestFailureIsToldToTheWaiter(t *testing.T) {
	want := apierror.Unreachable("h1 is full", errors.New("for the log"))
	r := newRig(t, 1, nil, flow.Kind{Name: "k", Steps: map[string]flow.Step{
		"a": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Fail(want), nil }, nil
		},
	}})
	r.begin(flow.New{ID: "f1", Kind: "k", Subject: "x/1", Step: "a"})
	var got *apierror.Error
	if err := r.wait("f1"); !errors.As(err, &got) || !errors.Is(err, want) || got.Detail != "h1 is full" || got.RetryAfter != time.Second || got.Err != nil {
		t.Fatalf("%+v, want %v", err, want)
	}
	if err := r.wait("never"); !errors.Is(err, flow.ErrOutcomeUnknown) {
		t.Fatalf("unknown flow: %v", err)
	}
}

// Wherever a flow is dropped, and however often each step runs, the flow ends once
// with every effect in place.
func TestDroppedAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"a", "b", "c"} {
		for _, at := range []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit} {
			t.Run(step+" "+string(at), func(t *testing.T) {
				var dropped, acts atomic.Int64
				fault := func(f *record.Flow, p flow.Point) error {
					if f.Step == step && p == at && dropped.Add(1) == 1 {
						return errors.New("crash")
					}
					return nil
				}
				r := newRig(t, 1, fault, threeSteps(func(s string) error {
					if s == step {
						acts.Add(1)
					}
					return nil
				}))
				r.begin(three("f1"))
				if err := r.wait("f1"); err != nil {
					t.Fatal(err)
				}
				if count(r.Leader().Store.View()) != 3 {
					t.Fatal("an effect is missing")
				}
				if at == flow.BeforeCommit && acts.Load() != 2 {
					t.Fatalf("the step acted %d times, want 2", acts.Load())
				}
			})
		}
	}
}

// The leader is lost at every point of every step; its successor ends the flow.
func TestLeaderChangesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"a", "b", "c"} {
		for _, at := range []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit} {
			t.Run(step+" "+string(at), func(t *testing.T) {
				var once sync.Once
				var r *rig
				cut := make(chan *testcluster.Replica, 1)
				fault := func(f *record.Flow, p flow.Point) error {
					if f.Step == step && p == at {
						once.Do(func() {
							l := r.Leader()
							r.Cut(l)
							cut <- l
						})
					}
					return nil
				}
				r = newRig(t, 3, fault, threeSteps(func(string) error { return nil }))
				r.begin(three("f1"))
				old := <-cut
				r.gone("f1")
				if l := r.Leader(); l == old {
					t.Fatal("the leader did not change")
				}
				if n := count(r.Leader().Store.View()); n != 3 {
					t.Fatalf("%d effects, want 3", n)
				}
				r.Heal(old)
			})
		}
	}
}

func TestStepsThatFailAreTriedAgain(t *testing.T) {
	var tries atomic.Int64
	r := newRig(t, 1, nil, threeSteps(func(s string) error {
		if s == "b" && tries.Add(1) <= 3 {
			return errors.New("host does not answer")
		}
		return nil
	}))
	r.begin(three("f1"))
	testcluster.Await(t, "attempt 2 written down", func() bool {
		f, ok := raftstore.Get(r.Leader().Store.View(), record.Flows, "f1")
		return ok && f.Attempt == 2 && f.Error != "" && f.WakeAt.After(f.UpdatedAt)
	})
	if err := r.wait("f1"); err != nil {
		t.Fatal(err)
	}
}

func TestAPanicIsAFailure(t *testing.T) {
	var tries atomic.Int64
	r := newRig(t, 1, nil, threeSteps(func(s string) error {
		if s == "a" && tries.Add(1) == 1 {
			panic("boom")
		}
		return nil
	}))
	r.begin(three("f1"))
	if err := r.wait("f1"); err != nil {
		t.Fatal(err)
	}
}

func TestDeadlineSendsTheFlowToExpire(t *testing.T) {
	expired := &apierror.Error{Code: apierror.EInternal, Message: "too late"}
	kind := flow.Kind{Name: "k", Expire: "expire", Steps: map[string]flow.Step{
		"a": func(context.Context, flow.Run) (flow.Commit, error) { return nil, errors.New("never works") },
		"expire": func(_ context.Context, run flow.Run) (flow.Commit, error) {
			if !run.Flow.Deadline.IsZero() {
				return nil, errors.New("still has a deadline")
			}
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Fail(expired), nil }, nil
		},
	}}
	r := newRig(t, 1, nil, kind)
	r.begin(flow.New{ID: "f1", Kind: "k", Subject: "x/1", Step: "a", Deadline: time.Now().Add(300 * time.Millisecond)})
	if err := r.wait("f1"); !errors.Is(err, expired) {
		t.Fatalf("%v, want %v", err, expired)
	}
}

func TestOneLiveFlowASubject(t *testing.T) {
	r := newRig(t, 1, nil, flow.Kind{Name: "k", Steps: map[string]flow.Step{
		"a": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Sleep("a", time.Hour, nil), nil }, nil
		},
	}})
	r.begin(flow.New{ID: "f1", Kind: "k", Subject: "x/1", Step: "a"})
	err := r.Leader().Store.Update(t.Context(), func(tx *raftstore.Tx) error {
		return flow.Begin(tx, flow.New{ID: "f2", Kind: "k", Subject: "x/1", Step: "a"})
	})
	if !errors.Is(err, raftstore.ErrConflict) {
		t.Fatalf("%v, want ErrConflict", err)
	}
}

// A flow that is preempted has its Act cancelled, its commit refused, and its
// successor on the subject waits until it is out of the way.
func TestPreempt(t *testing.T) {
	acting, cancelled := make(chan struct{}), make(chan struct{})
	var busy, overlap atomic.Bool
	kind := flow.Kind{Name: "k", Steps: map[string]flow.Step{
		"hang": func(ctx context.Context, _ flow.Run) (flow.Commit, error) {
			busy.Store(true)
			defer busy.Store(false)
			close(acting)
			<-ctx.Done()
			close(cancelled)
			return func(tx *raftstore.Tx) (flow.Next, error) { mark(tx, "wrong"); return flow.Done(), nil }, nil
		},
		"clean": func(context.Context, flow.Run) (flow.Commit, error) {
			overlap.Store(busy.Load())
			return func(tx *raftstore.Tx) (flow.Next, error) { mark(tx, "clean"); return flow.Done(), nil }, nil
		},
	}}
	r := newRig(t, 1, nil, kind)
	r.begin(flow.New{ID: "f1", Kind: "k", Subject: "x/1", Step: "hang"})
	<-acting
	r.Update(func(tx *raftstore.Tx) error {
		return flow.Preempt(tx, flow.New{ID: "f2", Kind: "k", Subject: "x/1", Step: "clean"})
	})
	<-cancelled
	if err := r.wait("f2"); err != nil {
		t.Fatal(err)
	}
	if err := r.wait("f1"); !errors.Is(err, flow.ErrPreempted) {
		t.Fatalf("preempted flow: %v", err)
	}
	v := r.Leader().Store.View()
	if _, wrong := raftstore.Get(v, record.Workspaces, "wrong"); wrong || overlap.Load() || count(v) != 1 {
		t.Fatalf("the preempted flow committed: %t; both ran at once: %t", wrong, overlap.Load())
	}
}

// waiting waits until a workspace "signal" exists.
func waiting() flow.Kind {
	return flow.Kind{Name: "w", Steps: map[string]flow.Step{
		"look": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(tx *raftstore.Tx) (flow.Next, error) {
				if _, ok := raftstore.Get(tx, record.Workspaces, "signal"); ok {
					return flow.Done(), nil
				}
				return flow.Wait("look", time.Hour, nil, record.Workspaces.Name), nil
			}, nil
		},
	}}
}

func TestWaitWakesOnAChange(t *testing.T) {
	r := newRig(t, 1, nil, waiting())
	r.begin(flow.New{ID: "f1", Kind: "w", Subject: "x/1", Step: "look"})
	testcluster.Await(t, "the flow to wait", func() bool {
		f, ok := raftstore.Get(r.Leader().Store.View(), record.Flows, "f1")
		return ok && len(f.WaitFor) == 1
	})
	r.Update(func(tx *raftstore.Tx) error { mark(tx, "signal"); return nil })
	if err := r.wait("f1"); err != nil {
		t.Fatal(err)
	}
}

// Flows that wait for a table look again at each of its changes. If each wrote its row then,
// those of one workspace could take all that the log can write.
func TestFlowsThatWaitOnWriteNothing(t *testing.T) {
	var looks atomic.Int64
	kind := waiting()
	look := kind.Steps["look"]
	kind.Steps["look"] = func(ctx context.Context, run flow.Run) (flow.Commit, error) {
		looks.Add(1)
		return look(ctx, run)
	}
	r := newRig(t, 1, nil, kind)
	const many = 20
	r.Update(func(tx *raftstore.Tx) error {
		for i := range many {
			id := fmt.Sprintf("w%d", i)
			if err := flow.Begin(tx, flow.New{ID: id, Kind: "w", Subject: "x/" + id, Step: "look"}); err != nil {
				return err
			}
		}
		return nil
	})
	store := r.Leader().Store
	testcluster.Await(t, "the flows to wait", func() bool {
		return !slices.ContainsFunc(raftstore.All(store.View(), record.Flows), func(f *record.Flow) bool { return len(f.WaitFor) == 0 })
	})
	before := store.View().Index()
	const changes = 5
	for i := range changes {
		seen := looks.Load()
		r.Update(func(tx *raftstore.Tx) error { mark(tx, fmt.Sprintf("other%d", i)); return nil })
		testcluster.Await(t, "the flows to look again", func() bool { return looks.Load() >= seen+many })
	}
	if wrote := store.View().Index() - before; wrote != changes {
		t.Errorf("%d changes of the table made %d writes", changes, wrote)
	}
	r.Update(func(tx *raftstore.Tx) error { mark(tx, "signal"); return nil })
	for i := range many {
		if err := r.wait(fmt.Sprintf("w%d", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// However many flows wait, another one gets its turn.
func TestFlowsThatWaitHoldNobodyUp(t *testing.T) {
	r := newRig(t, 1, nil, waiting(), threeSteps(func(string) error { return nil }))
	const many = 600
	r.Update(func(tx *raftstore.Tx) error {
		for i := range many {
			id := fmt.Sprintf("w%d", i)
			if err := flow.Begin(tx, flow.New{ID: id, Kind: "w", Subject: "x/" + id, Step: "look"}); err != nil {
				return err
			}
		}
		return nil
	})
	testcluster.Await(t, "all to wait", func() bool {
		n := 0
		for _, f := range raftstore.All(r.Leader().Store.View(), record.Flows) {
			if len(f.WaitFor) > 0 {
				n++
			}
		}
		return n == many
	})
	r.begin(three("f1"))
	r.gone("f1")
}

// However many flows hang in calls to one host, those of other hosts continue, and
// so do those of another kind on the same host.
func TestFlowsThatHangHoldUpTheirOwnHostAlone(t *testing.T) {
	var hanging atomic.Int64
	host := func(_ raftstore.Reader, f *record.Flow) string { return strings.Split(f.Subject, "/")[1] }
	hang := flow.Kind{Name: "hang", Host: host, Steps: map[string]flow.Step{
		"call": func(ctx context.Context, run flow.Run) (flow.Commit, error) {
			if strings.HasPrefix(run.Flow.Subject, "x/dead") {
				hanging.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }, nil
		},
	}}
	other := threeSteps(func(string) error { return nil })
	other.Host = host
	r := newRig(t, 1, nil, hang, other)
	const dead, each = 6, 100
	for h := range dead {
		r.Update(func(tx *raftstore.Tx) error {
			for i := range each {
				id := fmt.Sprintf("dead%d-%d", h, i)
				if err := flow.Begin(tx, flow.New{ID: id, Kind: "hang", Subject: fmt.Sprintf("x/dead%d/%s", h, id), Step: "call"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	testcluster.Await(t, "many to hang", func() bool { return hanging.Load() >= dead*64 })
	r.begin(flow.New{ID: "live", Kind: "hang", Subject: "x/live/1", Step: "call"})
	r.gone("live")
	same := three("same")
	same.Subject = "x/dead0/same"
	r.begin(same)
	r.gone("same")
	if n := hanging.Load(); n != dead*64 {
		t.Errorf("%d hang at once", n)
	}
}

// Guests decide how long a host takes for them, so flows that hang there hold up those of
// their own workspace.
func TestFlowsThatHangHoldUpTheirOwnWorkspace(t *testing.T) {
	tooLate := &apierror.Error{Code: apierror.EInternal, Message: "too late"}
	var hanging atomic.Int64
	part := func(n int) func(raftstore.Reader, *record.Flow) string {
		return func(_ raftstore.Reader, f *record.Flow) string { return strings.Split(f.Subject, "/")[n] }
	}
	kind := flow.Kind{Name: "hang", Expire: "expire", Host: part(1), Workspace: part(2), Steps: map[string]flow.Step{
		"call": func(ctx context.Context, run flow.Run) (flow.Commit, error) {
			if strings.HasPrefix(run.Flow.Subject, "x/host/bad/") {
				hanging.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Done(), nil }, nil
		},
		"expire": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Fail(tooLate), nil }, nil
		},
	}}
	r := newRig(t, 1, nil, kind)
	const most, each = 64, 150
	for at := 0; at < 2*each; at += each {
		r.Update(func(tx *raftstore.Tx) error {
			for i := range each {
				id := fmt.Sprintf("f%d", at+i)
				if err := flow.Begin(tx, flow.New{ID: id, Kind: "hang", Subject: "x/host/bad/" + id, Step: "call"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	testcluster.Await(t, "many to hang", func() bool { return hanging.Load() >= most })
	r.begin(flow.New{ID: "good", Kind: "hang", Subject: "x/host/good/1", Step: "call"})
	r.gone("good")
	r.begin(flow.New{ID: "elsewhere", Kind: "hang", Subject: "x/another/bad/1", Step: "call"})
	r.gone("elsewhere")
	r.begin(flow.New{ID: "late", Kind: "hang", Subject: "x/host/bad/late", Step: "call", Deadline: time.Now().Add(300 * time.Millisecond)})
	if err := r.wait("late"); !errors.Is(err, tooLate) {
		t.Errorf("behind its deadline: %v, want %v", err, tooLate)
	}
	if n := hanging.Load(); n != most {
		t.Errorf("%d hang at once", n)
	}
}

// A flow that waits behind others that hang on its host still ends at its deadline.
func TestADeadlineBehindFlowsThatHang(t *testing.T) {
	tooLate := &apierror.Error{Code: apierror.EInternal, Message: "too late"}
	var hanging atomic.Int64
	kind := flow.Kind{
		Name: "hang", Expire: "expire", Host: func(raftstore.Reader, *record.Flow) string { return "dead" },
		Steps: map[string]flow.Step{
			"call": func(ctx context.Context, _ flow.Run) (flow.Commit, error) {
				hanging.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			},
			"expire": func(context.Context, flow.Run) (flow.Commit, error) {
				return func(*raftstore.Tx) (flow.Next, error) { return flow.Fail(tooLate), nil }, nil
			},
		},
	}
	r := newRig(t, 1, nil, kind)
	r.Update(func(tx *raftstore.Tx) error {
		for i := range 64 {
			id := fmt.Sprintf("f%d", i)
			if err := flow.Begin(tx, flow.New{ID: id, Kind: "hang", Subject: "x/" + id, Step: "call"}); err != nil {
				return err
			}
		}
		return nil
	})
	testcluster.Await(t, "all to hang", func() bool { return hanging.Load() == 64 })
	r.begin(flow.New{ID: "late", Kind: "hang", Subject: "x/late", Step: "call", Deadline: time.Now().Add(300 * time.Millisecond)})
	if err := r.wait("late"); !errors.Is(err, tooLate) {
		t.Fatalf("%v, want %v", err, tooLate)
	}
}

func TestANewLeaderLooksAgainAtWhatWaits(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, nil, waiting())
	r.begin(flow.New{ID: "f1", Kind: "w", Subject: "x/1", Step: "look"})
	testcluster.Await(t, "the flow to wait", func() bool {
		f, ok := raftstore.Get(r.Leader().Store.View(), record.Flows, "f1")
		return ok && len(f.WaitFor) == 1
	})
	old := r.Leader()
	r.Cut(old)
	defer r.Heal(old)
	r.Update(func(tx *raftstore.Tx) error { mark(tx, "signal"); return nil })
	r.gone("f1")
}

// A waiter on a leader that is cut off learns that it lost the leadership.
func TestWaiterLearnsOfLostLeadership(t *testing.T) {
	r := newRig(t, 3, nil, waiting())
	r.begin(flow.New{ID: "f1", Kind: "w", Subject: "x/1", Step: "look"})
	old := r.Leader()
	got := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		got <- r.engines[old.ID].Wait(ctx, "f1", nil)
	}()
	r.Cut(old)
	defer r.Heal(old)
	if err := <-got; !errors.Is(err, raftstore.ErrLeadershipLost) {
		t.Fatalf("%v, want ErrLeadershipLost", err)
	}
}

func TestAKindWithoutItsExpireStepIsRefused(t *testing.T) {
	if err := flow.NewEngine(flow.Config{}).Register(flow.Kind{Name: "k", Expire: "gone"}); err == nil {
		t.Fatal("no error")
	}
}

// What a flow writes, and what its steps ask of hosts, is for the request that began it.
func TestAFlowHasItsRequestsID(t *testing.T) {
	var asked atomic.Value
	kind := threeSteps(func(string) error { return nil })
	act := kind.Steps["a"]
	var tries atomic.Int64
	kind.Steps["a"] = func(ctx context.Context, run flow.Run) (flow.Commit, error) {
		asked.Store(hostapi.RequestID(ctx))
		if tries.Add(1) == 1 {
			return nil, errors.New("host does not answer")
		}
		return act(ctx, run)
	}
	var said lines
	r := newRigWith(t, 1, slog.New(hostapi.WithRequestIDs(slog.NewTextHandler(&said, nil))), nil, kind)
	f := three("f1")
	f.Data = map[string]string{"request_id": "req_1"}
	r.begin(f)
	if err := r.wait("f1"); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != "req_1" {
		t.Errorf("the step is for request %q", asked.Load())
	}
	if line := said.of("flow step failed"); strings.Count(line, "request_id=req_1") != 1 {
		t.Errorf("the engine logged %q", line)
	}
}

type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// of returns the first line of a message.
func (l *lines) of(message string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, message) {
			return line
		}
	}
	return ""
}
