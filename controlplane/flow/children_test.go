package flow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// A new leader knows the outcome of a flow that ended under the previous one.
func TestTheNextLeaderKnowsTheOutcome(t *testing.T) {
	tier.Slow(t)
	failure := apierror.Unreachable("h1", nil)
	r := newRig(t, 3, nil, flow.Kind{Name: "k", Steps: map[string]flow.Step{
		"well": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(*raftstore.Tx) (flow.Next, error) { return flow.DoneWith(map[string]int{"pause": 7}), nil }, nil
		},
		"ill": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Fail(failure), nil }, nil
		},
	}})
	r.begin(flow.New{ID: "f1", Kind: "k", Subject: "x/1", Step: "well"})
	r.begin(flow.New{ID: "f2", Kind: "k", Subject: "x/2", Step: "ill"})
	r.gone("f1")
	r.gone("f2")
	old := r.Leader()
	r.Cut(old)
	defer r.Heal(old)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var got map[string]int
	if err := r.engines[r.Leader().ID].Wait(ctx, "f1", &got); err != nil || got["pause"] != 7 {
		t.Errorf("result %v: %v", got, err)
	}
	if err := r.wait("f2"); !errors.Is(err, failure) {
		t.Errorf("failure: %v", err)
	}
}

// children returns the outcomes of a flow's children, in the order of their ids.
func children(r raftstore.Reader, id string) []*record.Outcome {
	all := raftstore.All(r, record.Outcomes)
	all = slices.DeleteFunc(slices.Clone(all), func(o *record.Outcome) bool { return o.Parent != id })
	slices.SortFunc(all, func(a, b *record.Outcome) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// parent starts three children and ends with the number of those that succeeded.
func parent(expired error) flow.Kind {
	return flow.Kind{Name: "parent", Expire: "expire", Steps: map[string]flow.Step{
		"begin": func(_ context.Context, run flow.Run) (flow.Commit, error) {
			return func(tx *raftstore.Tx) (flow.Next, error) {
				for i := range 3 {
					id := fmt.Sprintf("%s-%d", run.Flow.ID, i)
					if err := flow.Begin(tx, flow.New{ID: id, Kind: "child", Subject: "x/" + id, Step: "go", Parent: run.Flow.ID}); err != nil {
						return flow.Next{}, err
					}
				}
				return flow.Join("count", nil), nil
			}, nil
		},
		"count": func(_ context.Context, run flow.Run) (flow.Commit, error) {
			well := 0
			for _, o := range children(run.View, run.Flow.ID) {
				if flow.Failure(o) == nil {
					well++
				}
			}
			return func(*raftstore.Tx) (flow.Next, error) { return flow.DoneWith(well), nil }, nil
		},
		"expire": func(context.Context, flow.Run) (flow.Commit, error) {
			return func(*raftstore.Tx) (flow.Next, error) { return flow.Fail(expired), nil }, nil
		},
	}}
}

func TestAParentWaitsForItsChildren(t *testing.T) {
	tier.Slow(t)
	release := make(chan struct{})
	child := flow.Kind{Name: "child", Steps: map[string]flow.Step{
		"go": func(ctx context.Context, run flow.Run) (flow.Commit, error) {
			select {
			case <-release:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return func(*raftstore.Tx) (flow.Next, error) {
				if run.Flow.ID == "p-1" {
					return flow.Fail(apierror.NotFound()), nil
				}
				return flow.Done(), nil
			}, nil
		},
	}}
	r := newRig(t, 3, nil, parent(nil), child)
	r.begin(flow.New{ID: "p", Kind: "parent", Subject: "x/p", Step: "begin"})
	testcluster.Await(t, "the parent to wait", func() bool {
		f, ok := raftstore.Get(r.Leader().Store.View(), record.Flows, "p")
		return ok && f.Join && f.Step == "count"
	})
	old := r.Leader()
	r.Cut(old) // its successor waits for the same children
	defer r.Heal(old)
	close(release)
	r.gone("p")
	well := 0
	if err := flow.Ended(r.Leader().Store.View(), "p", &well); err != nil || well != 2 {
		t.Fatalf("%d children ended well: %v", well, err)
	}
	var ids []string
	for _, o := range children(r.Leader().Store.View(), "p") {
		ids = append(ids, o.ID)
	}
	if !slices.Equal(ids, []string{"p-0", "p-1", "p-2"}) {
		t.Errorf("children %v", ids)
	}
}

// A parent past its deadline does not wait for its children.
func TestAParentExpiresBeforeItsChildren(t *testing.T) {
	late := &apierror.Error{Code: apierror.EInternal, Message: "too late"}
	r := newRig(t, 1, nil, parent(late), flow.Kind{Name: "child", Steps: map[string]flow.Step{
		"go": func(ctx context.Context, _ flow.Run) (flow.Commit, error) { <-ctx.Done(); return nil, ctx.Err() },
	}})
	r.begin(flow.New{ID: "p", Kind: "parent", Subject: "x/p", Step: "begin", Deadline: time.Now().Add(300 * time.Millisecond)})
	if err := r.wait("p"); !errors.Is(err, late) {
		t.Fatalf("%v, want %v", err, late)
	}
}
