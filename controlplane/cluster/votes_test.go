package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// The tests' settings, in passes: each is a second of the tests' clock.
const (
	stableAfter = 4
	deadAfter   = 15
)

// The seconds of the tests' clock are as long as they are: a slow machine does not stretch them.
func init() { heardWithin = 5 * time.Second }

// voting is a cluster whose leader decides who votes, pass by pass.
type voting struct {
	*testcluster.Cluster
	t   *testing.T
	now time.Time

	leader *testcluster.Replica
	use    *Cluster
	votes  *votes
	heard  map[string]time.Time // by the leader, at the pass before
}

func newVoting(t *testing.T, n int) *voting {
	t.Helper()
	r := &voting{Cluster: testcluster.New(t, n), t: t, now: time.Unix(1_700_000_000, 0)}
	r.lead()
	return r
}

// lead begins the work of whichever replica leads now.
func (r *voting) lead() {
	r.t.Helper()
	r.leader = r.Leader()
	store, clock := r.leader.Store, func() time.Time { return r.now }
	r.use = New(core.New(core.Core{Store: store, Clock: clock, Logger: testcluster.Log()}), Config{
		StableAfter: stableAfter * time.Second, DeadAfter: deadAfter * time.Second,
	})
	r.votes = newVotes(r.use, loops.NewTerm(loops.Config{Store: store, Clock: clock, Logger: testcluster.Log()}))
	r.heard = map[string]time.Time{}
}

// pass lets a second pass, in which every replica that is not cut is heard. It checks that
// more than half of the voters are there, before and after.
func (r *voting) pass() {
	r.t.Helper()
	testcluster.Await(r.t, "contact with every replica", func() bool {
		if r.leader.Store.Status().State != "leader" {
			r.lead()
		}
		for _, p := range r.leader.Store.Status().Peers {
			if !r.IsCut(r.replica(p.ID)) && !p.LastContact.After(r.heard[p.ID]) {
				return false
			}
		}
		return true
	})
	for _, p := range r.leader.Store.Status().Peers {
		r.heard[p.ID] = p.LastContact
	}
	r.now = r.now.Add(time.Second)
	r.votes.pass(r.t.Context())
	voters, there := 0, 0
	for _, p := range r.leader.Store.Status().Peers {
		if p.Voter {
			voters++
			if !r.IsCut(r.replica(p.ID)) {
				there++
			}
		}
	}
	if there <= voters/2 {
		r.t.Fatalf("%d of %d voters are there: %s", there, voters, r.members())
	}
}

func (r *voting) passes(n int) {
	r.t.Helper()
	for range n {
		r.pass()
	}
}

// misses lets seconds pass until the leader has missed a replica for so many of them. One
// that is elected meanwhile begins to count.
func (r *voting) misses(p *testcluster.Replica, seconds int) {
	r.t.Helper()
	for r.votes.seen[p.ID] == nil || r.votes.seen[p.ID].silent < time.Duration(seconds)*time.Second {
		r.pass()
	}
}

func (r *voting) replica(id string) *testcluster.Replica {
	return r.Replicas[slices.IndexFunc(r.Replicas, func(p *testcluster.Replica) bool { return p.ID == id })]
}

func (r *voting) followers() []*testcluster.Replica {
	return slices.DeleteFunc(slices.Clone(r.Replicas), func(p *testcluster.Replica) bool { return p == r.leader })
}

