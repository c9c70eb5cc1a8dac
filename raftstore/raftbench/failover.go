package raftbench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Failover measures the time from the sudden loss of the leader to the next
// accepted write: the leader is taken off the network, with its connections
// reset as those of a killed process are, and put back afterwards.
func Failover(ctx context.Context, dir string, times int) ([]time.Duration, error) {
	c, err := startStore(ctx, filepath.Join(dir, "failover"))
	if err != nil {
		return nil, fmt.Errorf("start raftstore: %w", err)
	}
	defer c.close()
	var took []time.Duration
	for n := range times {
		lead, err := c.write(ctx, -1, fmt.Sprintf("before-%d", n))
		if err != nil {
			return nil, err
		}
		c.streams[lead].Cut(true)
		lost := time.Now()
		_, err = c.write(ctx, lead, fmt.Sprintf("after-%d", n))
		took = append(took, time.Since(lost))
		c.streams[lead].Cut(false)
		if err == nil {
			err = c.caughtUp(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

// write asks one replica after the other until one has written, and returns
// which; it leaves one out.
func (c *storeCluster) write(ctx context.Context, except int, id string) (int, error) {
	for {
		for i, s := range c.stores {
			if i == except || !s.IsLeader() {
				continue
			}
			err := s.Update(ctx, func(tx *raftstore.Tx) error {
				raftstore.Put(tx, items, &Item{Meta: record.Meta{ID: id}, Value: c.value})
				return nil
			})
			if err == nil {
				return i, nil
			}
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return 0, fmt.Errorf("no replica takes a write: %w", ctx.Err())
		}
	}
}

// caughtUp waits until every replica has what the leader has.
func (c *storeCluster) caughtUp(ctx context.Context) error {
	for {
		var newest uint64
		behind := 0
		for _, s := range c.stores {
			newest = max(newest, s.View().Index())
		}
		for _, s := range c.stores {
			if s.View().Index() < newest {
				behind++
			}
		}
		if behind == 0 {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("a replica does not catch up: %w", ctx.Err())
		}
	}
}
