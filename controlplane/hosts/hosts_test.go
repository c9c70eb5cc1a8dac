package hosts_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a leading registry with a clock of its own and one host.
type rig struct {
	*hosts.Registry
	*testcluster.Cluster
	store *raftstore.Store
	now   time.Time
	dials int
}

func newRig(t testing.TB, agents ...string) *rig {
	t.Helper()
	r := &rig{Cluster: testcluster.New(t, 1), now: time.Unix(1e9, 0)}
	r.store = r.Leader().Store
	r.Registry = hosts.NewRegistry(hosts.Config{
		Store: r.store, Interval: time.Second, Lease: 10 * time.Second, Clock: func() time.Time { return r.now }, Logger: testcluster.Log(),
		Clients: hosts.NewClients(func(_, address string) *hostapi.Client {
			r.dials++
			return hostapi.NewClient(address, &tls.Config{MinVersion: tls.VersionTLS13})
		}),
	})
	r.Cluster.Update(func(tx *raftstore.Tx) error {
		for _, id := range agents {
			raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: id}, State: record.HostLost})
		}
		return nil
	})
	r.Lead(7)
	return r
}

func heartbeat(id string, sequence uint64, boxes ...hostapi.BoxState) hostapi.Heartbeat {
	return hostapi.Heartbeat{
		HostID: id, Address: "127.0.0.1:7443", BootID: "b1", Sequence: sequence, Ready: true, Boxes: boxes,
		Capacity:  hostapi.Capacity{MemoryMB: 1000, Slots: 4, OverheadMBPerBox: 10},
		Templates: []hostapi.TemplateState{{Name: "base", Status: "ready", MemoryMB: 300}},
	}
}

func (r *rig) send(t *testing.T, hb hostapi.Heartbeat) {
	t.Helper()
	if _, err := r.Heartbeat(t.Context(), hb); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) agent(t *testing.T, id string) *record.Host {
	t.Helper()
	a, ok := raftstore.Get(r.store.View(), record.Hosts, id)
	if !ok {
		t.Fatalf("no agent %s", id)
	}
	return a
}

func TestConclusionsAreWrittenOnlyWhenTheyChange(t *testing.T) {
	r := newRig(t, "h1")
	reply, err := r.Heartbeat(t.Context(), heartbeat("h1", 1))
	if err != nil || reply.Term != 7 || reply.IntervalSeconds != 1 || reply.LeaseSeconds != 10 || len(reply.Peers) != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	a := r.agent(t, "h1")
	if a.State != record.HostUp || a.Address != "127.0.0.1:7443" {
		t.Fatalf("%+v", a)
	}
	for i := range 5 {
		r.send(t, heartbeat("h1", uint64(i+2)))
	}
	if again := r.agent(t, "h1"); again.ModifyIndex != a.ModifyIndex {
		t.Fatal("a heartbeat reached the log")
	}
	moved := heartbeat("h1", 9)
	moved.Address = "127.0.0.1:9999"
	r.send(t, moved)
	if r.agent(t, "h1").Address != "127.0.0.1:9999" {
		t.Fatal("the new address was not written down")
	}
}

func TestOverdueHosts(t *testing.T) {
	r := newRig(t, "h1", "h2")
	r.send(t, heartbeat("h1", 1))
	r.send(t, heartbeat("h2", 1))
	agents := func() []*record.Host { return raftstore.All(r.store.View(), record.Hosts) }
	up, done := r.WhileUp(t.Context(), "h1")
	defer done()
	heard, done := r.WhileHeard(t.Context(), "h1")
	defer done()
	for range 9 { // looked at each second, as the loop does
		r.now = r.now.Add(time.Second)
		if got := r.Overdue(agents()); len(got) != 0 {
			t.Fatalf("early: %v", got)
		}
	}
	r.send(t, heartbeat("h2", 2))
	r.now = r.now.Add(2 * time.Second)
	if got := r.Overdue(agents()); len(got) != 1 || got[0] != "h1" {
		t.Fatalf("%v, want h1", got)
	}
	<-up.Done()
	<-heard.Done()
	if _, err := r.Client("h1"); !errors.Is(err, hostapi.ErrUnreachable) {
		t.Fatalf("a lost host has a client: %v", err)
	}
	if _, err := r.Client("h2"); err != nil {
		t.Fatal(err)
	}
}

