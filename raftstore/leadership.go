package raftstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// leadership knows whether this replica leads and has applied everything that
// was committed before it did; only then may it answer for the cluster.
type leadership struct {
	mu      sync.Mutex
	term    uint64        // the term for which it answers; 0: none
	changed chan struct{} // closed and replaced at each change
	subs    []chan bool
	closed  bool
}

func newLeadership() *leadership { return &leadership{changed: make(chan struct{})} }

// Leadership tells of leadership won (true) and lost (false). Each call is a
// new subscription, which begins with the present value and ends with the
// store; so call it once and keep the channel. A slow reader gets the last
// value: true twice in a row means that leadership was lost in between.
//
// True comes after a barrier: View then has all that was ever acknowledged.
func (s *Store) Leadership() <-chan bool {
	l := s.lead
	l.mu.Lock()
	defer l.mu.Unlock()
	ch := make(chan bool, 1)
	ch <- l.term != 0
	if l.closed {
		close(ch)
		return ch
	}
	l.subs = append(l.subs, ch)
	return ch
}

// IsLeader reports what Leadership said last. It is no proof: another may have
// been elected that this replica has not heard of yet. VerifiedView proves it.
func (s *Store) IsLeader() bool {
	s.lead.mu.Lock()
	defer s.lead.mu.Unlock()
	return s.lead.term != 0
}

// LeadsIn reports whether this replica answers for a term, as Leadership said
// last. It is no proof either.
func (s *Store) LeadsIn(term uint64) bool {
	s.lead.mu.Lock()
	defer s.lead.mu.Unlock()
	return term != 0 && s.lead.term == term
}

// set records that this replica answers for a term, or (0) for none. A new
// term is a change even if the loss between the two went unseen.
func (l *leadership) set(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || term == l.term {
		return
	}
	l.term = term
	close(l.changed)
	l.changed = make(chan struct{})
	for _, ch := range l.subs {
		select {
		case <-ch: // an unread older value
		default:
		}
		ch <- term != 0
	}
}

func (l *leadership) close() {
	l.set(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, ch := range l.subs {
		close(ch)
	}
	l.subs = nil
}

// await returns the term for which this replica answers, or ErrNotLeader. A
// leader just elected is waited for.
func (l *leadership) await(ctx context.Context, s *Store) (uint64, error) {
	for {
		if s.ctx.Err() != nil {
			return 0, s.gone()
		}
		l.mu.Lock()
		term, changed := l.term, l.changed
		l.mu.Unlock()
		if term != 0 {
			return term, nil
		}
		if s.raft.State() != raft.Leader {
			if s.Err() != nil {
				return 0, s.gone()
			}
			return 0, ErrNotLeader
		}
		select {
		case <-changed:
		case <-time.After(s.cfg.HeartbeatTimeout):
			// Leadership may have gone without ever having been announced.
		case <-s.ctx.Done():
		case <-ctx.Done():
			return 0, fmt.Errorf("nothing written: %w", ctx.Err())
		}
	}
}

// watchLeadership follows Raft's transitions, which come one by one, and
// passes a barrier after each win. A barrier counts for the term in which it
// was asked for and passed, and for no other.
func (s *Store) watchLeadership(notify <-chan bool) {
	type passed struct {
		term uint64
		err  error
	}
	barrier := make(chan passed, 1)
	leading, asking, hung := false, false, false
	tick := time.NewTicker(s.cfg.HeartbeatTimeout)
	defer tick.Stop()
	ask := func() {
		asking = s.waits.start(func() {
			term := s.raft.CurrentTerm()
			err := s.raft.Barrier(0).Error()
			if err == nil && s.raft.CurrentTerm() != term {
				err = raft.ErrLeadershipLost
			}
			if err != nil {
				// For example, leadership is being transferred, which ends soon either way.
				select {
				case <-time.After(10 * time.Millisecond):
				case <-s.ctx.Done():
				}
			}
			barrier <- passed{term, err}
		})
	}
	for {
		select {
		case leading = <-notify:
			if !leading {
				s.lead.set(0)
				s.counters.leaderLosses.Add(1)
				continue
			}
			s.counters.leaderWins.Add(1)
			if !asking {
				ask()
			}
		case b := <-barrier:
			asking = false
			switch {
			case !leading:
			case b.err == nil && b.term == s.raft.CurrentTerm() && !hung:
				s.lead.set(b.term)
			case s.raft.State() == raft.Leader:
				ask()
			}
		case <-tick.C:
			switch hangs := s.acks.disk.hangs(); {
			case hangs && !hung:
				hung = true
				s.lead.set(0) // Raft itself finds out when its disk answers
				s.cfg.Logger.Error("a write of the log hangs; this replica does not lead for now", "component", "raftstore", "limit", s.cfg.DiskTimeout)
			case !hangs && hung:
				hung = false
				if leading && !asking {
					ask()
				}
			}
		case <-s.fsm.failed:
			s.lead.set(0)
			return
		case <-s.ctx.Done():
			s.lead.set(0)
			return
		}
	}
}
