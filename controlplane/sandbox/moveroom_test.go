package sandbox_test

import (
	"context"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// Nothing arrives on a host that is taken out of service as well: its operator may have
// been told that it is empty.
func TestNothingArrivesOnAHostThatDrains(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("n")
	h2 := r.target("h2", 16<<10)
	h3 := r.target("h3", 8<<10)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h2.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "put" && !c.Done {
			once.Do(func() { close(reached); <-proceed })
		}
		return nil
	})
	r.evacuate()
	<-reached
	out, err := r.LeaderNode().Replicas.EvacuateAgent(t.Context(), "h2", api.EvacuateAgent{})
	if err != nil || out.Evacuation == nil || out.Evacuation.Done || out.Evacuation.Waiting != 1 {
		t.Errorf("a host that something arrives on: %+v, %v", out.Evacuation, err)
	}
	close(proceed)
	r.on(id, h3, record.SandboxRunning)
	r.alone(id, h3, r.h1, h2)
	testcluster.Await(t, "the end", func() bool {
		a, err := r.LeaderNode().Replicas.Agent(t.Context(), "h2")
		return err == nil && a.Evacuation != nil && a.Evacuation.Done
	})
}

// Once everything is in the store and the host that is left is lost, there is no way back:
// what nobody has room for waits for room, whatever becomes of the evacuation and the host.
func TestAMoveWaitsForRoomWhereThereIsNoWayBack(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	var r *moveRig
	stored := make(chan struct{})
	r = newMoveRig(t, 1, func(f *record.Flow, at flow.Point) error {
		if f.Step != "leave" || at != flow.AfterCommit {
			return nil
		}
		r.h1.Silence(true)
		testcluster.Await(t, "the loss of the host", func() bool {
			h, _ := raftstore.Get(r.Leader().Store.View(), record.Hosts, "h1")
			return h.State == record.HostLost
		})
		close(stored)
		return nil
	})
	id := r.running("b")
	h2 := r.target("h2", 16<<10)
	r.h1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "store" && c.Done {
			h2.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 64 })
			testcluster.Await(t, "that there is no room", func() bool {
				return r.LeaderNode().Hosts.Sessions()["h2"].Heartbeat.Capacity.MemoryMB == 64
			})
		}
		return nil
	})
	r.evacuate()
	<-stored
	testcluster.Await(t, "that it waits", func() bool {
		fl, live := flow.Live(r.Leader().Store.View(), flow.Subject(record.Sandboxes.Name, id))
		return live && fl.Step == "choose" && len(fl.WaitFor) > 0
	})
	replicas := r.LeaderNode().Replicas
	if _, err := replicas.UndrainAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	if err := replicas.RemoveAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	h2.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 16 << 10 })
	r.on(id, h2, record.SandboxRunning)
}

// What was stopping as an evacuation was given up moves with the next one.
func TestTheNextEvacuationMovesWhatTheLastGaveUp(t *testing.T) {
	t.Parallel()
	r := newMoveRig(t, 1, nil)
	id := r.running("u")
	h2 := r.target("h2", 16<<10)
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.h1.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "hibernate" && !c.Done {
			once.Do(func() { close(reached); <-proceed })
		}
		return nil
	})
	r.evacuate()
	<-reached
	if _, err := r.LeaderNode().Replicas.UndrainAgent(t.Context(), "h1"); err != nil {
		t.Fatal(err)
	}
	r.evacuate()
	close(proceed)
	r.on(id, h2, record.SandboxRunning)
	if got := r.evacuated(); got.Staying != 0 {
		t.Errorf("%+v", got)
	}
}
