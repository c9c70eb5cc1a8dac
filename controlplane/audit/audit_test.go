package audit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// rig is the log on one replica, with a clock that tests move.
type rig struct {
	*Log
	*testcluster.Cluster
	t    *testing.T
	now  time.Time
	term *loops.Term
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	r := &rig{Cluster: testcluster.New(t, 1), t: t, now: time.Now()}
	clock := func() time.Time { return r.now }
	store := r.Leader().Store
	r.Log = New(core.New(core.Core{Store: store, Clock: clock, Logger: testcluster.Log()}), cfg)
	r.term = loops.NewTerm(loops.Config{Store: store, Clock: clock, Logger: testcluster.Log()})
	for _, id := range []string{"ws-1", "ws-2"} {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}})
			return nil
		})
	}
	return r
}

// do is a request of a workspace that changes something.
func (r *rig) do(workspace, action string) {
	r.t.Helper()
	act := core.NewAct(core.Caller{WorkspaceID: workspace, UserID: "usr-1", RequestID: "req"}, action, "volumes/v")
	err := r.core.Update(core.WithAct(r.t.Context(), act), func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.JoinTokens, &record.JoinToken{Meta: record.Meta{ID: action}})
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) all(q api.AuditQuery) []api.AuditEntry {
	r.t.Helper()
	out, next, err := r.List(r.t.Context(), q, core.ListOptions{Limit: core.MaxLimit})
	if err != nil || next != "" {
		r.t.Fatalf("%q, %v", next, err)
	}
	return out
}

func TestAnEntryIsThereExactlyIfTheChangeIs(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	act := core.NewAct(core.Caller{WorkspaceID: "ws-1", UserID: "usr-1", RequestID: "req-1"}, "deleteVolume", "volumes/v1")
	ctx := core.WithAct(t.Context(), act)
	if err := r.core.Update(ctx, func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.JoinTokens, &record.JoinToken{Meta: record.Meta{ID: "t1"}})
		return errors.New("refused")
	}); err == nil || act.Written() {
		t.Fatalf("%v, written %v", err, act.Written())
	}
	if err := r.core.Update(ctx, func(*raftstore.Tx) error { return nil }); err != nil || act.Written() {
		t.Fatalf("a transaction that wrote nothing: %v, written %v", err, act.Written())
	}
	if found := r.all(api.AuditQuery{}); len(found) != 0 {
		t.Fatalf("%+v", found)
	}
	for _, id := range []string{"t1", "t2"} { // the second is the same request's
		if err := r.core.Update(ctx, func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.JoinTokens, &record.JoinToken{Meta: record.Meta{ID: id}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	view := r.Leader().Store.View()
	entries := raftstore.All(view, record.AuditEntries)
	if len(entries) != 1 || !act.Written() {
		t.Fatalf("%d entries", len(entries))
	}
	changed, _ := raftstore.Get(view, record.JoinTokens, "t1")
	e := entries[0]
	if e.CreateIndex != changed.CreateIndex || e.Chain != "ws-1" || e.ActorType != "user" || e.ActorID != "usr-1" || e.Action != "deleteVolume" ||
		e.Resource != "volumes/v1" || e.RequestID != "req-1" || e.Outcome != "ok" {
		t.Errorf("%+v, changed at %d", e, changed.CreateIndex)
	}
}

func TestNoSecretGetsIntoAnEntry(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	const sandbox = "abcdefgh234567abcdefgh2345"
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: "key-1"}, WorkspaceID: "ws-1", Prefix: "pppppppp"})
		return nil
	})
	act := core.NewAct(core.Caller{WorkspaceID: "ws-1", KeyID: "key-1", RequestID: "req " + sandbox + "\nforged"}, "deleteSandbox", "sandboxes/"+sandbox)
	if err := r.Record(t.Context(), act, core.OutcomeFailed, "sandbox "+sandbox+" is stuck"); err != nil {
		t.Fatal(err)
	}
	r.place(t.Context(), r.term)
	for _, e := range raftstore.All(r.Leader().Store.View(), record.AuditEntries) {
		if text := fmt.Sprintf("%+v", e); strings.Contains(text, sandbox) || strings.Contains(text, "\n") {
			t.Error(text)
		}
		if e.ActorType != "key" || e.ActorID != "pppppppp" || e.Resource != "sandboxes/abcdefgh" {
			t.Errorf("%+v", e)
		}
	}
}

func TestEachEntryHasTheHashOfTheOneBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	for i := range 5 {
		r.do("ws-1", fmt.Sprintf("a%d", i))
		r.do("ws-2", fmt.Sprintf("b%d", i))
		if i == 2 {
			r.place(t.Context(), r.term)
		}
	}
	r.do("ws-unknown", "c") // must not get a log of its own
	if _, err := api.VerifyAudit(r.all(api.AuditQuery{})); err != nil {
		t.Errorf("with entries that have no place yet: %v", err)
	}
	r.place(t.Context(), r.term)
	r.place(t.Context(), r.term) // there is nothing left
	entries := r.all(api.AuditQuery{})
	heads, err := api.VerifyAudit(entries)
	if err != nil || len(heads) != 3 || heads[0].WorkspaceID != "" || heads[0].Last != 1 || heads[1].Last != 5 || heads[2].Last != 5 {
		t.Fatalf("%+v, %v", heads, err)
	}
	chain, _ := raftstore.Get(r.Leader().Store.View(), record.AuditChains, "ws-2")
	if chain == nil || chain.Hash != heads[2].Hash || chain.Sequence != 5 {
		t.Errorf("%+v", chain)
	}
	// A list is newest first, and so are the sequences of each log.
	mine := r.all(api.AuditQuery{WorkspaceID: "ws-1"})
	if len(mine) != 5 || !slices.IsSortedFunc(mine, func(a, b api.AuditEntry) int { return int(b.Sequence) - int(a.Sequence) }) {
		t.Errorf("%+v", mine)
	}
	if out := r.all(api.AuditQuery{Action: "b3"}); len(out) != 1 || out[0].WorkspaceID != "ws-2" {
		t.Errorf("%+v", out)
	}
	if out := r.all(api.AuditQuery{WorkspaceID: api.AuditOperators}); len(out) != 1 || out[0].Action != "c" {
		t.Errorf("%+v", out)
	}
	if out := r.all(api.AuditQuery{Since: time.Now().Add(time.Hour)}); len(out) != 0 {
		t.Errorf("%+v", out)
	}
	if out := r.all(api.AuditQuery{Until: time.Now().Add(-time.Hour)}); len(out) != 0 {
		t.Errorf("%+v", out)
	}
}

func TestWhatIsPrunedIsTheBeginningOfAChain(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{MaxPerWorkspace: 6, Max: 8})
	r.do("ws-2", "old")
	for i := range 9 {
		r.do("ws-1", fmt.Sprintf("a%d", i))
	}
	for i := range 3 {
		r.do("ws-2", fmt.Sprintf("b%d", i))
	}
	r.place(t.Context(), r.term)
	r.prune(t.Context(), r.term)
	heads, err := api.VerifyAudit(r.all(api.AuditQuery{}))
	// 9 become 6; then 10 become 8: the longer chain loses two more.
	if err != nil || len(heads) != 2 || heads[0].First != 6 || heads[0].Last != 9 || heads[1].First != 1 || heads[1].Last != 4 {
		t.Fatalf("%+v, %v", heads, err)
	}
	for _, id := range []string{"ws-1", "ws-2"} {
		r.do(id, "later")
	}
	r.place(t.Context(), r.term)
	all := r.all(api.AuditQuery{})
	if heads, err = api.VerifyAudit(all); err != nil || heads[0].Last != 10 || heads[1].Last != 5 {
		t.Fatalf("%+v, %v", heads, err)
	}
	// What is left follows what the chain says was pruned.
	chain, _ := raftstore.Get(r.Leader().Store.View(), record.AuditChains, "ws-1")
	if i := slices.IndexFunc(all, func(e api.AuditEntry) bool { return e.WorkspaceID == "ws-1" && e.Sequence == chain.Pruned+1 }); i < 0 || all[i].Previous != chain.PrunedHash {
		t.Errorf("%+v", chain)
	}
}