// After a network cut, connections look alive but are dead.
func TestAHostThatWasSilentIsDialledAnew(t *testing.T) {
	r := newRig(t, "h1")
	sequence := uint64(0)
	for _, c := range []struct {
		after time.Duration
		dials int
	}{{0, 1}, {time.Second, 1}, {3 * time.Second, 1}, {4 * time.Second, 2}, {time.Second, 2}} {
		r.now = r.now.Add(c.after)
		sequence++
		r.send(t, heartbeat("h1", sequence))
		if _, err := r.Client("h1"); err != nil {
			t.Fatal(err)
		}
		if r.dials != c.dials {
			t.Errorf("heartbeat %d, %s after the last: %d clients, want %d", sequence, c.after, r.dials, c.dials)
		}
	}
}

func TestReservations(t *testing.T) {
	r := newRig(t, "h1")
	r.send(t, heartbeat("h1", 1))
	view := r.store.View()
	place := func(id string) error {
		_, err := r.Place(view, id, 1, placement.Request{Template: "base"})
		return err
	}
	for _, id := range []string{"a", "b", "c"} { // 3 × 310 of 1000
		if err := place(id); err != nil {
			t.Fatal(err)
		}
	}
	var none *placement.Error
	if err := place("d"); !errors.As(err, &none) || none.Reason != placement.NoCapacity {
		t.Fatalf("overcommitted: %v", err)
	}
	if err := place("a"); err != nil {
		t.Fatalf("placed again: %v", err)
	}
	if got := r.Sessions()["h1"].ReservedMB; got != 930 {
		t.Fatalf("%d MB reserved", got)
	}
	// Once the host reports a box, the heartbeat's figure includes it.
	hb := heartbeat("h1", 2, hostapi.BoxState{ID: "a", Generation: 1}, hostapi.BoxState{ID: "b", Generation: 0})
	hb.Capacity.ReservedMB = 310
	r.send(t, hb)
	if got := r.Sessions()["h1"].ReservedMB; got != 620 {
		t.Fatalf("%d MB reserved after the heartbeat: an older generation is another box", got)
	}
	// A heartbeat that arrives after a newer one changes nothing.
	r.send(t, heartbeat("h1", 1))
	if got := r.Sessions()["h1"].Heartbeat.Capacity.ReservedMB; got != 310 {
		t.Fatal("an old heartbeat was taken in")
	}
	r.Release("b")
	r.Release("c")
	r.Release("nobody")
	if err := place("d"); err != nil {
		t.Fatal(err)
	}
	// Reservations for what an earlier leader placed.
	r.Reserve(&record.Sandbox{Meta: record.Meta{ID: "e"}, HostID: "h1", Generation: 1, MemoryMB: 300})
	r.Reserve(&record.Sandbox{Meta: record.Meta{ID: "a"}, HostID: "h1", Generation: 1, MemoryMB: 300}) // reported already
	if got := r.Sessions()["h1"].ReservedMB; got != 620 {
		t.Fatalf("%d MB reserved", got)
	}
}

