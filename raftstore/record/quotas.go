package record

import "fmt"

// Quotas limit what a workspace has. Nil: not said here; below 0: no limit.
type Quotas struct {
	Sandboxes      *int `json:"sandboxes,omitempty" yaml:"sandboxes"`               // those of apps and databases aside
	CreatesPerHour *int `json:"creates_per_hour,omitempty" yaml:"creates_per_hour"` // of sandboxes, also of those that are gone
	CPU            *int `json:"cpu,omitempty" yaml:"cpu"`                           // of sandboxes that are not hibernated
	MemoryMB       *int `json:"memory_mb,omitempty" yaml:"memory_mb"`               // likewise
	Snapshots      *int `json:"snapshots,omitempty" yaml:"snapshots"`
	VolumeMB       *int `json:"volume_mb,omitempty" yaml:"volume_mb"`
	DiskMB         *int `json:"disk_mb,omitempty" yaml:"disk_mb"` // of sandboxes, databases, snapshots and volumes together
	Templates      *int `json:"templates,omitempty" yaml:"templates"`
	Builds         *int `json:"builds,omitempty" yaml:"builds"` // at once
	Databases      *int `json:"databases,omitempty" yaml:"databases"`
	Apps           *int `json:"apps,omitempty" yaml:"apps"`
	AppInstances   *int `json:"app_instances,omitempty" yaml:"app_instances"` // of one app, whatever its max_instances; at least one
	Keys           *int `json:"keys,omitempty" yaml:"keys"`
	Members        *int `json:"members,omitempty" yaml:"members"` // people, and invitations that are open
	Orgs           *int `json:"orgs,omitempty" yaml:"orgs"`       // that one person owns, by the best tier among them

	// Of requests. Nil: the specification's. Below 0 in either: no limit.
	RequestsPerSecond *int `json:"requests_per_second,omitempty" yaml:"requests_per_second"`
	RequestsBurst     *int `json:"requests_burst,omitempty" yaml:"requests_burst"`

	// Of a month. Credit is what may be used without a subscription; budget what may be
	// used at all. Both in cents of USD.
	CreditCents        *int `json:"monthly_credit_cents,omitempty" yaml:"monthly_credit_cents"`
	BudgetCents        *int `json:"monthly_budget_cents,omitempty" yaml:"monthly_budget_cents"`
	CPUSecondsPerMonth *int `json:"monthly_cpu_seconds,omitempty" yaml:"monthly_cpu_seconds"` // processor time that is used
}

// each returns every quota.
func (q *Quotas) each() []**int {
	return []**int{
		&q.Sandboxes, &q.CreatesPerHour, &q.CPU, &q.MemoryMB, &q.Snapshots, &q.VolumeMB, &q.Templates, &q.Builds,
		&q.Databases, &q.Apps, &q.AppInstances, &q.Keys, &q.Members, &q.Orgs, &q.CreditCents, &q.BudgetCents, &q.CPUSecondsPerMonth,
		&q.DiskMB, &q.RequestsPerSecond, &q.RequestsBurst,
	}
}

// Clone returns a deep copy.
func (q Quotas) Clone() Quotas {
	for _, p := range q.each() {
		if *p != nil {
			*p = new(**p)
		}
	}
	return q
}

// Over returns q with what it does not say taken from below.
func (q Quotas) Over(below Quotas) Quotas {
	theirs := below.each()
	for i, p := range q.each() {
		if *p == nil {
			*p = *theirs[i]
		}
	}
	return q
}

// maxQuota is more than any workspace can use.
const maxQuota = 1_000_000_000

// Valid reports a quota that cannot be meant.
func (q Quotas) Valid() error {
	for _, p := range q.each() {
		if *p != nil && (**p < -1 || **p > maxQuota) {
			return fmt.Errorf("a quota is from -1, which is no limit, to %d, and not %d", maxQuota, **p)
		}
	}
	return nil
}
