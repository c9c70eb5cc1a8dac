package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
	"github.com/berth-cloud/berth/raftstore/record"
)

var bg = context.Background()

func putWorkspace(id, name string) func(tx *Tx) error {
	return func(tx *Tx) error {
		Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}, Name: name})
		return nil
	}
}

func TestWriteOnLeaderIsReadOnFollowers(t *testing.T) {
	c := newCluster(t, 3, nil)
	lead := c.leader()
	ws := &record.Workspace{Meta: record.Meta{ID: "w1"}, Name: "one"}
	err := lead.Update(bg, func(tx *Tx) error { Put(tx, record.Workspaces, ws); return nil })
	if err != nil {
		t.Fatal(err)
	}
	got, ok := Get(lead.View(), record.Workspaces, "w1")
	if !ok || *got != *ws {
		t.Fatalf("stored %+v, caller's row %+v", got, ws)
	}
	if got == ws {
		t.Fatal("the stored row is the caller's")
	}
	for _, f := range c.followers() {
		for {
			view := f.View()
			if _, ok := Get(view, record.Workspaces, "w1"); ok {
				break
			}
			<-view.Changed("workspaces")
		}
		if err := f.Update(bg, func(*Tx) error { return nil }); !errors.Is(err, ErrNotLeader) {
			t.Errorf("update on a follower: %v", err)
		}
		if _, err := f.VerifiedView(bg); !errors.Is(err, ErrNotLeader) {
			t.Errorf("verified view on a follower: %v", err)
		}
		if err := f.Barrier(bg); !errors.Is(err, ErrNotLeader) {
			t.Errorf("barrier on a follower: %v", err)
		}
		if err := f.AddVoter(bg, Server{"x", "127.0.0.1:1"}); !errors.Is(err, ErrNotLeader) {
			t.Errorf("add a voter on a follower: %v", err)
		}
		if id, addr := f.Leader(); id != lead.id || addr != lead.addr {
			t.Errorf("follower takes %s at %s for the leader", id, addr)
		}
	}
	c.converged()
}

func TestUpdateErrors(t *testing.T) {
	c := newCluster(t, 1, nil)
	s := c.leader()
	if err := s.Update(bg, putWorkspace("w", "")); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	before := dump(s.View())
	cancelled, cancel := context.WithCancel(bg)
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		fn   func(tx *Tx) error
		want error
		text string
	}{
		"of the function": {bg, func(tx *Tx) error { Delete(tx, record.Workspaces, "w"); return mine }, mine, ""},
		"no id":           {bg, putWorkspace("", ""), nil, "put into workspaces: row without an id"},
		"not cloned": {bg, func(tx *Tx) error {
			w, _ := Get(tx, record.Workspaces, "w")
			Put(tx, record.Workspaces, w)
			return nil
		}, nil, "put into workspaces: row w is the stored one; clone it before changing it"},
		"a status that may not follow": {bg, func(tx *Tx) error {
			Put(tx, record.Sandboxes, &record.Sandbox{Meta: record.Meta{ID: "s"}, Status: record.SandboxStarting})
			Put(tx, record.Sandboxes, &record.Sandbox{Meta: record.Meta{ID: "s"}, Status: record.SandboxPaused})
			return nil
		}, nil, `put into sandboxes: row s: no transition from "starting" to "paused"`},
		"a status that there is not": {bg, func(tx *Tx) error {
			Put(tx, record.Volumes, &record.Volume{Meta: record.Meta{ID: "v"}, Status: "lost"})
			return nil
		}, nil, `put into volumes: row v: no transition from "" to "lost"`},
		"not JSON": {bg, func(tx *Tx) error {
			Put(tx, record.Sandboxes, &record.Sandbox{Meta: record.Meta{ID: "s"}, Status: record.SandboxStarting, Metadata: []byte("{")})
			return nil
		}, nil, ""},
		"too large": {bg, putWorkspace("big", string(make([]byte, maxTxnBytes))), ErrTooLarge, ""},
		"context":   {cancelled, putWorkspace("x", ""), context.Canceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.Update(c.ctx, c.fn)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || c.text != "" && err.Error() != c.text {
				t.Errorf("error %v", err)
			}
			if errors.Is(err, ErrLeadershipLost) {
				t.Errorf("the outcome is said to be unknown: %v", err)
			}
			if dump(s.View()) != before {
				t.Error("something was written")
			}
		})
	}
	t.Run("a panic leaves the store usable", func(t *testing.T) {
		func() {
			defer func() { _ = recover() }()
			_ = s.Update(bg, func(*Tx) error { panic("in a handler") })
		}()
		if !s.turn.TryAcquire(exclusive) {
			t.Fatal("the turn was not given back")
		}
		s.turn.Release(exclusive)
	})
	t.Run("nothing to write writes nothing", func(t *testing.T) {
		last := s.Status().LastLogIndex
		err := s.Update(bg, func(tx *Tx) error {
			Get(tx, record.Workspaces, "w")
			Delete(tx, record.Workspaces, "not there")
			return nil
		})
		if err != nil || s.Status().LastLogIndex != last {
			t.Errorf("%v, log at %d after %d", err, s.Status().LastLogIndex, last)
		}
	})
	t.Run("unique", func(t *testing.T) {
		key := func(id string) func(tx *Tx) error {
			return func(tx *Tx) error {
				Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: id}, Prefix: "p"})
				return nil
			}
		}
		if err := s.Update(bg, key("k1")); err != nil {
			t.Fatal(err)
		}
		err := s.Update(bg, key("k2"))
		if got := conflictOf(t, err); *got != (ConflictError{"api_keys", "prefix", "p", "k2", "k1"}) {
			t.Errorf("conflict %+v", got)
		}
	})
}

