package pgedge

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/netfab/pgsni"
	"github.com/berth-cloud/berth/timescale"
)

// fed is a replica that routers listen to.
type fed struct {
	server *httptest.Server
	feed   *Feed

	mu      sync.Mutex
	entries map[string]Entry
	hosts   bool
	store   string
	index   uint64
	looks   int
	leader  string
	changed chan struct{}
}

func newFed(t *testing.T, leader string, entries ...Entry) *fed {
	f := &fed{entries: map[string]Entry{}, hosts: true, store: "cl-one", leader: leader, changed: make(chan struct{})}
	for _, e := range entries {
		f.entries[e.ID] = e
	}
	f.feed = NewFeed(FeedConfig{
		Known: func() Known {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.looks++
			var out []Entry
			for _, e := range f.entries {
				out = append(out, e)
			}
			return Known{Entries: out, Hosts: f.hosts, Store: f.store, Index: f.index, Changed: f.changed}
		},
		Leader: func() (string, string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return "a", f.leader
		},
		Secret: []byte("secret"), Log: slog.New(slog.DiscardHandler),
	})
	f.server = httptest.NewServer(NewPeers(PeersConfig{Feed: f.feed}).Handler())
	t.Cleanup(func() {
		f.feed.Close()
		f.server.Close()
	})
	return f
}

func (f *fed) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// asked is how often the table was looked at.
func (f *fed) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks
}

func (f *fed) address() string { return f.server.Listener.Addr().String() }

// plainly is a Transport that uses no TLS.
type plainly struct{ http.Transport }

func (p *plainly) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	return p.Transport.RoundTrip(r)
}

// listen runs a Table until the test ends.
func listen(t *testing.T, cancel func(pgsni.CancelKey), replicas ...string) *Table {
	transport := &plainly{}
	table := NewTable(TableConfig{
		Replicas: replicas, Transport: transport, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Cancel: func(_ context.Context, key pgsni.CancelKey) bool { cancel(key); return true },
	})
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		table.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-over
		transport.CloseIdleConnections()
	})
	return table
}

func (t *Table) row(id string) Entry {
	e, _ := t.Lookup(id)
	return e
}

