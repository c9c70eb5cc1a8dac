package raftstore

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		os.Exit(runReplica())
	}
	goleak.VerifyTestMain(m)
}

func quietLog() *slog.Logger {
	if os.Getenv("RAFTSTORE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// replica is a place where a store runs; it keeps its address and its files
// over restarts.
type replica struct {
	id, dir, addr string
	*Store        // nil while it is down
}

type cluster struct {
	t    *testing.T
	conf func(*Config)
	all  []*replica
}

// newCluster starts n replicas over TCP on the loopback interface and waits
// for a leader.
func newCluster(t *testing.T, n int, conf func(*Config)) *cluster {
	t.Helper()
	c := &cluster{t: t, conf: conf}
	for range n {
		c.start(c.place())
	}
	var servers []Server
	for _, r := range c.all {
		servers = append(servers, Server{r.id, r.addr})
	}
	for _, r := range c.all {
		if err := r.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, r := range c.all {
			c.stop(r)
		}
	})
	c.leader()
	return c
}

// place makes a replica without starting it.
func (c *cluster) place() *replica {
	r := &replica{id: fmt.Sprintf("n%d", len(c.all)+1)}
	r.dir = filepath.Join(c.t.TempDir(), r.id)
	r.addr = "127.0.0.1:0"
	c.all = append(c.all, r)
	return r
}

func (c *cluster) start(r *replica) {
	c.t.Helper()
	stream, err := plaintcp.Listen(r.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	r.addr = stream.Addr().String()
	cfg := Config{ID: r.id, Dir: r.dir, Tables: RecordTables(), StreamLayer: stream, Logger: quietLog()}
	if c.conf != nil {
		c.conf(&cfg)
	}
	if r.Store, err = Open(context.Background(), cfg); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) stop(r *replica) {
	c.t.Helper()
	if r.Store == nil {
		return
	}
	if err := r.Close(); err != nil {
		c.t.Error(err)
	}
	r.Store = nil
}

// up is every replica that runs.
func (c *cluster) up() []*replica {
	return slices.DeleteFunc(slices.Clone(c.all), func(r *replica) bool { return r.Store == nil })
}

// leader waits for a replica that answers for the cluster.
func (c *cluster) leader() *replica {
	c.t.Helper()
	var found *replica
	await(c.t, "a leader", func() bool {
		for _, r := range c.up() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := r.VerifiedView(ctx)
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

func (c *cluster) followers() []*replica {
	lead := c.leader()
	return slices.DeleteFunc(c.up(), func(r *replica) bool { return r == lead })
}

// update runs a transaction on whichever replica leads, again when nothing was
// written because it did not.
func (c *cluster) update(fn func(tx *Tx) error) {
	c.t.Helper()
	await(c.t, "a write", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return c.leader().Update(ctx, fn) == nil
	})
}

// converged waits until every running replica has the same state.
func (c *cluster) converged() {
	c.t.Helper()
	await(c.t, "equal states", func() bool {
		want := dump(c.leader().View())
		for _, r := range c.up() {
			if dump(r.View()) != want {
				return false
			}
		}
		return true
	})
}

// await polls a condition.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within a minute", what)
		}
		<-tick.C
	}
}

// dump is a whole state as text.
func dump(v *Snapshot) string {
	var out []byte
	for _, t := range v.set.sorted {
		for _, s := range t.all(v.txn) {
			out = fmt.Appendf(out, "%s/%s %d %d %s %s %s\n", t.name, s.meta.ID, s.meta.CreateIndex, s.meta.ModifyIndex,
				s.meta.CreatedAt.Format(time.RFC3339Nano), s.meta.UpdatedAt.Format(time.RFC3339Nano), s.payload)
		}
	}
	return string(out)
}