// Who has many workspaces fills the log with their entries, and pushes out nobody else's.
func TestTheLongestLogsLoseTheirEntriesFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{MaxPerWorkspace: 5, Max: 12})
	r.do("ws-1", "deleteDatabase")
	r.do("ws-1", "deleteVolume")
	for _, id := range []string{"ws-3", "ws-4", "ws-5"} {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}})
			return nil
		})
		for i := range 5 {
			r.do(id, fmt.Sprintf("a%d", i))
		}
	}
	r.place(t.Context(), r.term)
	r.prune(t.Context(), r.term)
	left := map[string]int{}
	all := r.all(api.AuditQuery{})
	for _, e := range all {
		left[e.WorkspaceID]++
	}
	// Four of the longest would be one too many, twice: the oldest of those that are left go.
	if want := map[string]int{"ws-1": 2, "ws-3": 3, "ws-4": 3, "ws-5": 4}; !maps.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
	if _, err := api.VerifyAudit(all); err != nil {
		t.Error(err)
	}
}

// Who makes workspaces and deletes them pushes out nothing of anybody else.
func TestWorkspacesThatAreGoneLoseTheirEntriesFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{MaxPerWorkspace: 100, Max: 4})
	r.do("", "deleteAgent")
	r.do("ws-1", "deleteDatabase")
	r.do("ws-2", "deleteDatabase")
	for i := range 6 {
		id := fmt.Sprintf("ws-gone-%d", i)
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}})
			return nil
		})
		r.do(id, "deleteOrg")
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Delete(tx, record.Workspaces, id)
			return nil
		})
	}
	r.place(t.Context(), r.term)
	r.prune(t.Context(), r.term)
	var left []string
	for _, e := range r.all(api.AuditQuery{}) {
		left = append(left, e.WorkspaceID+" "+e.Action)
	}
	if want := []string{"ws-gone-5 deleteOrg", "ws-2 deleteDatabase", "ws-1 deleteDatabase", " deleteAgent"}; !slices.Equal(left, want) {
		t.Errorf("left: %q", left)
	}
}

func TestRefusalsDoNotPushOutWhatWasDone(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	act := core.NewAct(core.Caller{WorkspaceID: "ws-1", UserID: "usr-1", RequestID: "r"}, "deleteApp", "apps/a")
	for range maxRefusals + 5 {
		if err := r.Record(t.Context(), act, core.OutcomeRefused, "forbidden"); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.all(api.AuditQuery{Outcome: "refused"})); n != maxRefusals {
		t.Errorf("%d entries", n)
	}
	r.now = r.now.Add(time.Hour)
	if err := r.Record(t.Context(), act, core.OutcomeRefused, "forbidden"); err != nil {
		t.Fatal(err)
	}
	if n := len(r.all(api.AuditQuery{Outcome: "refused"})); n != maxRefusals+1 {
		t.Errorf("%d entries an hour later", n)
	}
}

