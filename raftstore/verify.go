package raftstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// VerifiedView is the state of the cluster now: it contains every write that
// was acknowledged, by whichever replica, before the call. ErrNotLeader where
// this replica cannot say so.
func (s *Store) VerifiedView(ctx context.Context) (*Snapshot, error) {
	term, err := s.lead.await(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := s.verify(ctx, term); err != nil {
		return nil, err
	}
	return s.View(), nil
}

// verify proves that this replica led in the given term after the call began:
// a majority has answered a message of that term sent since. Concurrent calls
// share a round; one that arrives during a round waits for the next.
func (s *Store) verify(ctx context.Context, term uint64) error {
	ch := make(chan verified, 1)
	v := &s.verifier
	v.mu.Lock()
	v.waiting = append(v.waiting, ch)
	start := !v.running
	v.running = true
	v.mu.Unlock()
	if start && !s.waits.start(s.verifyRounds) {
		v.mu.Lock()
		v.running, v.waiting = false, nil
		v.mu.Unlock()
		return s.gone()
	}
	select {
	case got := <-ch:
		if got.err == nil && got.term != term {
			return fmt.Errorf("%w: the term has changed", ErrNotLeader)
		}
		return got.err
	case <-s.ctx.Done():
		return s.gone()
	case <-ctx.Done():
		return fmt.Errorf("verify leadership: %w", ctx.Err())
	}
}

type verifier struct {
	mu      sync.Mutex
	waiting []chan verified
	running bool
}

type verified struct {
	term uint64
	err  error
}

func (s *Store) verifyRounds() {
	v := &s.verifier
	for {
		v.mu.Lock()
		batch := v.waiting
		v.waiting = nil
		v.running = len(batch) > 0
		v.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		term, err := s.verifyRound()
		s.counters.verifications.Add(1)
		for _, ch := range batch {
			ch <- verified{term, err}
		}
	}
}

// verifyRound asks the followers. Raft's own VerifyLeader may be satisfied by
// an answer to a heartbeat that was sent before it was called; after a pause of
// this process that can be a stale one. It serves here to send heartbeats, and
// what counts are the times at which the answered ones were sent.
func (s *Store) verifyRound() (uint64, error) {
	term, start := s.raft.CurrentTerm(), time.Now()
	servers := s.raft.GetConfiguration().Configuration().Servers
	for range 2*len(servers) + 2 {
		if err := s.raft.VerifyLeader().Error(); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrNotLeader, err)
		}
		if s.raft.CurrentTerm() != term {
			break
		}
		if s.acks.quorum(servers, raft.ServerID(s.cfg.ID), term, start) {
			return term, nil
		}
	}
	return 0, fmt.Errorf("%w: not confirmed by a majority", ErrNotLeader)
}

// ackTransport notes when the last answered message to each peer was sent.
type ackTransport struct {
	raft.Transport
	preVote raft.WithPreVote
	disk    *disk

	mu   sync.Mutex
	last map[raft.ServerID]ack
}

type ack struct {
	term    uint64
	sent    time.Time
	lastLog uint64 // the peer's last log index
}

func newAckTransport(t raft.Transport, d *disk) (*ackTransport, error) {
	pv, ok := t.(raft.WithPreVote)
	if !ok {
		// Without it a replica that comes back from a partition deposes a
		// healthy leader.
		return nil, errors.New("raftstore config: the transport has no pre-vote")
	}
	return &ackTransport{Transport: t, preVote: pv, disk: d, last: map[raft.ServerID]ack{}}, nil
}

// AppendEntries implements raft.Transport. Heartbeats come this way; what is
// pipelined beside them does not, and need not.
func (t *ackTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.disk.hangs() {
		return errDiskHangs
	}
	sent := time.Now()
	err := t.Transport.AppendEntries(id, target, args, resp)
	if err == nil && resp.Success && resp.Term == args.Term {
		t.mu.Lock()
		if !sent.Before(t.last[id].sent) {
			t.last[id] = ack{args.Term, sent, resp.LastLog}
		}
		t.mu.Unlock()
	}
	return err
}

// RequestPreVote implements raft.WithPreVote.
func (t *ackTransport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.preVote.RequestPreVote(id, target, args, resp)
}

// Close implements raft.WithClose.
func (t *ackTransport) Close() error {
	if c, ok := t.Transport.(raft.WithClose); ok {
		return c.Close()
	}
	return nil
}

func (t *ackTransport) peer(id raft.ServerID) ack {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[id]
}

// quorum reports whether a majority of the voters, self among them, has
// answered a message of the term that was sent at or after since.
func (t *ackTransport) quorum(servers []raft.Server, self raft.ServerID, term uint64, since time.Time) bool {
	voters, acked := 0, 0
	for _, srv := range servers {
		if srv.Suffrage != raft.Voter {
			continue
		}
		voters++
		a := t.peer(srv.ID)
		if srv.ID == self || a.term == term && !a.sent.Before(since) {
			acked++
		}
	}
	return acked > voters/2
}
