package limits

import (
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Need is what a request is about to create.
type Need struct {
	Sandboxes     int // those that the workspace itself creates
	CPU, MemoryMB int // of all of them together
	DiskMB        int // of everything together
	Snapshots     int
	Databases     int
	Apps          int
	Keys          int
}

// Check refuses what would exceed the workspace's quotas. It counts only what is
// limited, so that creates without a limit do not get in each other's way.
func (t *Tiers) Check(r raftstore.Reader, w *record.Workspace, n Need, now time.Time) error {
	q := t.Of(w)
	if n.Sandboxes > 0 {
		if err := sandboxes(r, w, q, n); err != nil {
			return err
		}
		if most, ok := limit(q.CreatesPerHour); ok {
			if used := hourOf(r, w.ID, now).Total(); used+n.Sandboxes > most {
				return &apierror.Error{
					Code: apierror.ERateLimited, Message: "hourly create limit exceeded",
					Fields: map[string]any{"limit_per_hr": most, "used_last_hr": used},
				}
			}
		}
	}
	if n.DiskMB > 0 {
		if err := disk(r, w, q, n); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		what  string
		n     int
		most  *int
		count func() int
	}{
		{"snapshots", n.Snapshots, q.Snapshots, func() int { return snapshots(r, w.ID) }},
		{"databases", n.Databases, q.Databases, func() int { return databases(r, w.ID) }},
		{"apps", n.Apps, q.Apps, func() int { return apps(r, w.ID) }},
		{"keys", n.Keys, q.Keys, func() int { return keys(r, w.ID, now) }},
	} {
		most, limited := limit(c.most)
		if c.n == 0 || !limited {
			continue
		}
		if active := c.count(); active+c.n > most {
			return &apierror.Error{
				Code: apierror.ERateLimited, Message: "max " + c.what + " reached", Fields: map[string]any{"max": most, "active": active},
			}
		}
	}
	return nil
}

// Counts reports whether a workspace has a quota by which sandboxes are counted.
func (t *Tiers) Counts(w *record.Workspace) bool {
	q := t.Of(w)
	for _, most := range []*int{q.Sandboxes, q.CreatesPerHour, q.CPU, q.MemoryMB, q.DiskMB} {
		if _, limited := limit(most); limited {
			return true
		}
	}
	return false
}

// Admit is Check in the transaction that creates. It counts the creates of the hour.
func (t *Tiers) Admit(tx *raftstore.Tx, w *record.Workspace, n Need) error {
	if err := t.Check(tx, w, n, tx.Now()); err != nil {
		return err
	}
	if _, limited := limit(t.Of(w).CreatesPerHour); limited && n.Sandboxes > 0 {
		hour := hourOf(tx, w.ID, tx.Now()).Add(tx.Now(), n.Sandboxes)
		raftstore.Put(tx, record.WorkspaceCreates, &record.Creates{Meta: record.Meta{ID: w.ID}, Seconds: hour.Bytes()})
	}
	return nil
}

// Created returns how many sandboxes were created in a workspace in the last hour, as far as
// its quota has them counted.
func Created(r raftstore.Reader, workspaceID string, now time.Time) int {
	return hourOf(r, workspaceID, now).Total()
}

func hourOf(r raftstore.Reader, workspaceID string, now time.Time) Hour {
	row, ok := raftstore.Get(r, record.WorkspaceCreates, workspaceID)
	if !ok {
		return nil
	}
	return ReadHour(row.Seconds).Since(now)
}

// sandboxes checks the quotas of sandboxes: how many there are, and what they use.
func sandboxes(r raftstore.Reader, w *record.Workspace, q record.Quotas, n Need) error {
	most, limited := limit(q.Sandboxes)
	cpuMax, cpuLimited := limit(q.CPU)
	memoryMax, memoryLimited := limit(q.MemoryMB)
	if !limited && !cpuLimited && !memoryLimited {
		return nil
	}
	used := UsageOf(r, w.ID)
	if limited && used.Sandboxes+n.Sandboxes > most {
		return &apierror.Error{
			Code: apierror.ERateLimited, Message: "max sandboxes reached", Fields: map[string]any{"max": most, "active": used.Sandboxes},
		}
	}
	if cpuLimited && used.CPU+n.CPU > cpuMax || memoryLimited && used.MemoryMB+n.MemoryMB > memoryMax {
		return resources(used, q)
	}
	return nil
}

// resources is the refusal of what would exceed a quota of resources.
func resources(used Usage, q record.Quotas) *apierror.Error {
	cpuMax, cpuLimited := limit(q.CPU)
	memoryMax, memoryLimited := limit(q.MemoryMB)
	return &apierror.Error{
		Code: apierror.ERateLimited, Message: "workspace resource quota exceeded",
		Fields: map[string]any{
			"cpu_used": used.CPU, "cpu_max": orNull(cpuMax, cpuLimited), "memory_mb_used": used.MemoryMB, "memory_mb_max": orNull(memoryMax, memoryLimited),
		},
	}
}

// orNull is a quota in an answer: null where there is none.
func orNull(v int, limited bool) any {
	if !limited {
		return nil
	}
	return v
}

// Usage is what the sandboxes of a workspace use.
type Usage struct{ Sandboxes, CPU, MemoryMB int }

// UsageOf counts a workspace's sandboxes and what they use. Those of apps and
// databases do not count: their owners have quotas of their own, and a failover or a
// deploy, which runs two for a while, must not fail for lack of room in another. A
// hibernated or failed sandbox counts, but uses neither CPU nor memory; one that is
// being deleted counts no more.
func UsageOf(r raftstore.Reader, workspaceID string) (u Usage) {
	for _, s := range raftstore.Find(r, record.Sandboxes, "workspace", workspaceID) {
		switch {
		case s.Owner != nil, s.Status == record.SandboxDeleting:
			continue
		case s.Status != record.SandboxHibernated && s.Status != record.SandboxFailed:
			u.CPU, u.MemoryMB = u.CPU+s.CPU, u.MemoryMB+s.MemoryMB
		}
		u.Sandboxes++
	}
	return u
}

// Counts is what a workspace has of all that quotas limit.
type Counts struct {
	Usage
	DiskMB         int
	CreatesPerHour int // as far as the quota has them counted
	Snapshots      int
	VolumeMB       int
	Templates      int
	Databases      int
	Apps           int
	Keys           int
}

// CountsOf counts what a workspace has, as Check does.
func CountsOf(r raftstore.Reader, workspaceID string, now time.Time) Counts {
	return Counts{
		Usage: UsageOf(r, workspaceID), DiskMB: DiskOf(r, workspaceID), CreatesPerHour: Created(r, workspaceID, now), Snapshots: snapshots(r, workspaceID),
		VolumeMB: volumeMB(r, workspaceID), Templates: len(raftstore.Find(r, record.Templates, "workspace", workspaceID)),
		Databases: databases(r, workspaceID), Apps: apps(r, workspaceID), Keys: keys(r, workspaceID, now),
	}
}

func snapshots(r raftstore.Reader, workspaceID string) int {
	return count(raftstore.Find(r, record.Snapshots, "workspace", workspaceID), func(s *record.Snapshot) bool { return s.Owner == nil && s.Status != record.ResourceDeleting })
}

func databases(r raftstore.Reader, workspaceID string) int {
	return count(raftstore.Find(r, record.Databases, "workspace", workspaceID), func(d *record.Database) bool { return d.Status != record.DatabaseDeleting })
}

func apps(r raftstore.Reader, workspaceID string) int {
	return count(raftstore.Find(r, record.Apps, "workspace", workspaceID), func(a *record.App) bool { return a.Status != record.AppDeleting })
}

func keys(r raftstore.Reader, workspaceID string, now time.Time) int {
	return count(raftstore.Find(r, record.APIKeys, "workspace", workspaceID), func(k *record.APIKey) bool { return k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt) })
}

