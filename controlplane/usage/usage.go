// Package usage counts what workspaces use, and what that costs. Hosts measure; a loop on
// the leader asks each of them for what is new, and writes it down once, by month,
// product and resource. Snapshots, volumes and archives are counted from their rows. Another loop
// warns of the end of a month's free credit and pauses workspaces that have spent it.
// DESIGN.md says why nothing is lost or counted twice.
package usage

import (
	"cmp"
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Config is what usage needs beside the core. A time of zero is its default.
type Config struct {
	Prices *Prices
	// Every is the time between two questions to a host; default a minute.
	Every time.Duration
	// Storage is the time between two counts of snapshots, volumes and archives; default ten
	// minutes.
	Storage time.Duration
	// Look is the time between two looks for credits that are spent or renewed; default
	// five seconds.
	Look time.Duration
}

// Usage are the use cases of usage.
type Usage struct {
	core   *core.Core
	cfg    Config
	ledger ledger
}

// New makes the use cases.
func New(c *core.Core, cfg Config) *Usage {
	cfg.Every = cmp.Or(cfg.Every, time.Minute)
	cfg.Storage = cmp.Or(cfg.Storage, 10*time.Minute)
	cfg.Look = cmp.Or(cfg.Look, 5*time.Second)
	return &Usage{core: c, cfg: cfg, ledger: ledger{prices: cfg.Prices, tiers: c.Tiers}}
}

// Get returns what the caller's workspace has used in a month, 2006-01; "": in this one.
func (s *Usage) Get(ctx context.Context, c core.Caller, month string) (api.Usage, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Usage{}, err
	}
	return s.get(ctx, c.WorkspaceID, month)
}

// OfWorkspace is Get for any workspace (operators), also for one that is deleted.
func (s *Usage) OfWorkspace(ctx context.Context, workspaceID, month string) (api.Usage, error) {
	out, err := s.get(ctx, workspaceID, month)
	if err != nil {
		return api.Usage{}, err
	}
	view := s.core.Store.View()
	if _, ok := raftstore.Get(view, record.Workspaces, workspaceID); !ok && len(raftstore.Find(view, record.Usages, "workspace", workspaceID)) == 0 {
		return api.Usage{}, apierror.NotFound()
	}
	return out, nil
}

func (s *Usage) get(ctx context.Context, workspaceID, month string) (api.Usage, error) {
	view, err := s.core.Current(ctx)
	if err != nil {
		return api.Usage{}, err
	}
	now := s.core.Clock()
	if month == "" {
		month = record.MonthOf(now)
	}
	begin, err := time.Parse("2006-01", month)
	if err != nil || record.MonthOf(begin) != month {
		return api.Usage{}, apierror.Invalid("invalid month", "want YYYY-MM, such as %s", record.MonthOf(now))
	}
	row := usageOf(view, workspaceID, month)
	out := api.Usage{
		WorkspaceID: workspaceID, Month: month, Begins: api.Time{Time: begin}, Ends: api.Time{Time: limits.NextMonth(begin)},
		Lines: make([]api.UsageLine, 0, len(row.Lines)), CostMicroUSD: row.MicroUSD(),
	}
	for _, l := range row.Lines {
		out.Lines = append(out.Lines, api.UsageLine{
			Product: l.Product, Resource: names[l.Resource], Quantity: float64(l.Amount) / 1000, CostMicroUSD: l.MicroUSD,
		})
	}
	if w, ok := raftstore.Get(view, record.Workspaces, workspaceID); ok {
		m := s.core.Tiers.Month(view, w, now)
		if m.HasCredit {
			out.CreditMicroUSD = new(int64(m.Credit))
		}
		if m.HasBudget {
			out.BudgetMicroUSD = new(int64(m.Budget))
		}
		out.Paused = m.Exhausted()
	}
	return out, nil
}

// names are the resources as clients see them: they count seconds.
var names = map[record.Resource]string{
	record.ResourceVCPU: "vcpu_seconds", record.ResourceCPU: "cpu_seconds", record.ResourceMemory: "memory_mib_seconds",
	record.ResourceDisk: "disk_mib_seconds", record.ResourceSnapshot: "snapshot_mib_seconds", record.ResourceVolume: "volume_mib_seconds",
	record.ResourceArchive: "archive_mib_seconds",
}