// What failed before it began was not done either. Of operators' failures each is told.
func TestFailuresDoNotPushOutWhatWasDone(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	tenants := core.NewAct(core.Caller{WorkspaceID: "ws-1", UserID: "usr-1", RequestID: "r"}, "deleteApp", "apps/a")
	operators := core.NewAct(core.Caller{Admin: true, RequestID: "r"}, "removeAgent", "agents/h1")
	for range maxRefusals + 5 {
		for _, act := range []*core.Act{tenants, operators} {
			if err := r.Record(t.Context(), act, core.OutcomeFailed, "no leader"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(r.all(api.AuditQuery{WorkspaceID: "ws-1"})); n != maxRefusals {
		t.Errorf("%d entries of a tenant", n)
	}
	if n := len(r.all(api.AuditQuery{WorkspaceID: api.AuditOperators})); n != maxRefusals+5 {
		t.Errorf("%d entries of operators", n)
	}
}

// Who belongs to no workspace has no log, and writes nothing into the operators'.
func TestStrangersDoNotFillTheOperatorsLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	for _, workspace := range []string{"", "ws-gone"} {
		act := core.NewAct(core.Caller{WorkspaceID: workspace, UserID: "usr-eve", RequestID: "r"}, "revokeToken", "me/tokens/x")
		for _, outcome := range []string{core.OutcomeOK, core.OutcomeRefused, core.OutcomeFailed} {
			if err := r.Record(t.Context(), act, outcome, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if found := r.all(api.AuditQuery{}); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

// Even a key with few rights can do the same again and again. That pushes nothing out of
// the log, hides nothing else, and is refused to nobody.
func TestWhoDoesMuchDoesNotPushOutWhatOthersDid(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	done := 0
	by := func(key, action string) {
		t.Helper()
		act := core.NewAct(core.Caller{WorkspaceID: "ws-1", UserID: "usr-eve", KeyID: key, RequestID: "req"}, action, "webhooks/endpoints/we-1")
		done++
		err := r.core.Update(core.WithAct(t.Context(), act), func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.JoinTokens, &record.JoinToken{Meta: record.Meta{ID: fmt.Sprint(done)}})
			return nil
		})
		if err != nil || !act.Written() {
			t.Fatalf("%v, written %v", err, act.Written())
		}
	}
	count := func() map[string]int {
		out := map[string]int{}
		for _, e := range r.all(api.AuditQuery{WorkspaceID: "ws-1"}) {
			out[e.Action]++
		}
		return out
	}
	for i := range 130 {
		by(fmt.Sprintf("key-%d", i%3), "rotateWebhookSecret") // a person's keys are that person
	}
	want := map[string]int{"rotateWebhookSecret": 100, core.ActionMore: 1}
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := len(raftstore.All(r.Leader().Store.View(), record.JoinTokens)); n != 130 {
		t.Errorf("%d were done", n)
	}
	for range 15 {
		by("key-1", "deleteApp")
	}
	r.do("ws-1", "deleteDatabase") // another person
	want["deleteApp"], want["deleteDatabase"] = 10, 1
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	r.now = r.now.Add(time.Hour)
	by("key-1", "rotateWebhookSecret")
	want["rotateWebhookSecret"]++
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("an hour later: %v, want %v", got, want)
	}
	r.place(t.Context(), r.term)
	if _, err := api.VerifyAudit(r.all(api.AuditQuery{})); err != nil {
		t.Error(err)
	}
}

// What is refused takes nothing of the share of what is done, so nobody hides an act
// behind requests that do nothing.
func TestWhatIsNotDoneHidesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	for range 130 {
		act := core.NewAct(core.Caller{WorkspaceID: "ws-1", UserID: "usr-1", RequestID: "req"}, "deleteApp", "apps/a")
		if err := r.core.Update(core.WithAct(t.Context(), act), func(*raftstore.Tx) error { return errors.New("not found") }); err == nil {
			t.Fatal("no error")
		}
		if err := r.Record(t.Context(), act, core.OutcomeRefused, "forbidden"); err != nil {
			t.Fatal(err)
		}
	}
	r.do("ws-1", "deleteApp")
	if n := len(r.all(api.AuditQuery{Outcome: core.OutcomeOK})); n != 1 {
		t.Errorf("%d entries of what was done", n)
	}
}

func TestOnlyItsOwnWorkspaceHasALog(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.do("ws-1", "a")
	r.do("ws-2", "b")
	c := core.Caller{WorkspaceID: "ws-1", Role: record.RoleOwner}
	if out, _, err := r.ListOf(t.Context(), c, "ws-1", api.AuditQuery{WorkspaceID: "ws-2"}, core.ListOptions{}); err != nil || len(out) != 1 || out[0].Action != "a" {
		t.Errorf("%+v, %v", out, err)
	}
	if _, _, err := r.ListOf(t.Context(), c, "ws-2", api.AuditQuery{}, core.ListOptions{}); err == nil {
		t.Error("another workspace's log")
	}
}
