package controlplane

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// tenantsCollector counts what all workspaces have together, on each scrape. None of its
// labels names one.
type tenantsCollector struct {
	store *raftstore.Store
	clock func() time.Time
}

var (
	descDatabases     = describe("databases", "Databases by status, as this replica has them.", "status")
	descApps          = describe("apps", "Apps and functions by status, as this replica has them.", "status")
	descDeployments   = describe("deployments", "Deployments that are kept, by status, as this replica has them.", "status")
	descWorkspaces    = describe("workspaces", "Workspaces by state (active; suspended by an operator; paused: its credit is spent), as this replica has them.", "state")
	descSubscriptions = describe("subscriptions", "Workspaces by what billing says of their subscription; none: nothing.", "status")
	descMonthCost     = describe("usage_month_usd", "What all workspaces' usage of this month has cost so far, in USD, before credit.", "product")
	descUsageLag      = describe("usage_lag_seconds", "How long the use of the host that is furthest behind has not been written down.")
)

// Describe implements prometheus.Collector.
func (c *tenantsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDatabases, descApps, descDeployments, descWorkspaces, descSubscriptions, descMonthCost, descUsageLag} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *tenantsCollector) Collect(ch chan<- prometheus.Metric) {
	view := c.store.View()
	counted := func(d *prometheus.Desc, by map[string]int) {
		for label, n := range by {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), label)
		}
	}
	databases := none(record.DatabaseProvisioning, record.DatabaseReady, record.DatabaseRestoring, record.DatabaseFailed, record.DatabaseDeleting)
	for _, d := range raftstore.All(view, record.Databases) {
		databases[string(d.Status)]++
	}
	counted(descDatabases, databases)
	apps := none(record.AppCreated, record.AppRunning, record.AppHibernated, record.AppWaking, record.AppFailed, record.AppDeleting)
	for _, a := range raftstore.All(view, record.Apps) {
		apps[string(a.Status)]++
	}
	counted(descApps, apps)
	deployments := none(record.DeploymentQueued, record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive, record.DeploymentFailed)
	for _, d := range raftstore.All(view, record.Deployments) {
		deployments[string(d.Status)]++
	}
	counted(descDeployments, deployments)
	c.money(ch, view, counted)
}

func (c *tenantsCollector) money(ch chan<- prometheus.Metric, view *raftstore.Snapshot, counted func(*prometheus.Desc, map[string]int)) {
	workspaces := map[string]int{"active": 0, "suspended": 0, "paused": 0}
	subscriptions := none("none", record.SubscriptionActive, record.SubscriptionTrialing, record.SubscriptionPastDue, record.SubscriptionCanceled)
	for _, w := range raftstore.All(view, record.Workspaces) {
		switch {
		case w.Suspended:
			workspaces["suspended"]++
		case !w.PausedAt.IsZero():
			workspaces["paused"]++
		default:
			workspaces["active"]++
		}
		if w.SubscriptionStatus == "" {
			subscriptions["none"]++
		} else {
			subscriptions[string(w.SubscriptionStatus)]++
		}
	}
	counted(descWorkspaces, workspaces)
	counted(descSubscriptions, subscriptions)

	now := c.clock()
	month, cost := record.MonthOf(now), map[string]int64{record.ProductSandbox: 0, record.ProductDatabase: 0, record.ProductApp: 0}
	for _, u := range raftstore.All(view, record.Usages) {
		if u.Month != month {
			continue
		}
		for _, l := range u.Lines {
			cost[l.Product] += l.MicroUSD
		}
	}
	for product, micro := range cost {
		ch <- prometheus.MustNewConstMetric(descMonthCost, prometheus.GaugeValue, float64(micro)/1e6, product)
	}
	var lag time.Duration
	for _, m := range raftstore.All(view, record.MeterCursors) {
		if h, ok := raftstore.Get(view, record.Hosts, m.ID); ok && h.State == record.HostUp && !m.To.IsZero() {
			lag = max(lag, now.Sub(m.To))
		}
	}
	ch <- prometheus.MustNewConstMetric(descUsageLag, prometheus.GaugeValue, lag.Seconds())
}

// none is a count of zero for each label, so that its series is there from the start.
func none[S ~string](labels ...S) map[string]int {
	out := map[string]int{}
	for _, l := range labels {
		out[string(l)] = 0
	}
	return out
}
