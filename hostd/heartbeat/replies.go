package heartbeat

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// RepliesConfig is what Replies work with.
type RepliesConfig struct {
	Ledger *ledger.Ledger // of the terms that were seen
	// Renew is told of the lease that a reply brings, and when its heartbeat was
	// sent.
	Renew func(sent, lease time.Duration)
	// PeersFile has the replicas, one a line. MovedTo is told of the first, and of others.
	PeersFile string
	MovedTo   func(peers []string)
	Log       *slog.Logger
}

// Replies takes in what the leader says of itself and of the other replicas.
// Heartbeats wait for no disk: what has to be written is written by Run.
type Replies struct {
	cfg     RepliesConfig
	pending chan hostapi.HeartbeatReply // capacity 1: the last one that was not written down yet
	peers   []string                    // in the file, once it was written; of Run alone

	mu       sync.Mutex
	replicas []string // who may call, as the leader said last; none: every replica
	routers  []string // who may not
}

// NewReplies returns what has heard of no leader yet.
func NewReplies(cfg RepliesConfig) *Replies {
	return &Replies{cfg: cfg, pending: make(chan hostapi.HeartbeatReply, 1)}
}

// Take takes a reply in to a heartbeat that was sent at a time. One of who is
// leader no more is refused, as its calls are.
func (r *Replies) Take(reply hostapi.HeartbeatReply, sent time.Duration) error {
	if reply.Term > 0 {
		if _, err := r.cfg.Ledger.CheckTerm(reply.Cluster, reply.Term); err != nil {
			return err
		}
	}
	r.cfg.Renew(sent, time.Duration(reply.LeaseSeconds*float64(time.Second)))
	r.mu.Lock()
	r.replicas, r.routers = reply.Replicas, reply.RemovedRouters
	r.mu.Unlock()
	select {
	case <-r.pending:
	default:
	}
	select {
	case r.pending <- reply:
	default:
	}
	return nil
}

// IsMember reports whether a replica may call.
func (r *Replies) IsMember(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.replicas) == 0 || slices.Contains(r.replicas, id)
}

// IsRouter reports whether a router of databases may call. One that the leader has not named
// may: routers are known by their certificates alone.
func (r *Replies) IsRouter(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.Contains(r.routers, name)
}

// Run writes down what the leader says, until ctx ends.
func (r *Replies) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case reply := <-r.pending:
			r.write(reply)
		}
	}
}

func (r *Replies) write(reply hostapi.HeartbeatReply) {
	if reply.Term > 0 {
		// A deposed leader's reply may come late; its term is refused, as its
		// calls are.
		if err := r.cfg.Ledger.ObserveTerm(reply.Cluster, reply.Term); err != nil && !errors.Is(err, ledger.ErrStaleTerm) {
			r.cfg.Log.Error("the leader's term is not on disk", "error", err)
		}
	}
	if len(reply.Peers) == 0 || slices.Equal(reply.Peers, r.peers) {
		return
	}
	r.cfg.MovedTo(reply.Peers)
	if err := atomicfile.Write(r.cfg.PeersFile, []byte(strings.Join(reply.Peers, "\n")+"\n"), 0o600); err != nil {
		r.cfg.Log.Warn("the replicas' addresses are not on disk", "error", err)
		return
	}
	r.peers = reply.Peers
}