func TestHostsThatTakeNothing(t *testing.T) {
	r := newRig(t, "h1")
	view := r.store.View
	try := func() error {
		_, err := r.Place(view(), "s", 1, placement.Request{Template: "base"})
		r.Release("s")
		return err
	}
	if try() == nil {
		t.Fatal("placed on a host that was never heard")
	}
	for name, change := range map[string]func(*hostapi.Heartbeat){
		"not ready": func(hb *hostapi.Heartbeat) { hb.Ready = false },
		"draining":  func(hb *hostapi.Heartbeat) { hb.Draining = true },
		"no slot":   func(hb *hostapi.Heartbeat) { hb.Capacity.SlotsUsed = 4 },
		"stalled":   func(hb *hostapi.Heartbeat) { hb.Capacity.DiskStalledMS = 2500 },
		"building":  func(hb *hostapi.Heartbeat) { hb.Templates[0].Status = "building" },
	} {
		hb := heartbeat("h1", uint64(r.now.Unix()))
		r.now = r.now.Add(time.Second)
		change(&hb)
		r.send(t, hb)
		if try() == nil {
			t.Errorf("placed on a host that is %s", name)
		}
	}
	r.send(t, heartbeat("h1", uint64(r.now.Unix())))
	if err := try(); err != nil {
		t.Fatal(err)
	}
	r.Cluster.Update(func(tx *raftstore.Tx) error {
		a, _ := raftstore.Get(tx, record.Hosts, "h1")
		c := a.Clone()
		c.Draining = true
		raftstore.Put(tx, record.Hosts, c)
		return nil
	})
	if try() == nil {
		t.Fatal("placed on a host that the operator drains")
	}
}

// A guessed join token costs one look-up: nothing is signed or logged.
func TestAJoinLooksAtItsTokenFirst(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	r.Update(func(tx *raftstore.Tx) error {
		for id, change := range map[string]func(*record.JoinToken){
			"used":    func(j *record.JoinToken) { j.UsedBy = "h1" },
			"expired": func(j *record.JoinToken) { j.ExpiresAt = now.Add(-time.Second) },
		} {
			row := &record.JoinToken{Meta: record.Meta{ID: hosts.JoinTokenID(id)}, ExpiresAt: now.Add(time.Hour)}
			change(row)
			raftstore.Put(tx, record.JoinTokens, row)
		}
		return nil
	})
	before := r.store.Status().LastLogIndex
	j := &hosts.Joiner{Store: r.store, Clock: func() time.Time { return now }} // no CA: it could sign nothing
	for _, token := range []string{"", "a guess", "used", "expired"} {
		if _, err := j.Join(t.Context(), hostapi.Join{HostID: "h2", Token: token, CSR: "none"}); !errors.Is(err, hosts.ErrJoinToken) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if after := r.store.Status().LastLogIndex; after != before {
		t.Errorf("the log went from %d to %d", before, after)
	}
}

func TestHeartbeatHandlerRefusesBadInput(t *testing.T) {
	r := newRig(t, "h1")
	encode := func(hb hostapi.Heartbeat) string {
		raw, err := json.Marshal(hb)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	noPort, noBoot := heartbeat("h1", 1), heartbeat("h1", 1)
	noPort.Address, noBoot.BootID = "127.0.0.1", ""
	for _, c := range []struct {
		name, method, host, body string
		status                   int
	}{
		{"good", "POST", "h1", encode(heartbeat("h1", 1)), 200},
		{"another host's", "POST", "h2", encode(heartbeat("h1", 1)), 403},
		{"unknown host", "POST", "h9", encode(heartbeat("h9", 1)), 403},
		{"no JSON", "POST", "h1", "nonsense\x00", 400},
		{"wrong types", "POST", "h1", `{"agent_id":5}`, 400},
		{"too large", "POST", "h1", `{"agent_id":"` + strings.Repeat("x", 9<<20) + `"}`, 400},
		{"no port", "POST", "h1", encode(noPort), 400},
		{"no boot id", "POST", "h1", encode(noBoot), 400},
		{"a GET", "GET", "h1", "", 405},
	} {
		w := httptest.NewRecorder()
		r.ServeHeartbeat(w, httptest.NewRequest(c.method, hostapi.PathHeartbeat, strings.NewReader(c.body)), c.host)
		if w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.status)
		}
	}
	r.Resign()
	w := httptest.NewRecorder()
	r.ServeHeartbeat(w, httptest.NewRequest("POST", hostapi.PathHeartbeat, strings.NewReader(encode(heartbeat("h1", 2)))), "h1")
	var to hostapi.NotLeader
	if err := json.Unmarshal(w.Body.Bytes(), &to); w.Code != 421 || err != nil || to.LeaderID != "a" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

// How long a flow retries the same host depends on the host's state.
func TestWhatMayPass(t *testing.T) {
	r := newRig(t, "steady", "ending", "starting", "gone")
	ending, starting := heartbeat("ending", 1), heartbeat("starting", 1)
	ending.Draining, starting.Ready = true, false
	for _, hb := range []hostapi.Heartbeat{heartbeat("steady", 1), ending, starting} {
		r.send(t, hb)
	}
	r.now = r.now.Add(10 * time.Second) // nobody is waited for to be heard any more
	draining := &hostapi.Error{Code: hostapi.CodeDraining, Message: "host is starting up or shutting down"}
	for name, c := range map[string]struct {
		hostID string
		err    error
		tries  int // that are worth another
	}{
		"refused by one that restarts":      {"steady", draining, 8}, // its heartbeat is older than the refusal
		"refused by one that ends":          {"ending", draining, 8},
		"no answer":                         {"steady", hostapi.ErrUnreachable, 5},
		"an answer that was lost":           {"steady", hostapi.ErrUnknownOutcome, 5},
		"no answer of one that ends":        {"ending", hostapi.ErrUnreachable, 8},
		"no answer of one that starts":      {"starting", hostapi.ErrUnknownOutcome, 8},
		"no answer of one that is not here": {"gone", hostapi.ErrUnreachable, 5},
		"another refusal":                   {"starting", &hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}, 0},
		"no call at all":                    {"steady", hosts.ErrNotLeading, 0},
	} {
		tries := 0
		for tries < 100 && r.Passing(r.store.View(), c.hostID, tries, c.err) {
			tries++
		}
		if tries != c.tries {
			t.Errorf("%s: %d tries, want %d", name, tries, c.tries)
		}
	}
}

