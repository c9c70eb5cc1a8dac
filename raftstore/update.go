package raftstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/berth-cloud/berth/telemetry"
)

const (
	exclusive = 1 << 20 // the whole weight of Store.turn

	// optimisticTries run beside other transactions; after as many conflicts
	// one runs alone, so that a long one is not starved by many short ones.
	optimisticTries = 6
	maxTries        = 20

	maxRetryDelay = 20 * time.Millisecond
)

// Update runs fn in a transaction and returns when what it wrote is on a
// majority of the replicas and applied on this one. It works on the leader
// alone.
//
// fn must have no effect but through its Tx, and must not call Update: it runs
// again, with a fresh Tx, when something that it read has changed meanwhile. An error of fn's ends the
// transaction, writes nothing and is returned as it is, but only after the
// leader has made sure that it still is the leader: what fn decided on was
// current. The same holds for a transaction that wrote nothing.
//
// ErrNotLeader, ErrConflict, ErrOverloaded, ErrContention, ErrTooLarge and ErrClosed mean that
// nothing was written; ErrLeadershipLost that it is unknown.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	trace := telemetry.Parent(ctx)
	ctx, span := telemetry.Start(ctx, "store.update")
	tries, err := s.update(ctx, trace, fn)
	span.SetInt(telemetry.KeyTries, tries)
	span.End(err)
	return err
}

// update returns how many attempts it took.
func (s *Store) update(ctx context.Context, trace string, fn func(tx *Tx) error) (int, error) {
	start := time.Now()
	for try := 1; ; try++ {
		weight := int64(1)
		if try > optimisticTries {
			weight = exclusive
		}
		err := s.inTurn(ctx, weight, trace, fn)
		if !errors.Is(err, errStale) {
			s.counters.updated(err, time.Since(start))
			return try, err
		}
		s.counters.retries.Add(1)
		if try == maxTries {
			return try, ErrContention
		}
		if err := retryDelay(ctx, try); err != nil {
			return try, fmt.Errorf("nothing written: %w", err)
		}
	}
}

// inTurn is one attempt in its turn, which ends even if fn panics.
func (s *Store) inTurn(ctx context.Context, weight int64, trace string, fn func(tx *Tx) error) error {
	if err := s.turn.Acquire(ctx, weight); err != nil {
		return fmt.Errorf("nothing written: %w", err)
	}
	defer s.turn.Release(weight)
	return s.try(ctx, trace, fn)
}

// try is one attempt.
func (s *Store) try(ctx context.Context, trace string, fn func(tx *Tx) error) error {
	term, err := s.lead.await(ctx, s)
	if err != nil {
		return err
	}
	// Without the monotonic reading, in UTC, as it will come out of the log.
	tx := newTx(s.fsm.view(), time.Unix(0, s.cfg.Clock().UnixNano()).UTC())
	tx.trace = trace
	if err := fn(tx); err != nil {
		if verr := s.verify(ctx, term); verr != nil {
			return verr
		}
		return err
	}
	if tx.err != nil {
		return tx.err
	}
	if !tx.writes() {
		return s.verify(ctx, term)
	}
	data := appendTxn(nil, tx.effects())
	if len(data) > maxTxnBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(data), maxTxnBytes)
	}
	pctx, span := telemetry.Start(ctx, "raft.commit") // proposed, on a majority, applied here
	out := s.proposer.propose(pctx, data)
	span.End(out.err)
	if out.err == nil {
		tx.settle(out.index)
	}
	return out.err
}

// retryDelay waits a random while that grows with the tries, so that those who
// collided do not collide again. The first retry is at once.
func retryDelay(ctx context.Context, try int) error {
	if try == 1 {
		return ctx.Err()
	}
	limit := min(time.Millisecond<<try, maxRetryDelay)
	t := time.NewTimer(rand.N(limit)) //nolint:gosec // spreads retries, guards nothing
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
