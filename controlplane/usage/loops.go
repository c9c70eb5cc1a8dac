package usage

import (
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The names of the loops.
const (
	loopHosts   = "usage of hosts"
	loopStorage = "usage of storage"
	loopCredit  = "credits"
)

// How long rows are kept.
const (
	keepMonths  = 25
	keepEnded   = 24 * time.Hour      // a box that is gone, and whose host is, too
	keepSilent  = 90 * 24 * time.Hour // a box that is gone, and whose host tells nothing: it keeps what it counts
	keepCursors = 90 * 24 * time.Hour // of a host that was removed: it may join again
	keepUsage   = keepMonths * 31 * 24 * time.Hour
)

// keeper has the loops of one term.
type keeper struct {
	*loops.Term
	core   *core.Core
	cfg    Config
	ledger *ledger
}

// Loops are what counts, and what acts on it.
func (s *Usage) Loops(t *loops.Term) []loops.Loop {
	k := &keeper{Term: t, core: s.core, cfg: s.cfg, ledger: &s.ledger}
	changed := func() <-chan struct{} { return s.core.Store.View().Changed(record.Workspaces.Name, record.Usages.Name) }
	return []loops.Loop{
		{Name: loopHosts, Every: s.cfg.Every, Pass: k.ask},
		{Name: loopStorage, Every: s.cfg.Storage, Pass: k.storage},
		{Name: loopCredit, Every: s.cfg.Look, Wake: changed, Pass: k.credits},
		loops.Expiry(t, record.EndedBoxes, k.told),
		loops.Expiry(t, record.Usages, func(now time.Time, u *record.Usage) bool { return now.Sub(u.UpdatedAt) > keepUsage }),
		loops.Expiry(t, record.MeterCursors, func(now time.Time, c *record.MeterCursor) bool { return now.Sub(c.UpdatedAt) > keepCursors }),
	}
}

// told reports whether nothing more is to be heard of a box that is gone.
func (k *keeper) told(now time.Time, e *record.EndedBox) bool {
	view := k.Store.View()
	if cur, ok := raftstore.Get(view, record.MeterCursors, e.HostID); ok && cur.To.Sub(e.UpdatedAt) > slack {
		return true
	}
	keep := keepEnded
	if _, member := raftstore.Get(view, record.Hosts, e.HostID); member {
		keep = keepSilent
	}
	return now.Sub(e.UpdatedAt) > keep
}

// ask asks every host for what is new.
func (k *keeper) ask(ctx context.Context) {
	for hostID, session := range k.core.Hosts.Sessions() {
		if session.Heartbeat.Ready {
			k.Begin(loops.Job{What: "usage", Host: hostID, ID: hostID}, loops.AtOnce, func() { k.askHost(ctx, hostID) })
		}
	}
}

// maxBatches bounds what is taken of one host at a time: it has one for each month and
// each run of its daemon.
const maxBatches = 64

func (k *keeper) askHost(ctx context.Context, hostID string) {
	for range maxBatches {
		more, err := k.takeNext(ctx, hostID)
		switch {
		case err != nil && ctx.Err() == nil && !hostapi.HasCode(err, hostapi.CodeNotFound): // an older daemon has no such route
			k.Logger.WarnContext(ctx, "what a host's sandboxes used could not be written down; the host keeps it", "agent_id", hostID, "error", err)
			return
		case err != nil, !more:
			return
		}
	}
}

// takeNext asks a host for its next batch and writes it down.
func (k *keeper) takeNext(ctx context.Context, hostID string) (more bool, err error) {
	var after hostapi.UsageCursor
	if cur, ok := raftstore.Get(k.Store.View(), record.MeterCursors, hostID); ok {
		after = hostapi.UsageCursor{Epoch: cur.Epoch, Sequence: cur.Sequence}
	}
	actx, cancel := context.WithTimeout(ctx, loops.CallTimeout)
	defer cancel()
	var batch hostapi.UsageBatch
	err = k.core.Hosts.Call(actx, hostID, func(ctx context.Context, c *hosts.Client) (err error) {
		batch, err = c.Usage(ctx, after, k.Clock())
		return err
	})
	if err != nil || batch.Sequence == 0 || len(batch.Epoch) > hostapi.MaxCluster || len(batch.Boxes) > hostapi.MaxUsageBoxes {
		return false, err
	}
	for done := false; !done; {
		err := k.Store.Update(ctx, func(tx *raftstore.Tx) error {
			done = k.ledger.take(tx, hostID, batch)
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	return batch.More, nil
}
