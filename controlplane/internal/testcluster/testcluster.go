// Package testcluster runs control stores in the test's process: real Raft, real
// files, and connections that a test can cut.
package testcluster

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore"
)

// Log returns a logger that is silent unless BERTH_TEST_LOG is set.
func Log() *slog.Logger {
	if os.Getenv("BERTH_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Replica is a store with its connection to the network.
type Replica struct {
	ID    string
	Store *raftstore.Store

	transport *raft.InmemTransport
	cut       atomic.Bool
}

// Cluster contains several replicas.
type Cluster struct {
	t         testing.TB
	clock     func() time.Time
	heartbeat time.Duration // how long a replica waits for a leader before it asks for votes
	Replicas  []*Replica
}

// New starts n replicas, which stop when the test ends, and waits for a leader.
func New(t testing.TB, n int) *Cluster {
	t.Helper()
	return NewAt(t, n, time.Now)
}

// NewAt is New with a clock for the transactions.
func NewAt(t testing.TB, n int, clock func() time.Time) *Cluster {
	t.Helper()
	// Many clusters run at once, on CPUs that are busy. A replica that is alone has
	// nobody to wait for.
	c := &Cluster{t: t, clock: clock, heartbeat: time.Second}
	if n == 1 {
		c.heartbeat = 20 * time.Millisecond
	}
	var servers []raftstore.Server
	for range n {
		r := c.Another()
		servers = append(servers, raftstore.Server{ID: r.ID, Address: r.Address()})
	}
	t.Cleanup(c.stop)
	for _, r := range c.Replicas {
		if err := r.Store.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
	c.Leader()
	return c
}

// Another starts one more replica, which is in no cluster until a leader adds it.
func (c *Cluster) Another() *Replica {
	c.t.Helper()
	r := &Replica{ID: string(rune('a' + len(c.Replicas)))}
	_, r.transport = raft.NewInmemTransport(raft.ServerAddress("replica-" + r.ID + ":7001"))
	var err error
	r.Store, err = raftstore.Open(c.t.Context(), raftstore.Config{
		ID: r.ID, Dir: c.t.TempDir(), Transport: r.transport, Tables: raftstore.RecordTables(), Logger: Log(), Clock: c.clock,
		HeartbeatTimeout: c.heartbeat,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.Replicas = append(c.Replicas, r)
	c.Heal(r)
	return r
}

// Address returns the address by which others reach the replica.
func (r *Replica) Address() string { return string(r.transport.LocalAddr()) }

// stop closes every replica. It lets leaders step down first, because one that hands
// its leadership to a replica that was just closed waits for it for seconds.
func (c *Cluster) stop() {
	if len(c.Replicas) > 1 {
		for _, r := range c.Replicas {
			c.Cut(r)
		}
		Await(c.t, "end of every leadership", func() bool {
			for _, r := range c.Replicas {
				if st := r.Store.Status(); st.State == "leader" && st.Voters() > 1 {
					return false
				}
			}
			return true
		})
	}
	for _, r := range c.Replicas {
		if err := r.Store.Close(); err != nil {
			c.t.Errorf("close replica %s: %v", r.ID, err)
		}
	}
}

// Cut disconnects a replica.
func (c *Cluster) Cut(r *Replica) {
	r.cut.Store(true)
	r.transport.DisconnectAll()
	for _, other := range c.Replicas {
		other.transport.Disconnect(r.transport.LocalAddr())
	}
}

// IsCut reports whether a replica is disconnected.
func (c *Cluster) IsCut(r *Replica) bool { return r.cut.Load() }

// Heal reconnects a replica with those that are not cut.
func (c *Cluster) Heal(r *Replica) {
	r.cut.Store(false)
	for _, other := range c.Replicas {
		if other != r && !other.cut.Load() {
			r.transport.Connect(other.transport.LocalAddr(), other.transport)
			other.transport.Connect(r.transport.LocalAddr(), r.transport)
		}
	}
}

// Leader waits for a replica that leads.
func (c *Cluster) Leader() *Replica {
	c.t.Helper()
	var found *Replica
	Await(c.t, "a leader", func() bool {
		for _, r := range c.Replicas {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := r.Store.VerifiedView(ctx)
			cancel()
			if err == nil {
				found = r
				return true
			}
		}
		return false
	})
	return found
}

// Update runs a transaction on the replica that leads.
func (c *Cluster) Update(fn func(tx *raftstore.Tx) error) {
	c.t.Helper()
	Await(c.t, "a write", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return c.Leader().Store.Update(ctx, fn) == nil
	})
}

// Patience is how long tests wait for what is to happen at once: on a machine whose
// CPUs are busy, that may be long.
const Patience = time.Minute

// Await polls a condition until it holds, or fails the test after Patience.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %s", what, Patience)
		}
		<-tick.C
	}
}
