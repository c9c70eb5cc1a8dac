package hostd

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/ledger"
)

// noteReply has a reply to a heartbeat taken in, in place of one that still
// waits: heartbeats wait for no disk.
func (d *Daemon) noteReply(r hostapi.HeartbeatReply) {
	select {
	case <-d.replies:
	default:
	}
	select {
	case d.replies <- r:
	default:
	}
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
		if err := d.ledger.ObserveTerm(r.Term); err != nil && !errors.Is(err, ledger.ErrStaleTerm) {
			d.log.Error("the leader's term is not on disk", "error", err)
		}
	}
	if len(r.Peers) == 0 || slices.Equal(r.Peers, d.peers) {
		return
	}
	if err := writeFile(filepath.Join(d.cfg.PKIDir, filePeers), []byte(strings.Join(r.Peers, "\n")+"\n")); err != nil {
		d.log.Warn("the replicas' addresses are not on disk", "error", err)
		return
	}
	d.peers = r.Peers
	d.delivery.SetPeers(r.Peers)
}
