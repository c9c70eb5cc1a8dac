package hosts_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

func TestANewLeaderGivesEveryHostALease(t *testing.T) {
	r := newRig(t, "h1")
	r.send(t, heartbeat("h1", 1))
	up, doneUp := r.WhileUp(t.Context(), "h1")
	defer doneUp()
	heard, doneHeard := r.WhileHeard(t.Context(), "h1")
	defer doneHeard()
	r.Resign()
	<-up.Done()
	if heard.Err() != nil {
		t.Fatal("what outlives the leadership was cut")
	}
	if _, err := r.Heartbeat(t.Context(), heartbeat("h1", 2)); !errors.Is(err, hosts.ErrNotLeading) {
		t.Fatalf("heard while not leading: %v", err)
	}
	r.now = r.now.Add(time.Hour)
	r.Lead(8)
	view := r.store.View()
	if !r.Warming(view) || len(r.Overdue(raftstore.All(view, record.Hosts))) != 0 {
		t.Fatal("a host is overdue before it could be heard")
	}
	unready := heartbeat("h1", 3)
	unready.Ready = false
	r.send(t, unready)
	if !r.Warming(view) {
		t.Fatal("not warming although the only host is not ready")
	}
	r.send(t, heartbeat("h1", 4))
	if r.Warming(view) {
		t.Fatal("warming although every host is heard")
	}
}

// Right after an election, a host that still looks for the new leader is not
// reported as unreachable.
func TestAHostThatANewLeaderHasYetToHearIsWaitedFor(t *testing.T) {
	r := newRig(t, "h1", "h2")
	r.Update(func(tx *raftstore.Tx) error {
		h1, _ := raftstore.Get(tx, record.Hosts, "h1")
		up := h1.Clone()
		up.State = record.HostUp
		raftstore.Put(tx, record.Hosts, up)
		return nil
	})
	if _, err := r.Reach(t.Context(), "h2"); !errors.Is(err, hostapi.ErrUnreachable) {
		t.Errorf("a host that was lost before: %v", err)
	}
	reached := make(chan error, 1)
	go func() { _, err := r.Reach(t.Context(), "h1"); reached <- err }()
	r.send(t, heartbeat("h2", 1)) // another's word is not its own
	r.send(t, heartbeat("h1", 1))
	if err := <-reached; err != nil {
		t.Errorf("a host that was heard: %v", err)
	}
	r.Lead(8)
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := r.Reach(gone, "h1"); !errors.Is(err, hostapi.ErrUnreachable) {
		t.Errorf("for a caller who has gone: %v", err)
	}
	r.now = r.now.Add(timescale.Limit(6 * time.Second))
	if _, err := r.Reach(t.Context(), "h1"); !errors.Is(err, hostapi.ErrUnreachable) {
		t.Errorf("when the leader is no longer new: %v", err)
	}
}

// Hosts that have heard a successor refuse the deposed leader.
func TestDeposedLeadersCalls(t *testing.T) {
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	var highest uint64
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		highest = max(highest, c.Term)
		return nil
	})
	n := p.LeaderNode()
	client, err := n.Hosts.Client("h1")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.Repeat("a", 26)
	if _, err := client.PutBox(t.Context(), id, hostapi.BoxSpec{Generation: 1, Template: "base"}); err != nil {
		t.Fatal(err)
	}
	n.Hosts.Resign()
	n.Hosts.Lead(highest + 1) // as a successor would
	testcluster.Await(t, "the host", func() bool { _, err := n.Hosts.Client("h1"); return err == nil })
	successor, err := n.Hosts.Client("h1")
	if err != nil {
		t.Fatal(err)
	}
	if err := successor.DeleteBox(t.Context(), id, 1); err != nil {
		t.Fatal(err)
	}
	if err := client.DeleteBox(t.Context(), id, 1); !hostapi.HasCode(err, hostapi.CodeStaleTerm) {
		t.Fatalf("the deposed leader: %v", err)
	}
}

// A leader that did not run for a while has received no heartbeats; that says
// nothing about the hosts.
func TestAStalledLeaderGivesEveryHostALeaseAgain(t *testing.T) {
	r := newRig(t, "h1")
	r.send(t, heartbeat("h1", 1))
	agents := func() []*record.Host { return raftstore.All(r.store.View(), record.Hosts) }
	if got := r.Overdue(agents()); len(got) != 0 {
		t.Fatal(got)
	}
	r.now = r.now.Add(time.Minute) // in which it did not run
	for range 10 {
		if got := r.Overdue(agents()); len(got) != 0 {
			t.Fatalf("%v is lost before it could speak", got)
		}
		r.now = r.now.Add(time.Second)
	}
	if got := r.Overdue(agents()); len(got) != 1 {
		t.Fatalf("%v, want the host that stays silent", got)
	}
}

// Only the leader takes heartbeats, and only in the term in which it began to lead.
func TestHeartbeatsAreTheLeadersToTake(t *testing.T) {
	p := testplane.New(t, 3, nil)
	p.Host("h1", 4096)
	n := p.LeaderNode()
	ctx, cancel := context.WithCancel(t.Context())
	begun, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	reg := hosts.NewRegistry(hosts.Config{
		Store: n.Store, Interval: time.Second, Lease: time.Minute, Clock: time.Now, Logger: testcluster.Log(), Leads: n.Store.LeadsIn,
		Clients: hosts.NewClients(nil),
	})
	go func() {
		defer close(ended)
		reg.LeadWhile(ctx, n.Store.Term(), func(context.Context) { close(begun); <-end }) // which is slow to end
	}()
	<-begun
	if _, err := reg.Heartbeat(t.Context(), heartbeat("h1", 1)); err != nil {
		t.Fatal(err)
	}
	refuses := func() bool {
		_, err := reg.Heartbeat(t.Context(), heartbeat("h1", 2))
		return errors.Is(err, hosts.ErrNotLeading)
	}
	cancel()
	testcluster.Await(t, "refusal by who resigns", refuses)
	close(end)
	<-ended
	reg.Lead(n.Store.Term())
	p.Cut(n.Replica)
	testcluster.Await(t, "refusal by who was deposed", refuses)
	p.Heal(n.Replica)
}
