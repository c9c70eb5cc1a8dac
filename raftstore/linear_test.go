package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// register reads and writes one, through a store that may not be the leader.
func register(ctx context.Context, s *Store, op registerOp) (value string, happened, known bool) {
	if op.kind == "read" {
		v, err := s.VerifiedView(ctx)
		if err != nil {
			return "", false, true
		}
		if w, ok := Get(v, record.Workspaces, op.key); ok {
			value = w.Name
		}
		return value, true, true
	}
	err := s.Update(ctx, func(tx *Tx) error {
		value = ""
		if op.kind == "swap" {
			if w, ok := Get(tx, record.Workspaces, op.key); ok {
				value = w.Name
			}
		}
		Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: op.key}, Name: op.value})
		return nil
	})
	return value, err == nil, !errors.Is(err, ErrLeadershipLost)
}

// The leader is crashed, cut off or deposed again and again while clients read
// and write through whichever replica they happen to ask.
func TestLinearizableWhileLeadersFall(t *testing.T) {
	tier.Slow(t)
	var mu sync.Mutex // guards streams and the replicas' stores
	streams := map[string]*plaintcp.Stream{}
	c := newCluster(t, 3, func(cfg *Config) {
		streams[cfg.ID] = cfg.StreamLayer.(*plaintcp.Stream)
		small(cfg)
		cfg.CloseTimeout = time.Second
	})
	stores := func() (out []*Store) {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range c.up() {
			out = append(out, r.Store)
		}
		return out
	}
	h := newHistory()
	var acks atomic.Int64
	ctx, stop := context.WithCancel(bg)
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				op := registerOp{
					kind:  []string{"read", "write", "swap"}[rand.IntN(3)],
					key:   fmt.Sprintf("r%d", rand.IntN(4)),
					value: fmt.Sprintf("%d-%d", client, n),
				}
				for _, s := range stores() {
					done := false
					h.do(client, op, func() (string, bool, bool) {
						octx, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						v, happened, known := register(octx, s, op)
						if happened {
							acks.Add(1)
						}
						done = happened || !known
						return v, happened, known
					})
					if done {
						break
					}
				}
			}
		})
	}
	progress := func(n int64) {
		from := acks.Load()
		await(t, "progress", func() bool { return acks.Load() >= from+n })
	}
	for round := range 9 {
		progress(150)
		mu.Lock()
		lead := c.leader()
		mu.Unlock()
		switch round % 3 {
		case 0:
			if err := lead.close(false); err != nil {
				t.Error(err)
			}
			mu.Lock()
			lead.Store = nil
			mu.Unlock()
			progress(100)
			mu.Lock()
			c.start(lead)
			mu.Unlock()
		case 1:
			streams[lead.id].Cut(true)
			progress(100)
			streams[lead.id].Cut(false)
		case 2:
			if err := lead.TransferLeadership(bg, ""); err != nil {
				t.Logf("transfer: %v", err)
			}
		}
	}
	progress(150)
	stop()
	clients.Wait()
	c.converged()
	h.check(t)
}
