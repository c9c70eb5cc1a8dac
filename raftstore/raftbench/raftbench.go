// Package raftbench measures the store against the Raft library alone: three
// replicas each, in one process, over TCP on the loopback interface, with the
// same settings, log store and size of value, in turns.
package raftbench

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	replicas   = 3
	valueBytes = 512 // of a plain log entry, and of a row's value beside its id and times
	rounds     = 12  // turns each side takes at one number of clients

	heartbeat  = 300 * time.Millisecond
	rpcTimeout = 3 * time.Second
)

// Measure is what one side did.
type Measure struct {
	CommitsPerSecond float64
	P50, P99         time.Duration // of one commit
}

// Point compares the two at one number of concurrent clients.
type Point struct {
	Clients     int
	Ours, Plain Measure
}

// Ratio is the share of plain Raft's throughput that is left.
func (p Point) Ratio() float64 { return p.Ours.CommitsPerSecond / p.Plain.CommitsPerSecond }

// Run measures each number of clients for the given time on each side. Files
// go below dir.
func Run(ctx context.Context, dir string, clients []int, each time.Duration) ([]Point, error) {
	ours, err := startStore(ctx, filepath.Join(dir, "ours"))
	if err != nil {
		return nil, fmt.Errorf("start raftstore: %w", err)
	}
	defer ours.close()
	plain, err := startPlain(filepath.Join(dir, "plain"))
	if err != nil {
		return nil, fmt.Errorf("start plain raft: %w", err)
	}
	defer plain.close()
	if err := warm(ctx, ours.commit, plain.commit); err != nil {
		return nil, err
	}
	var points []Point
	for _, n := range clients {
		// In turns, so that a drift of the machine touches both alike.
		var a, b samples
		for range rounds {
			if err := a.drive(ctx, n, each/rounds, ours.commit); err != nil {
				return nil, fmt.Errorf("raftstore, %d clients: %w", n, err)
			}
			if err := b.drive(ctx, n, each/rounds, plain.commit); err != nil {
				return nil, fmt.Errorf("plain raft, %d clients: %w", n, err)
			}
		}
		points = append(points, Point{n, a.measure(), b.measure()})
	}
	return points, nil
}

// commit makes one write of a client durable; i counts that client's writes.
type commit func(ctx context.Context, client, i int) error

// warm waits for both leaders.
func warm(ctx context.Context, sides ...commit) error {
	for _, c := range sides {
		for {
			err := c(ctx, 0, 0)
			if err == nil {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("no leader: %w (last: %w)", ctx.Err(), err)
			}
		}
	}
	return nil
}

// samples are the latencies of one side at one number of clients.
type samples struct {
	latency []time.Duration
	elapsed time.Duration
}

// drive lets n clients commit one after the other for a while.
func (s *samples) drive(ctx context.Context, n int, d time.Duration, c commit) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	start := time.Now()
	for client := range n {
		wg.Go(func() {
			var mine []time.Duration
			var err error
			for i := 0; time.Since(start) < d && err == nil; i++ {
				t := time.Now()
				if err = c(ctx, client, i); err == nil {
					mine = append(mine, time.Since(t))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			s.latency = append(s.latency, mine...)
			if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	s.elapsed += time.Since(start)
	return first
}

func (s *samples) measure() Measure {
	if len(s.latency) == 0 {
		return Measure{}
	}
	slices.Sort(s.latency)
	return Measure{
		CommitsPerSecond: float64(len(s.latency)) / s.elapsed.Seconds(),
		P50:              s.latency[len(s.latency)/2],
		P99:              s.latency[len(s.latency)*99/100],
	}
}

// value is incompressible and goes through JSON unescaped.
func value() string {
	b := make([]byte, valueBytes)
	_, _ = rand.Read(b) // never fails
	return base64.RawStdEncoding.EncodeToString(b)[:valueBytes]
}

// Item is the row that is written.
type Item struct {
	record.Meta
	Value string `json:"value"`
}

var items = record.Table[*Item]{Name: "items", New: func() *Item { return &Item{} }}

// storeCluster is three replicas of the store.
type storeCluster struct {
	streams []*plaintcp.Stream
	stores  []*raftstore.Store
	leader  *raftstore.Store
	value   string
}

func startStore(ctx context.Context, dir string) (*storeCluster, error) {
	c := &storeCluster{value: value()}
	var servers []raftstore.Server
	for i := range replicas {
		stream, err := plaintcp.Listen("127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		id := fmt.Sprintf("n%d", i+1)
		s, err := raftstore.Open(ctx, raftstore.Config{
			ID: id, Dir: filepath.Join(dir, id), StreamLayer: stream,
			Tables:           []raftstore.AnyTable{raftstore.Register(items)},
			HeartbeatTimeout: heartbeat,
			Logger:           slog.New(slog.DiscardHandler),
		})
		if err != nil {
			c.close()
			return nil, err
		}
		c.streams = append(c.streams, stream)
		c.stores = append(c.stores, s)
		servers = append(servers, raftstore.Server{ID: id, Address: stream.Addr().String()})
	}
	if err := c.stores[0].Bootstrap(servers); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *storeCluster) close() {
	for _, s := range c.stores {
		_ = s.Close()
	}
}

// commit writes one row of the client's, each of a thousand in turn.
func (c *storeCluster) commit(ctx context.Context, client, i int) error {
	if c.leader == nil { // found while warming up, by one client
		for _, s := range c.stores {
			if s.IsLeader() {
				c.leader = s
			}
		}
		if c.leader == nil {
			return raftstore.ErrNotLeader
		}
	}
	return c.leader.Update(ctx, func(tx *raftstore.Tx) error {
		id := fmt.Sprintf("%04d-%04d", client, i%1000)
		raftstore.Put(tx, items, &Item{Meta: record.Meta{ID: id}, Value: c.value})
		return nil
	})
}
