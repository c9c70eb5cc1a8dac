// Package testcluster starts control stores in the test's own process: real
// Raft, real files, and connections that a test can cut.
package testcluster

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Tables is every table of the control plane.
func Tables() []raftstore.AnyTable {
	return []raftstore.AnyTable{
		raftstore.Register(record.Workspaces), raftstore.Register(record.Users), raftstore.Register(record.APIKeys),
		raftstore.Register(record.Hosts), raftstore.Register(record.JoinTokens), raftstore.Register(record.Sandboxes),
		raftstore.Register(record.Flows), raftstore.Register(record.Outcomes), raftstore.Register(record.IdempotencyKeys),
		raftstore.Register(record.Snapshots), raftstore.Register(record.Volumes),
		raftstore.Register(record.Templates), raftstore.Register(record.Builds), raftstore.Register(record.Clusters),
	}
}

// Log is silent, unless BERTH_TEST_LOG is set.
func Log() *slog.Logger {
	if os.Getenv("BERTH_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Replica is one store and its place in the network.
type Replica struct {
	ID    string
	Store *raftstore.Store

	transport *raft.InmemTransport
}

// Cluster is some replicas.
type Cluster struct {
	t        testing.TB
	Replicas []*Replica
}

// New starts n replicas, which are stopped when the test ends, and waits for a leader.
func New(t testing.TB, n int) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	var servers []raftstore.Server
	for i := range n {
		id := string(rune('a' + i))
		r := &Replica{ID: id}
		_, r.transport = raft.NewInmemTransport(raft.ServerAddress("replica-" + id))
		var err error
		r.Store, err = raftstore.Open(t.Context(), raftstore.Config{
			ID: id, Dir: t.TempDir(), Transport: r.transport, Tables: Tables(), Logger: Log(),
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Replicas = append(c.Replicas, r)
		servers = append(servers, raftstore.Server{ID: id, Address: "replica-" + id})
	}
	t.Cleanup(c.stop)
	for _, r := range c.Replicas {
		c.Heal(r)
	}
	for _, r := range c.Replicas {
		if err := r.Store.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
	c.Leader()
	return c
}

// stop closes every replica. Leaders are left to step down first: one that
// hands its leadership over to a replica just closed waits seconds for it.
func (c *Cluster) stop() {
	if len(c.Replicas) > 1 {
		for _, r := range c.Replicas {
			c.Cut(r)
		}
		Await(c.t, 10*time.Second, "end of every leadership", func() bool {
			for _, r := range c.Replicas {
				if r.Store.Status().State == "leader" {
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

// Cut takes a replica off the network.
func (c *Cluster) Cut(r *Replica) {
	r.transport.DisconnectAll()
	for _, other := range c.Replicas {
		other.transport.Disconnect(r.transport.LocalAddr())
	}
}

// Heal puts a replica back on the network.
func (c *Cluster) Heal(r *Replica) {
	for _, other := range c.Replicas {
		if other != r {
			r.transport.Connect(other.transport.LocalAddr(), other.transport)
			other.transport.Connect(r.transport.LocalAddr(), r.transport)
		}
	}
}

// Leader waits for a replica that answers for the cluster.
func (c *Cluster) Leader() *Replica {
	c.t.Helper()
	var found *Replica
	Await(c.t, 10*time.Second, "a leader", func() bool {
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

// Update runs a transaction on whichever replica leads.
func (c *Cluster) Update(fn func(tx *raftstore.Tx) error) {
	c.t.Helper()
	Await(c.t, 10*time.Second, "a write", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return c.Leader().Store.Update(ctx, fn) == nil
	})
}

// Await polls a condition until it holds, or fails the test.
func Await(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %s", what, limit)
		}
		<-tick.C
	}
}
