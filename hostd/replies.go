package hostd

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// noteReply has a reply to a heartbeat that was sent at a time taken in, in place
// of one that still waits: heartbeats wait for no disk. One that is leader no
// more is refused, as its calls are.
func (d *Daemon) noteReply(r hostapi.HeartbeatReply, sent time.Duration) error {
	if r.Term > 0 {
		if _, err := d.ledger.CheckTerm(r.Cluster, r.Term); err != nil {
			return err
		}
	}
	d.lease.Renew(sent, time.Duration(r.LeaseSeconds*float64(time.Second)))
	d.mu.Lock()
	d.replicas = r.Replicas
	d.mu.Unlock()
	select {
	case <-d.replies:
	default:
	}
	select {
	case d.replies <- r:
	default:
	}
	return nil
}

// isMember reports whether a replica may call.
func (d *Daemon) isMember(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.replicas) == 0 || slices.Contains(d.replicas, id)
}

// takeReplies takes in what the leader says of itself, until ctx ends.
func (d *Daemon) takeReplies(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-d.replies:
			d.takeReply(r)
		}
	}
}

func (d *Daemon) takeReply(r hostapi.HeartbeatReply) {
	if r.Term > 0 {
		// A deposed leader's reply may come late; its term is refused, as its
		// calls are.
		if err := d.ledger.ObserveTerm(r.Cluster, r.Term); err != nil && !errors.Is(err, ledger.ErrStaleTerm) {
			d.log.Error("the leader's term is not on disk", "error", err)
		}
	}
	if len(r.Peers) == 0 || slices.Equal(r.Peers, d.peers) {
		return
	}
	if err := atomicfile.Write(filepath.Join(d.cfg.PKIDir, filePeers), []byte(strings.Join(r.Peers, "\n")+"\n"), 0o600); err != nil {
		d.log.Warn("the replicas' addresses are not on disk", "error", err)
		return
	}
	d.peers = r.Peers
	d.delivery.SetPeers(r.Peers)
}
