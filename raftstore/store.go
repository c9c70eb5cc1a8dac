package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sync/semaphore"
)

// Store is one replica of the control store.
type Store struct {
	cfg      Config
	fsm      *fsm
	raft     *raft.Raft
	logs     io.Closer
	acks     *ackTransport
	counters *counters

	lead     *leadership
	verifier verifier
	proposer *proposer
	turn     *semaphore.Weighted // of transactions; see Update

	// waits counts the goroutines that wait for an answer of Raft's. They are
	// waited for before Raft is shut down, because afterwards some answers
	// would never come.
	waits waits
	alive alive

	ctx       context.Context // ends when Close begins
	cancel    context.CancelFunc
	owned     sync.WaitGroup // the store's own goroutines
	stopOnce  sync.Once
	stopErr   error
	closeOnce sync.Once
	closeErr  error
}

// Open starts a replica from what Dir holds. A replica that is neither
// bootstrapped nor added by a leader waits, empty, until it is.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	set, err := newTableSet(cfg.Tables)
	if err != nil {
		return nil, fmt.Errorf("raftstore config: %w", err)
	}
	s := &Store{cfg: cfg, counters: &counters{}, lead: newLeadership(), turn: semaphore.NewWeighted(exclusive)}
	if s.fsm, err = newFSM(set, s.counters); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	path := filepath.Join(cfg.Dir, "raft.db")
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		// The free list is rebuilt when the file is opened instead of being
		// written with every commit, where its growth has stopped clusters.
		BoltOptions:             &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, Timeout: 2 * time.Second},
		MsgpackUseNewTimeFormat: true,
	})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: another process has it open", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	s.logs = bolt
	if err := s.start(ctx, newDisk(bolt, cfg)); err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	return s, nil
}

// start makes the transport and Raft itself, which restores the newest
// snapshot, and the store's goroutines.
func (s *Store) start(ctx context.Context, bolt *disk) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	hc := newHCLog(s.cfg.Logger)
	snaps, err := openSnapshots(s.cfg.Dir, s.cfg.SnapshotRetain, hc)
	if err != nil {
		return err
	}
	logs, err := raft.NewLogCache(512, bolt)
	if err != nil {
		return fmt.Errorf("make log cache: %w", err)
	}
	transport := s.cfg.Transport
	if transport == nil {
		transport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:                  newTrackedStream(s.cfg.StreamLayer),
			MaxPool:                 4,
			Timeout:                 s.cfg.RPCTimeout,
			Logger:                  hc,
			MsgpackUseNewTimeFormat: true,
		})
	}
	if s.acks, err = newAckTransport(transport, bolt); err != nil {
		return err
	}
	notify := make(chan bool, 16)
	s.raft, err = newRaft(s.cfg.raftConfig(notify), s.fsm, logs, bolt, snaps, s.acks)
	if err != nil {
		return errors.Join(fmt.Errorf("start raft: %w", err), s.acks.Close())
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.proposer = newProposer(s)
	s.owned.Go(func() { s.watchLeadership(notify) })
	s.owned.Go(s.proposer.run)
	s.owned.Go(s.watchFailure)
	return nil
}

// newRaft turns the library's panic into an error: it panics when the newest
// snapshot is damaged and the log no longer reaches back to the one before.
func newRaft(rc *raft.Config, f raft.FSM, logs raft.LogStore, stable raft.StableStore, snaps raft.SnapshotStore, t raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("log and snapshots do not fit together: %v", p)
		}
	}()
	return raft.NewRaft(rc, f, logs, stable, snaps, t)
}

// View is the state of this replica. On a follower it may be behind.
func (s *Store) View() *Snapshot { return s.fsm.view() }

// Failed is closed when this replica has stopped because it could not
// understand a log entry; Err says which.
func (s *Store) Failed() <-chan struct{} { return s.fsm.failed }

// Err is why the replica has stopped, or nil.
func (s *Store) Err() error {
	if s.fsm.hasFailed() {
		return s.fsm.failure
	}
	return nil
}

// watchFailure takes a failed replica out of the cluster.
func (s *Store) watchFailure() {
	select {
	case <-s.fsm.failed:
	case <-s.ctx.Done():
		return
	}
	s.cfg.Logger.Error("replica stopped: it cannot understand a log entry", "component", "raftstore", "error", s.fsm.failure)
	if err := s.stopRaft(); err != nil {
		s.cfg.Logger.Error("stop raft", "component", "raftstore", "error", err)
	}
}

// Close hands leadership over if this replica has it, waits for transactions
// under way, and stops. The order matters: nothing new is taken, then nothing
// waits, then Raft stops, then its files close.
func (s *Store) Close() error { return s.close(true) }

func (s *Store) close(handOver bool) error {
	s.closeOnce.Do(func() {
		s.cancel()
		if handOver && s.raft.State() == raft.Leader {
			s.handOver()
		}
		s.closeErr = errors.Join(s.stopRaft(), s.logs.Close())
		s.owned.Wait()
		s.lead.close()
	})
	return s.closeErr
}

// handOver moves leadership to another voter, so that the cluster need not
// wait for an election time-out. It is no error that it fails.
func (s *Store) handOver() {
	if s.voters() < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.CloseTimeout)
	defer cancel()
	if err := s.waits.call(ctx, func() error { return s.raft.LeadershipTransfer().Error() }); err != nil {
		s.cfg.Logger.Warn("leadership not handed over", "component", "raftstore", "error", err)
	}
}

func (s *Store) voters() int {
	n := 0
	for _, srv := range s.raft.GetConfiguration().Configuration().Servers {
		if srv.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// stopRaft stops the proposer, lets the answers come in, and shuts Raft and
// its transport down.
func (s *Store) stopRaft() error {
	s.stopOnce.Do(func() {
		s.proposer.stop()
		<-s.proposer.exited
		select {
		case <-s.waits.close():
		case <-time.After(s.cfg.CloseTimeout):
			s.cfg.Logger.Warn("transactions still unanswered at shutdown", "component", "raftstore")
		}
		if err := s.raft.Shutdown().Error(); err != nil {
			s.stopErr = fmt.Errorf("stop raft: %w", err)
		}
	})
	return s.stopErr
}