// A leader that is frozen keeps its connections and never answers. Whoever waits for a wake
// of it must get to the next leader.
func TestARouterLeavesALeaderThatIsFrozen(t *testing.T) {
	reached := make(chan struct{})
	frozen := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(reached)
		<-r.Context().Done()
	}))
	t.Cleanup(frozen.Close)
	f := newFed(t, frozen.Listener.Addr().String(), entry())
	table := listen(t, nil, f.address())
	eventually(t, "the leader is known", func() bool { _, at := table.Leader(); return at != "" })
	transport := &plainly{}
	t.Cleanup(transport.CloseIdleConnections)
	peers := NewPeers(PeersConfig{
		Leading: func() bool { return false }, Leader: table.Leader, Transport: transport, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithTimeout(t.Context(), timescale.Limit(20*time.Second))
	defer cancel()
	woken := make(chan error, 1)
	go func() { woken <- peers.Wake(ctx, database) }()
	<-reached
	f.change(func() { f.leader = "leader:2" })
	if err := <-woken; apierror.CodeOf(err) != apierror.EUnavailable || ctx.Err() != nil {
		t.Errorf("%v, and the wait: %v", err, ctx.Err())
	}
}

func TestARouterHearsOfEveryChange(t *testing.T) {
	other := entry()
	other.ID = "00000000-0000-4000-8000-000000000001"
	f := newFed(t, "leader:1", entry(), other)
	table := listen(t, nil, f.address())
	<-table.Ready()
	if string(table.Secret()) != "secret" {
		t.Errorf("secret %q", table.Secret())
	}
	if e := table.row(database); e.Verifier != entry().Verifier || e.BrokerTokenHash != nil {
		t.Errorf("told %+v", e)
	}
	eventually(t, "the leader is known", func() bool { _, at := table.Leader(); return at == "leader:1" })
	news := table.Changed()
	f.change(func() {
		e := entry()
		e.Index, e.Error = 9, "another"
		f.entries[database] = e
		delete(f.entries, other.ID)
		f.leader = ""
	})
	<-news
	eventually(t, "the change is known", func() bool { return table.row(database).Error == "another" })
	eventually(t, "one is gone", func() bool { return table.row(other.ID).ID == "" })
	eventually(t, "the leader is gone", func() bool { _, at := table.Leader(); return at == "" })
}

func TestARouterGoesOnWithWhatItHas(t *testing.T) {
	newer := entry()
	newer.Index, newer.User = 9, "renamed"
	first, second := newFed(t, "leader:1", newer), newFed(t, "leader:1")
	table := listen(t, nil, first.address(), second.address())
	<-table.Ready()
	if err := second.server.Config.Shutdown(t.Context()); err != nil { // no router listens to it yet
		t.Fatal(err)
	}
	first.feed.Close() // it also serves no new stream: each ends at once
	first.server.CloseClientConnections()
	eventually(t, "the first was tried again", func() bool { return table.row(database).User == "renamed" })

	// A replica that is behind does not overwrite newer entries.
	behind := newFed(t, "leader:2", entry())
	table2 := listen(t, nil, first.address(), behind.address())
	table2.mu.Lock()
	table2.entries = map[string]Entry{database: newer}
	table2.mu.Unlock()
	eventually(t, "the one behind is heard", func() bool { _, at := table2.Leader(); return at == "leader:2" })
	<-table2.Ready()
	if e := table2.row(database); e.User != "renamed" {
		t.Errorf("an older row has come back: %+v", e)
	}
	behind.change(func() {
		newest := newer
		newest.Index, newest.User = 10, "again"
		behind.entries[database] = newest
	})
	eventually(t, "it has caught up", func() bool { return table2.row(database).User == "again" })
}

// A replica that has just been restarted knows no more than its last snapshot until it hears a
// leader. A database that came later is no deleted one: its sessions are not cut.
func TestARouterKeepsWhatAReplicaBehindCannotKnow(t *testing.T) {
	old, young := entry(), entry()
	old.Index, young.Index = 8, 30
	young.ID = "00000000-0000-4000-8000-000000000001"
	ahead, behind, later := newFed(t, "leader:1", old, young), newFed(t, "leader:2", old), newFed(t, "leader:3", old)
	ahead.index, behind.index, later.index = 31, 29, 32
	table := listen(t, nil, ahead.address(), behind.address(), later.address())
	<-table.Ready()
	ahead.feed.Close()
	ahead.server.Close()
	eventually(t, "the one behind is heard", func() bool { _, at := table.Leader(); return at == "leader:2" })
	if table.row(young.ID).ID == "" {
		t.Error("a database is forgotten that the replica cannot know of")
	}
	behind.feed.Close()
	behind.server.Close()
	eventually(t, "a database that was deleted is gone", func() bool { return table.row(young.ID).ID == "" })
}

// The replicas of a cluster that is made anew are empty until a backup is restored. A router that
// knows databases keeps them, and the sessions; one that knows none has nothing to lose.
func TestARouterKeepsItsTableUntilABackupIsRestored(t *testing.T) {
	before, anew := newFed(t, "leader:1", entry()), newFed(t, "leader:2")
	anew.hosts = false
	table := listen(t, nil, before.address(), anew.address())
	<-table.Ready()
	before.feed.Close()
	before.server.Close()
	there := func() bool { return table.row(database).ID == database }
	eventually(t, "the new one is asked again", func() bool { return anew.asked() > 1 || !there() })
	if !there() {
		t.Fatal("what was known is forgotten, and its sessions are cut")
	}
	anew.change(func() {
		restored := entry()
		restored.User = "restored"
		anew.hosts, anew.entries[database] = true, restored
	})
	eventually(t, "what was restored is known", func() bool { return table.row(database).User == "restored" })

	empty := newFed(t, "leader:3")
	empty.hosts = false
	<-listen(t, nil, empty.address()).Ready()
}

// A restored backup may have lower indexes than what a router knows of the time after it.
func TestWhatARestoredBackupSaysIsBelievedAtOnce(t *testing.T) {
	later, restored := entry(), entry()
	later.Index, later.User = 90, "later"
	restored.Index, restored.User = 30, "restored"
	before, after := newFed(t, "leader:1", later), newFed(t, "leader:2", restored)
	after.store = "cl-two"
	table := listen(t, nil, before.address(), after.address())
	<-table.Ready()
	before.feed.Close()
	before.server.Close()
	eventually(t, "the restored row is known", func() bool { return table.row(database).User == "restored" })

	// And when it is restored while a router listens, the next replica may be behind.
	running := newFed(t, "leader:3", later)
	table = listen(t, nil, running.address())
	<-table.Ready()
	running.change(func() { running.store, running.entries[database] = "cl-two", restored })
	eventually(t, "the restored row is known", func() bool { return table.row(database).User == "restored" })
	eventually(t, "the restored store is known", func() bool {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.store == "cl-two"
	})
}

func TestAReplicaThatIsSilentOrCutOffIsLeft(t *testing.T) {
	silence, leaderless := tableSilence, tableLeaderless
	t.Cleanup(func() { tableSilence, tableLeaderless = silence, leaderless }) // after the table has stopped
	tableSilence, tableLeaderless = 3*beatEvery, 2*beatEvery
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer silent.Close()
	good := newFed(t, "leader:1", entry())
	cutOff := newFed(t, "")
	table := listen(t, nil, silent.Listener.Addr().String(), cutOff.address(), good.address())
	eventually(t, "the good one is found", func() bool { return table.row(database).ID == database })
}

func TestACancelRequestFindsARouterOfItsOwn(t *testing.T) {
	f := newFed(t, "leader:1")
	got := make(chan pgsni.CancelKey, 1)
	table := listen(t, func(key pgsni.CancelKey) { got <- key }, f.address())
	<-table.Ready()
	n := roundTripper{}
	n["other"] = NewPeers(PeersConfig{Feed: f.feed})
	for name, ask := range map[string]func(pgsni.CancelKey){
		"another replica's": func(key pgsni.CancelKey) { NewPeers(peersOf(n, "", "other")).CancelElsewhere(t.Context(), key) },
		"the replica's own": func(key pgsni.CancelKey) {
			cfg := peersOf(n, "")
			cfg.Feed = f.feed
			NewPeers(cfg).CancelElsewhere(t.Context(), key)
		},
	} {
		ask(pgsni.CancelKey{PID: 7, Secret: []byte(name)})
		if key := <-got; key.PID != 7 || string(key.Secret) != name {
			t.Errorf("%s: %+v", name, key)
		}
	}
}

// Guests that stand still, as paused ones do, take no cancel request. They must not use up the
// places of all others.
func TestACancelRequestThatIsNotTakenEnds(t *testing.T) {
	limit := cancelLimit
	t.Cleanup(func() { cancelLimit = limit }) // after the table has stopped
	cancelLimit = 10 * time.Millisecond
	f := newFed(t, "leader:1")
	var ended atomic.Int32
	table := NewTable(TableConfig{
		Replicas: []string{f.address()}, Transport: &plainly{}, Log: slog.New(slog.DiscardHandler),
		Cancel: func(ctx context.Context, _ pgsni.CancelKey) bool {
			<-ctx.Done()
			ended.Add(1)
			return true
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); table.Run(ctx) }()
	t.Cleanup(func() { stop(); <-over; table.cfg.Transport.(*plainly).CloseIdleConnections() })
	<-table.Ready()
	f.feed.Cancel(pgsni.CancelKey{PID: 7, Secret: []byte("secret")})
	eventually(t, "the request is given up", func() bool { return ended.Load() == 1 })
}

func TestRoutersThatListenAreBounded(t *testing.T) {
	f := newFed(t, "leader:1")
	for range maxFeeds {
		if _, ok := f.feed.attach(); !ok {
			t.Fatal("refused too early")
		}
	}
	resp, err := http.Post("http://"+f.address()+pathTable, "application/json", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode == http.StatusOK {
		t.Error("one more is taken")
	}
}
