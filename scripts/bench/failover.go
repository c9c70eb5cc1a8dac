package main

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

const leaderKills = 9

// measureFailover kills the leader repeatedly and measures the time until the
// next write of a client that knows all three replicas is accepted.
func measureFailover(ctx context.Context, s *stack.Stack, r *results) error {
	progress("%d kills of the leader", leaderKills)
	jwt, err := s.MintJWT("bench-failover", time.Hour)
	if err != nil {
		return err
	}
	c, err := api.NewClient(nil, jwt, s.URLs...)
	if err != nil {
		return err
	}
	defer c.Close()
	var took []time.Duration
	for range leaderKills {
		leader := s.Leader(ctx)
		if leader == nil {
			return errors.New("no leader to kill")
		}
		if _, err := c.CreateToken(ctx, api.CreateToken{Name: "before"}); err != nil {
			return err
		}
		if err := leader.Kill9(); err != nil {
			return err
		}
		killed := time.Now()
		err := stack.Await(ctx, 20*time.Second, 10*time.Millisecond, "a write is accepted", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := c.CreateToken(ctx, api.CreateToken{Name: "after"})
			return err
		})
		if err != nil {
			return err
		}
		took = append(took, time.Since(killed))
		if err := leader.Start(); err != nil {
			return err
		}
		if err := s.WaitHealthy(ctx); err != nil {
			return err
		}
	}
	r.want("leader_kill_to_next_write_p50", ms(quantile(took, 0.5)), "ms", atMost, 1000)
	r.add("leader_kill_to_next_write_max", ms(quantile(took, 1)), "ms")
	return nil
}