// Counters that everyone raises, with a function that takes its time: each
// transaction must win in the end, and none may be lost.
func TestContendedTransactionsAllSucceedOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	s := c.leader()
	const workers, each = 12, 8
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				err := s.Update(bg, func(tx *Tx) error {
					w, ok := Get(tx, record.Hosts, "counter")
					if !ok {
						w = &record.Host{Meta: record.Meta{ID: "counter"}, State: record.HostLost}
					} else {
						w = w.Clone()
					}
					w.Address += "+"
					Put(tx, record.Hosts, w)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, _ := Get(s.View(), record.Hosts, "counter")
	if got == nil || len(got.Address) != workers*each {
		t.Errorf("counter %+v", got)
	}
	t.Logf("counters %+v", s.Status().Counters)
	c.converged()
}

func TestConcurrentUpdatesShareEntries(t *testing.T) {
	c := newCluster(t, 3, nil)
	s := c.leader()
	before := s.Status().Counters
	var wg sync.WaitGroup
	for w := range 64 {
		wg.Go(func() {
			for i := range 5 {
				if err := s.Update(bg, putWorkspace(fmt.Sprintf("w%d-%d", w, i), "")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	after := s.Status().Counters
	if n := after.Updates - before.Updates; n != 320 {
		t.Errorf("%d updates", n)
	}
	if n := after.Entries - before.Entries; n >= 320 {
		t.Errorf("%d entries for 320 updates", n)
	}
	if n := len(All(s.View(), record.Workspaces)); n != 320 {
		t.Errorf("%d rows", n)
	}
}

func TestLeadershipNotifications(t *testing.T) {
	c := newCluster(t, 3, nil)
	lead := c.leader()
	ch, slow := lead.Leadership(), lead.Leadership()
	if !<-ch {
		t.Fatal("does not begin with the present state")
	}
	if err := lead.TransferLeadership(bg, ""); err != nil {
		t.Fatal(err)
	}
	if <-ch {
		t.Fatal("loss not told")
	}
	if err := lead.Barrier(bg); err == nil {
		t.Error("barrier of a deposed leader")
	}
	next := c.leader()
	if next == lead {
		t.Fatal("leadership did not move")
	}
	if err := next.TransferLeadership(bg, lead.id); err != nil {
		t.Fatal(err)
	}
	if !<-ch {
		t.Fatal("win not told")
	}
	if !<-slow {
		t.Error("a slow reader does not get the last value")
	}
	if !lead.IsLeader() {
		t.Error("told of leadership that it has not")
	}
	if err := lead.TransferLeadership(bg, "nobody"); !errors.Is(err, ErrUnknownPeer) {
		t.Errorf("transfer to nobody: %v", err)
	}
	if err := lead.TransferLeadership(bg, lead.id); err != nil {
		t.Errorf("transfer to itself: %v", err)
	}
	r := c.leader()
	last := r.Leadership()
	<-last
	c.stop(r)
	if v, ok := <-last; ok && v {
		t.Error("a store that closes says it leads")
	}
	if _, ok := <-last; ok {
		t.Error("channel of a closed store is open")
	}
	if next := c.leader(); next == r {
		t.Error("a closed store leads")
	}
}

func TestCloseHandsLeadershipOver(t *testing.T) {
	c := newCluster(t, 3, nil)
	// From here on silence makes no follower a candidate: the next leader is one
	// to whom leadership was handed.
	for _, f := range c.followers() {
		conf := f.raft.ReloadableConfig()
		conf.HeartbeatTimeout, conf.ElectionTimeout = time.Hour, time.Hour
		if err := f.raft.ReloadConfig(conf); err != nil {
			t.Fatal(err)
		}
	}
	c.stop(c.leader())
	c.leader()
}

func TestClosedStore(t *testing.T) {
	c := newCluster(t, 1, nil)
	r := c.leader()
	s := r.Store
	c.stop(r)
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := s.Update(bg, putWorkspace("w", "")); !errors.Is(err, ErrClosed) {
		t.Errorf("update: %v", err)
	}
	if _, err := s.VerifiedView(bg); !errors.Is(err, ErrClosed) {
		t.Errorf("verified view: %v", err)
	}
	if err := s.Barrier(bg); !errors.Is(err, ErrClosed) {
		t.Errorf("barrier: %v", err)
	}
	if st := s.Status(); st.State != "shutdown" {
		t.Errorf("state %q", st.State)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	stream := func() *plaintcp.Stream {
		s, err := plaintcp.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	good := Config{ID: "n", Dir: dir, StreamLayer: stream(), Tables: RecordTables(), Logger: quietLog()}
	s, err := Open(bg, good)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no id":             {func(c *Config) { c.ID = "" }, "raftstore config: no ID"},
		"no directory":      {func(c *Config) { c.Dir = "" }, "raftstore config: no Dir"},
		"no stream":         {func(c *Config) { c.StreamLayer = nil }, "raftstore config: exactly one of StreamLayer and Transport"},
		"no tables":         {func(c *Config) { c.Tables = nil }, "raftstore config: no tables"},
		"table twice":       {func(c *Config) { c.Tables = append(itemTables(), Register(items)) }, "raftstore config: table items is registered twice"},
		"directory in use":  {func(*Config) {}, fmt.Sprintf("open %s/raft.db: another process has it open", dir)},
		"lease too long":    {func(c *Config) { c.LeaderLease = time.Minute }, "raftstore config: LeaderLeaseTimeout (1m0s) cannot be larger than heartbeat timeout (500ms)"},
		"index named as id": {func(c *Config) { c.Tables = []AnyTable{Register(badIndex("id"))} }, `raftstore config: table bad: bad index name "id"`},
		"index named as a memdb query": {func(c *Config) { c.Tables = []AnyTable{Register(badIndex("x_prefix"))} },
			`raftstore config: table bad: bad index name "x_prefix"`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good
			cfg.StreamLayer = stream()
			c.change(&cfg)
			s, err := Open(bg, cfg)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || err.Error() != c.want {
				t.Errorf("error %v", err)
			}
		})
	}
}

func badIndex(name string) record.Table[*item] {
	return record.Table[*item]{Name: "bad", New: func() *item { return &item{} }, Indexes: []record.Index[*item]{{Name: name, Keys: func(*item) []string { return nil }}}}
}