// A host whose creates fail stays empty, and would otherwise be chosen for every
// create.
func TestABrokenHostIsPassedOver(t *testing.T) {
	p := testplane.New(t, 1, nil)
	broken, busy := p.Host("h1", 8192), p.Host("h2", 4096)
	n := p.LeaderNode()
	place := func() string {
		t.Helper()
		c, err := n.Hosts.Place(n.Store.View(), strings.Repeat("p", 26), 1, placement.Request{Template: "base"})
		if err != nil {
			t.Fatal(err)
		}
		n.Hosts.Release(strings.Repeat("p", 26))
		return c.HostID
	}
	put := func(fault error) {
		broken.SetFault(func(_ context.Context, c fakehost.Call) error {
			if c.Op == "put" {
				return fault
			}
			return nil
		})
		client, err := n.Hosts.Client(broken.ID)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = n.Hosts.PutBox(t.Context(), client, strings.Repeat("a", 26), hostapi.BoxSpec{Generation: 1, Template: "base"})
	}
	if got := place(); got != broken.ID {
		t.Fatalf("the emptiest host is %s", got)
	}
	put(&hostapi.Error{Code: hostapi.CodeNoMemory, Message: "full"}) // is no fault
	if got := place(); got != broken.ID {
		t.Errorf("a host that was full for a moment is passed over for %s", got)
	}
	put(&hostapi.Error{Code: hostapi.CodeInternal, Message: "broken"})
	if got := place(); got != busy.ID {
		t.Errorf("the broken host is chosen again")
	}
	put(nil)
	if got := place(); got != broken.ID {
		t.Errorf("a host that works again is passed over for %s", got)
	}
}