// VolumeMB returns the quota of the total size of volumes, or otherwise, if there is
// none.
func (t *Tiers) VolumeMB(w *record.Workspace, otherwise int) int {
	if most, ok := limit(t.Of(w).VolumeMB); ok {
		return most
	}
	return otherwise
}

// Templates returns how many templates a workspace may have, and how many may be built
// at once; at most as many as given.
func (t *Tiers) Templates(w *record.Workspace, templates, builds int) (mostTemplates, mostBuilds int) {
	q := t.Of(w)
	if most, ok := limit(q.Templates); ok {
		templates = min(most, templates)
	}
	if most, ok := limit(q.Builds); ok {
		builds = min(most, builds)
	}
	return templates, builds
}

// AppInstances returns how many instances of an app may serve at once, of as many as it
// asks for; one always may.
func (t *Tiers) AppInstances(w *record.Workspace, asked int) int {
	if most, ok := limit(t.Of(w).AppInstances); ok {
		return max(1, min(most, asked))
	}
	return asked
}

// Members returns how many members a workspace may have, and whether that is limited.
func (t *Tiers) Members(w *record.Workspace) (int, bool) { return limit(t.Of(w).Members) }

// Orgs returns how many workspaces an owner of this one may own, and whether that is
// limited.
func (t *Tiers) Orgs(w *record.Workspace) (int, bool) { return limit(t.Of(w).Orgs) }

func count[T any](rows []T, counts func(T) bool) (n int) {
	for _, r := range rows {
		if counts(r) {
			n++
		}
	}
	return n
}
