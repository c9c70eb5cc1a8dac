package cluster

import (
	"context"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/placement"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	defaultPercent = 20
	minPercent     = 5 // less would move for ever what comes and goes
	maxPercent     = 1000
	maxShown       = 100 // moves in an answer
)

// Rebalancing returns how even hosts are, and how far the last rebalancing has come.
func (s *Cluster) Rebalancing(ctx context.Context) (api.Rebalancing, error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Rebalancing{}, err
	}
	return s.showRebalance(view, rebalanceOf(view)), nil
}

func rebalanceOf(r raftstore.Reader) *record.Rebalance {
	if row, ok := raftstore.Get(r, record.Clusters, record.ClusterID); ok {
		return row.Rebalance
	}
	return nil
}

// Rebalance begins to move what sleeps on the fuller hosts to the emptier ones, or only
// tells what it would move. Again, it tries again what could not be moved.
func (s *Cluster) Rebalance(ctx context.Context, in api.Rebalance) (api.Rebalancing, error) {
	row := record.Rebalance{AtOnce: defaultAtOnce, Percent: defaultPercent}
	if in.AtOnce != nil {
		if row.AtOnce = *in.AtOnce; row.AtOnce < 1 || row.AtOnce > maxAtOnce {
			return api.Rebalancing{}, apierror.Invalid("invalid at_once", "at_once must be from 1 to %d", maxAtOnce)
		}
	}
	if in.Percent != nil {
		if row.Percent = *in.Percent; row.Percent < minPercent || row.Percent > maxPercent {
			return api.Rebalancing{}, apierror.Invalid("invalid percent", "percent must be from %d to %d", minPercent, maxPercent)
		}
	}
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Rebalancing{}, err
	}
	if s.core.Hosts.Warming(view) {
		return api.Rebalancing{}, apierror.Unavailable("this leader has not heard all hosts yet", nil)
	}
	if in.DryRun {
		return s.dryRun(view, row), nil
	}
	hosts, _, failed := s.cfg.Spread(view, true)
	shifts, _ := placement.Balance(hosts, row.Percent, placement.MaxShifts)
	// Before the row: the rebalancing ends as soon as there is nothing to move.
	if err := s.tryAgain(ctx, failed); err != nil {
		return api.Rebalancing{}, err
	}
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		row := row
		row.Began, row.Planned = tx.Now(), len(shifts)
		c, ok := raftstore.Get(tx, record.Clusters, record.ClusterID)
		if ok {
			c = c.Clone()
		} else {
			c = NewRow(0)
		}
		c.Rebalance = &row
		raftstore.Put(tx, record.Clusters, c)
		return nil
	})
	if err != nil {
		return api.Rebalancing{}, err
	}
	return s.Rebalancing(ctx)
}

// StopRebalancing gives up a rebalancing. What is under way still arrives.
func (s *Cluster) StopRebalancing(ctx context.Context) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		if c, ok := raftstore.Get(tx, record.Clusters, record.ClusterID); ok && c.Rebalance != nil {
			c = c.Clone()
			c.Rebalance = nil
			raftstore.Put(tx, record.Clusters, c)
		}
		return nil
	})
}

// spread is how full the hosts are that take part, and what moves between them.
type spread struct {
	hosts  []placement.Load
	moving []placement.Shift
	failed []*record.Sandbox
}

func (s *Cluster) spread(r raftstore.Reader, again bool) (out spread) {
	out.hosts, out.moving, out.failed = s.cfg.Spread(r, again)
	return out
}

// dryRun shows what a rebalancing would move.
func (s *Cluster) dryRun(r raftstore.Reader, row record.Rebalance) api.Rebalancing {
	spread := s.spread(r, true)
	shifts, after := placement.Balance(spread.hosts, row.Percent, placement.MaxShifts)
	out := spread.show(r, &row, shifts, after)
	out.DryRun, out.Planned = true, len(shifts)
	return out
}

// showRebalance shows how far a rebalancing has come; nil: there is none.
func (s *Cluster) showRebalance(r raftstore.Reader, row *record.Rebalance) api.Rebalancing {
	spread := s.spread(r, false)
	if row == nil {
		row = &record.Rebalance{AtOnce: defaultAtOnce, Percent: defaultPercent}
		out := spread.show(r, row, nil, spread.hosts)
		out.Done = out.Moving == 0
		return out
	}
	shifts, after := []placement.Shift(nil), spread.hosts
	if row.Ended.IsZero() {
		shifts, after = placement.Balance(spread.hosts, row.Percent, max(placement.MaxShifts-row.Moved-len(spread.moving), 0))
	}
	out := spread.show(r, row, shifts, after)
	out.BeganAt, out.EndedAt, out.Done = api.NewTime(row.Began), api.NewTime(row.Ended), !row.Ended.IsZero()
	out.Planned, out.Moved, out.Failed = row.Planned, row.Moved, row.Failed
	for _, b := range spread.failed[:min(len(spread.failed), maxShown)] {
		out.Stays = append(out.Stays, api.AgentStay{Kind: "sandbox", ID: hostapi.ShortID(b.ID), WorkspaceID: b.WorkspaceID, Reason: b.MoveError})
	}
	return out
}

func (s spread) show(r raftstore.Reader, row *record.Rebalance, shifts []placement.Shift, after []placement.Load) api.Rebalancing {
	out := api.Rebalancing{
		AtOnce: row.AtOnce, Percent: row.Percent, Moving: len(s.moving), Waiting: len(shifts),
		Hosts: []api.RebalancedHost{}, Moves: []api.RebalanceMove{}, Stays: []api.AgentStay{},
	}
	now, then := placement.Shares(s.hosts), placement.Shares(after)
	for _, l := range s.hosts {
		out.Hosts = append(out.Hosts, api.RebalancedHost{ID: l.ID, Sandboxes: l.Boxes, DiskMB: l.DiskMB, Share: now[l.ID], ShareAfter: then[l.ID]})
	}
	show := func(shifts []placement.Shift, state string) {
		for _, m := range shifts {
			b, ok := raftstore.Get(r, record.Sandboxes, m.ID)
			if !ok || len(out.Moves) >= maxShown {
				continue
			}
			move := api.RebalanceMove{
				Kind: "sandbox", ID: hostapi.ShortID(b.ID), WorkspaceID: b.WorkspaceID, From: m.From, To: m.To, DiskMB: m.DiskMB, State: state,
			}
			if b.Owner != nil {
				move.Kind, move.ID = b.Owner.Type, b.Owner.ID
			}
			out.Moves = append(out.Moves, move)
		}
	}
	show(s.moving, "moving")
	show(shifts, "waiting")
	return out
}