// members is who is in the cluster: those without a vote in brackets.
func (r *voting) members() string {
	var out []string
	for _, p := range r.leader.Store.Status().Peers {
		if p.Voter {
			out = append(out, p.ID)
		} else {
			out = append(out, "("+p.ID+")")
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (r *voting) want(members ...string) {
	r.t.Helper()
	slices.Sort(members)
	if got := r.members(); got != strings.Join(members, " ") {
		r.t.Fatalf("members %s, want %s", got, strings.Join(members, " "))
	}
}

// become lets seconds pass until the members are these.
func (r *voting) become(atMost int, members ...string) {
	r.t.Helper()
	slices.Sort(members)
	for range atMost {
		if r.members() == strings.Join(members, " ") {
			return
		}
		r.pass()
	}
	r.want(members...)
}

// add starts another replica and adds it.
func (r *voting) add() *testcluster.Replica {
	r.t.Helper()
	p := r.Another()
	if err := r.use.AddPeer(r.t.Context(), api.AddPeer{ID: p.ID, Address: p.Address()}); err != nil {
		r.t.Fatal(err)
	}
	return p
}

// audit is what the audit log has of the leaders, oldest first.
func (r *voting) audit() []string {
	r.t.Helper()
	entries := raftstore.All(r.leader.Store.View(), record.AuditEntries)
	slices.SortFunc(entries, func(a, b *record.AuditEntry) int { return int(a.CreateIndex) - int(b.CreateIndex) })
	var out []string
	for _, e := range entries {
		if e.ActorType != core.ActorReplica || e.ActorID == "" || e.Chain != record.AuditOperators || e.Outcome != core.OutcomeOK {
			r.t.Errorf("entry %+v", e)
		}
		out = append(out, e.Action+" "+e.Resource)
	}
	return out
}

func (r *voting) wantRemoved(ids ...string) {
	r.t.Helper()
	row, _ := raftstore.Get(r.leader.Store.View(), record.Clusters, record.ClusterID)
	if row == nil && len(ids) > 0 || row != nil && !slices.Equal(row.Removed, ids) {
		r.t.Errorf("the row is %+v, want %q removed", row, ids)
	}
}

func TestANewReplicaVotesOnceItIsStable(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	d := r.add()
	r.want("a", "b", "c", "(d)")
	r.passes(stableAfter - 1)
	r.want("a", "b", "c", "(d)")
	r.become(10, "a", "b", "c", "d")
	if got := r.audit(); !slices.Equal(got, []string{"promotePeer raft/peers/d"}) {
		t.Errorf("audit log: %q", got)
	}
	// A leader that dies in between does not leave a vote that the log does not tell.
	if e := raftstore.All(r.leader.Store.View(), record.AuditEntries)[0]; e.CreateIndex >= r.leader.Store.Status().LastLogIndex {
		t.Error("the vote was given before the audit log tells it")
	}
	// Another that never comes changes nothing for the others.
	e := r.Another()
	r.Cut(e)
	if err := r.use.AddPeer(t.Context(), api.AddPeer{ID: e.ID, Address: e.Address()}); err != nil {
		t.Fatal(err)
	}
	r.passes(3 * deadAfter)
	r.want("a", "b", "c", "d", "(e)")
	// Its address changes; neither gets or loses a vote by that.
	for _, p := range []*testcluster.Replica{d, e} {
		if err := r.use.AddPeer(t.Context(), api.AddPeer{ID: p.ID, Address: p.Address()}); err != nil {
			t.Fatal(err)
		}
	}
	r.want("a", "b", "c", "d", "(e)")
}

func TestADeadReplicaLosesItsPlaceToANewOne(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	dead := r.followers()[0]
	live := r.followers()[1]
	r.Cut(dead)
	r.passes(2 * deadAfter)
	r.want("a", "b", "c") // nobody is there to take its place
	r.add()
	r.passes(stableAfter - 1)
	r.want("a", "b", "c", "(d)")
	r.become(10, r.leader.ID, live.ID, "d")
	if got := r.audit(); !slices.Equal(got, []string{"removePeer raft/peers/" + dead.ID, "promotePeer raft/peers/d"}) {
		t.Errorf("audit log: %q", got)
	}
	r.wantRemoved(dead.ID)
	// It is back, and is added like any other.
	r.Heal(dead)
	if err := r.use.AddPeer(t.Context(), api.AddPeer{ID: dead.ID, Address: dead.Address()}); err != nil {
		t.Fatal(err)
	}
	r.wantRemoved()
	r.become(20, "a", "b", "c", "d")
}

// As long as a replica may come back, a new one waits: four votes, of which one is silent,
// are worse than three.
func TestANewReplicaWaitsForOneThatIsSilent(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	silent := r.followers()[0]
	r.Cut(silent)
	r.add()
	r.passes(deadAfter - 1)
	r.want("a", "b", "c", "(d)")
	r.Heal(silent)
	r.become(20, "a", "b", "c", "d")
	r.wantRemoved()
}

func TestAReplicaThatIsOnlySlowKeepsItsVote(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	slow := r.followers()[0]
	r.add()
	for range 4 { // it is heard every now and then
		r.Cut(slow)
		r.misses(slow, deadAfter-2)
		r.want("a", "b", "c", "(d)")
		r.Heal(slow)
		r.pass()
		r.want("a", "b", "c", "(d)")
	}
	r.wantRemoved()
}

// Of five, two are dead, which is no majority. Each loses its place to one newcomer.
func TestADeadReplicaForEachNewOne(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 5)
	dead := r.followers()[:2]
	r.Cut(dead[0])
	r.Cut(dead[1])
	r.passes(2 * deadAfter)
	r.want("a", "b", "c", "d", "e")
	r.add()
	voters := func() int { return r.leader.Store.Status().Voters() }
	for range 2 * stableAfter {
		r.pass()
	}
	if voters() != 5 || !strings.Contains(r.members(), "f") || strings.Contains(r.members(), "(") {
		t.Fatalf("members %s, want f in the place of one", r.members())
	}
	r.passes(2 * deadAfter)
	if voters() != 5 {
		t.Fatalf("members %s: the second went, too", r.members())
	}
	r.add()
	r.passes(2 * stableAfter)
	want := []string{r.leader.ID, "f", "g"}
	for _, p := range r.Replicas[:5] {
		if p != r.leader && !slices.Contains(dead, p) {
			want = append(want, p.ID)
		}
	}
	r.want(want...)
}

// A leader that has just begun knows nothing of what was before.
func TestANewLeaderBeginsToCount(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	dead, live := r.followers()[0], r.followers()[1]
	r.Cut(dead)
	r.add()
	r.passes(deadAfter - 1)
	r.hand(live)
	r.passes(deadAfter - 1)
	r.want("a", "b", "c", "(d)")
	// The leader changes again, between the end of one and the vote of the other.
	r.become(10, r.leader.ID, r.other(dead).ID, "(d)")
	r.hand(r.other(dead))
	r.passes(stableAfter - 1)
	r.want(r.leader.ID, r.other(dead).ID, "(d)")
	r.become(10, r.leader.ID, r.other(dead).ID, "d")
	r.wantRemoved(dead.ID)
}

// other is which of the first three neither leads nor is dead.
func (r *voting) other(dead *testcluster.Replica) *testcluster.Replica {
	i := slices.IndexFunc(r.Replicas[:3], func(p *testcluster.Replica) bool { return p != r.leader && p != dead })
	return r.Replicas[i]
}

// hand hands leadership to a replica.
func (r *voting) hand(to *testcluster.Replica) {
	r.t.Helper()
	if err := r.leader.Store.TransferLeadership(r.t.Context(), to.ID); err != nil {
		r.t.Fatal(err)
	}
	testcluster.Await(r.t, "the end of its leadership", func() bool { return r.leader.Store.Status().State != "leader" })
	r.lead()
}

// A leader that was frozen has not heard anybody meanwhile.
func TestTimeThatTheLeaderMissedDoesNotCount(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	silent := r.followers()[0]
	r.add()
	r.passes(stableAfter - 2)
	r.Cut(silent)
	r.passes(3)
	r.now = r.now.Add(time.Hour)
	r.passes(3)
	r.want("a", "b", "c", "(d)")
	r.now = r.now.Add(-time.Hour)
	r.passes(3)
	r.want("a", "b", "c", "(d)")
}

func TestDeadReplicasStayIfTheOperatorWantsIt(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	r.use.cfg.DeadAfter = 0
	dead := r.followers()[0]
	r.Cut(dead)
	r.add()
	r.passes(3 * deadAfter)
	r.want("a", "b", "c", "(d)")
	if err := r.use.RemovePeer(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	r.become(10, r.leader.ID, r.other(dead).ID, "d")
}

// silence cuts a replica and waits until the leader has noticed.
func (r *voting) silence(p *testcluster.Replica) {
	r.t.Helper()
	r.Cut(p)
	testcluster.Await(r.t, "silence of replica "+p.ID, func() bool {
		st := r.leader.Store.Status()
		if st.State != "leader" {
			r.lead()
			return false
		}
		i := slices.IndexFunc(st.Peers, func(m raftstore.Peer) bool { return m.ID == p.ID })
		return time.Since(st.Peers[i].LastContact) > heardWithin
	})
}

// A removal that those who stay could not commit would end the cluster: it is refused before
// anything is written. So is another address of a voter that is needed.
func TestARemovalLeavesAMajority(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 3)
	r.pass() // all are heard
	dead := r.followers()[0]
	r.silence(dead)
	live := r.other(dead)
	for what, change := range map[string]func() error{
		"the one that lives":                 func() error { return r.use.RemovePeer(t.Context(), live.ID) },
		"the leader":                         func() error { return r.use.RemovePeer(t.Context(), r.leader.ID) },
		"another address of one that counts": func() error { return r.use.AddPeer(t.Context(), api.AddPeer{ID: live.ID, Address: "elsewhere:7001"}) },
	} {
		var refused *apierror.Error
		if err := change(); !errors.As(err, &refused) || refused.Code != apierror.EConflict || !strings.Contains(refused.Detail, "bring "+dead.ID+" back") {
			t.Fatalf("%s: %v, want a refusal that names %s", what, err, dead.ID)
		}
	}
	r.want("a", "b", "c")
	r.wantRemoved()
	if err := r.use.RemovePeer(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	r.want(r.leader.ID, live.ID)
	// Two are left, and both are there.
	if err := r.use.AddPeer(t.Context(), api.AddPeer{ID: live.ID, Address: "elsewhere:7001"}); apierror.CodeOf(err) != apierror.EConflict {
		t.Errorf("another address of one of two: %v", err)
	}
	if err := r.use.RemovePeer(t.Context(), live.ID); err != nil {
		t.Fatal(err)
	}
	r.want(r.leader.ID)
}

// Which majorities are left is a question of numbers alone.
func TestWhoIsHeardDecidesOnARemoval(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		heard, silent, nonvoters int // besides the leader
		removes                  string
		want                     bool
	}{
		"all of three are there":            {2, 0, 0, "heard0", true},
		"the leader of three":               {2, 0, 0, "leader", true},
		"the dead one of three":             {1, 1, 0, "silent0", true},
		"a live one of three with one dead": {1, 1, 0, "heard0", false},
		"the leader, with one dead":         {1, 1, 0, "leader", false},
		"a live one of four, with one dead": {2, 1, 0, "heard0", true},
		"a live one of five, with two dead": {2, 2, 0, "heard0", false},
		"a dead one of five, with two dead": {2, 2, 0, "silent1", true},
		"a live one of two":                 {1, 0, 0, "heard0", true},
		"one without a vote":                {1, 1, 1, "new0", true},
	} {
		st := raftstore.Status{NodeID: "leader", State: "leader", Peers: []raftstore.Peer{{ID: "leader", Voter: true}}}
		for i := range c.heard {
			st.Peers = append(st.Peers, raftstore.Peer{ID: fmt.Sprint("heard", i), Voter: true, LastContact: now})
		}
		for i := range c.silent {
			st.Peers = append(st.Peers, raftstore.Peer{ID: fmt.Sprint("silent", i), Voter: true, LastContact: now.Add(-2 * heardWithin)})
		}
		for i := range c.nonvoters {
			st.Peers = append(st.Peers, raftstore.Peer{ID: fmt.Sprint("new", i)})
		}
		p := st.Peers[slices.IndexFunc(st.Peers, func(p raftstore.Peer) bool { return p.ID == c.removes })]
		if err := removable(st, p); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if st.State = "follower"; removable(st, p) != nil {
			t.Errorf("%s: a follower decides", name)
		}
	}
}

// An add that is refused does not make a removed replica trusted again.
func TestAnAddressThatIsTakenIsRefused(t *testing.T) {
	t.Parallel()
	r := newVoting(t, 3)
	r.pass() // all are heard
	gone := r.followers()[0]
	if err := r.use.RemovePeer(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	err := r.use.AddPeer(t.Context(), api.AddPeer{ID: gone.ID, Address: r.leader.Address()})
	if apierror.CodeOf(err) != apierror.EConflict || !strings.Contains(err.Error(), "address") {
		t.Errorf("%v, want a refusal", err)
	}
	r.wantRemoved(gone.ID)
	r.want(r.leader.ID, r.other(gone).ID)
}

// The last one that votes is not removed, whoever else is a member.
func TestTheLastVoteStays(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newVoting(t, 1)
	r.add()
	if err := r.use.RemovePeer(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "last replica") {
		t.Errorf("%v, want a refusal", err)
	}
	r.wantRemoved()
	r.become(10, "a", "b")
}

// Whatever the members are like, a change needs a stable newcomer and a majority that is
// heard, and lowers nowhere how many voters may be lost.
func TestNoChangeEndangersTheMajority(t *testing.T) {
	t.Parallel()
	states := []member{
		{voter: true, heard: true, stable: true},
		{voter: true, heard: true},
		{voter: true},
		{voter: true, dead: true},
		{heard: true, stable: true},
		{heard: true},
		{dead: true},
	}
	// spare is how many voters may be lost, beyond those that are silent.
	spare := func(all []member) int {
		voters, heard := 0, 0
		for _, m := range all {
			if m.voter {
				voters++
				if m.heard {
					heard++
				}
			}
		}
		return heard - (voters/2 + 1)
	}
	changes := map[change]int{}
	var try func(all []member, from int)
	try = func(all []member, from int) {
		do, id := decide(all)
		changes[do]++
		i := slices.IndexFunc(all, func(m member) bool { return m.id == id })
		after := slices.Clone(all)
		newcomer := slices.ContainsFunc(all, func(m member) bool { return !m.voter && m.stable })
		switch do {
		case promote:
			if all[i].voter || !all[i].stable {
				t.Fatalf("%+v: %s gets a vote", all, id)
			}
			after[i].voter = true
		case remove:
			if !all[i].voter || !all[i].dead || all[i].heard || !newcomer {
				t.Fatalf("%+v: %s is removed", all, id)
			}
			after = slices.Delete(after, i, i+1)
			if next, _ := decide(after); next != promote {
				t.Fatalf("%+v: after the end of %s comes %d, not the vote of another", all, id, next)
			}
		}
		if do != nothing && (spare(all) < 0 || spare(after) < spare(all)) {
			t.Fatalf("%+v: after %d of %s, %d may be lost instead of %d", all, do, id, spare(after), spare(all))
		}
		if len(all) == 8 {
			return
		}
		for s := from; s < len(states); s++ {
			m := states[s]
			m.id = fmt.Sprint("r", len(all))
			try(append(slices.Clone(all), m), s)
		}
	}
	try(nil, 0)
	if changes[promote] == 0 || changes[remove] == 0 {
		t.Errorf("changes: %v", changes)
	}
}

// A change that does not come to its end does not keep the loops of the leader.
func TestALeaderWithoutAMajorityChangesNothing(t *testing.T) {
	t.Parallel()
	r := newVoting(t, 3)
	r.add()
	for _, p := range r.followers() {
		r.Cut(p)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
	defer cancel()
	testcluster.Await(t, "the end of the leadership", func() bool {
		r.now = r.now.Add(time.Second)
		r.votes.pass(ctx)
		return r.leader.Store.Status().State != "leader"
	})
	r.votes.pass(ctx)
	r.want("a", "b", "c", "(d)")
}
