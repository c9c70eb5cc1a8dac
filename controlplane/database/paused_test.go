package database_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// quotas sets the quotas of the workspace.
func (r *rig) quotas(q record.Quotas) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		w, _ := raftstore.Get(tx, record.Workspaces, "ws")
		c := w.Clone()
		c.Quotas = q
		raftstore.Put(tx, record.Workspaces, c)
		return nil
	})
}

// When a workspace has spent its credit, its databases sleep, including busy and
// always-on ones. No client wakes them until the workspace is upgraded.
func TestDatabasesOfAPausedWorkspace(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	idle := r.running()
	busy := r.becomes(r.create(api.CreateDatabase{AlwaysOn: true}).ID, api.DatabaseRunning)
	r.archived(busy.ID, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	r.idle(idle.ID, time.Now())
	r.idle(busy.ID, time.Time{})
	r.quotas(record.Quotas{CreditCents: new(0)})
	for _, d := range []api.Database{idle, busy} {
		r.becomes(d.ID, api.DatabaseHibernated)
		_, err := r.databases().Wake(t.Context(), caller, d.ID)
		e := testplane.Want(t, err, apierror.EQuota, "monthly free credit exhausted")
		if e.Fields["credit_usd"] != 0.0 || e.Fields["cost_usd_used"] != 0.0 {
			t.Errorf("fields %v", e.Fields)
		}
		testplane.Want(t, r.databases().WakeForClient(t.Context(), d.ID), apierror.EQuota, "monthly free credit exhausted")
	}
	// A clone is made from the archive, so what the busy one has written is in there.
	if got := r.archives.Info(busy.ID + "/1").LastRestorable; time.Since(got) > 30*time.Minute {
		t.Errorf("the busy one is archived until %s", got)
	}
	// A database that fails meanwhile is not shown as about to run.
	box, h := r.box(busy.ID)
	h.Become(box.ID, hostapi.StatusFailed)
	testcluster.Await(t, "the death in the row", func() bool { now, _ := r.box(busy.ID); return now.Status == record.SandboxFailed })
	r.Passes(10)
	if got, _ := r.get(busy.ID); got.Status != api.DatabaseHibernated || !strings.HasPrefix(got.Error, "it is started again once its workspace goes on") || h.Transitions("restart") != 0 {
		t.Errorf("%+v", got)
	}
	testplane.Want(t, r.databases().WakeForClient(t.Context(), busy.ID), apierror.EQuota, "monthly free credit exhausted")
	_, err := r.databases().Create(t.Context(), caller, api.CreateDatabase{}, core.Idempotency{})
	testplane.Want(t, err, apierror.EQuota, "free quota exceeded")
	r.quotas(record.Quotas{})
	if err := r.databases().WakeForClient(t.Context(), busy.ID); err != nil {
		t.Fatal(err)
	}
	r.becomes(busy.ID, api.DatabaseRunning)
}

// An operator's suspension refuses creates. What there is is woken, as a sandbox is.
func TestADatabaseOfASuspendedWorkspaceWakes(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	r.asleep(d.ID)
	r.Update(func(tx *raftstore.Tx) error {
		w, _ := raftstore.Get(tx, record.Workspaces, "ws")
		c := w.Clone()
		c.Suspended = true
		raftstore.Put(tx, record.Workspaces, c)
		return nil
	})
	_, err := r.databases().Create(t.Context(), caller, api.CreateDatabase{}, core.Idempotency{})
	testplane.Want(t, err, apierror.EForbidden, "account suspended")
	if _, err := r.databases().Wake(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
}

// A ceiling of the month refuses only to wake what sleeps. A database that ran and died is
// started again, and its clients are held meanwhile.
func TestADatabaseThatDiesBeyondTheMonthsBudget(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	box, h := r.box(d.ID)
	release := make(chan struct{})
	h.SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "restart" && !c.Done {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	})
	r.quotas(record.Quotas{BudgetCents: new(0)})
	h.Become(box.ID, hostapi.StatusFailed)
	r.becomes(d.ID, api.DatabaseWaking)
	client := make(chan error, 1)
	go func() { client <- r.databases().WakeForClient(t.Context(), d.ID) }()
	if _, err := r.databases().Wake(t.Context(), caller, d.ID); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-client; err != nil {
		t.Error(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	h.SetFault(nil)
	r.asleep(d.ID)
	testplane.Want(t, r.databases().WakeForClient(t.Context(), d.ID), apierror.ERateLimited, "monthly budget exceeded")
	_, err := r.databases().Wake(t.Context(), caller, d.ID)
	testplane.Want(t, err, apierror.ERateLimited, "monthly budget exceeded")
}

// While it is paused, a workspace's failed database is not restored: that would run it. A
// ceiling, which stops nothing, does not keep it from being restored.
func TestAFailoverInAMonthThatIsSpent(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.lost(d.ID)
	r.quotas(record.Quotas{CreditCents: new(0)})
	for _, force := range []bool{false, true} {
		_, err := r.failOver(d.ID, force)
		testplane.Want(t, err, apierror.EQuota, "monthly free credit exhausted")
	}
	if got, _ := r.get(d.ID); *got.FailoverAvailable || !strings.Contains(got.FailoverReason, "paused") || got.Status != api.DatabaseFailed {
		t.Errorf("%+v", got)
	}
	r.quotas(record.Quotas{BudgetCents: new(0)})
	testcluster.Await(t, "the end of the pause", func() bool {
		w, _ := raftstore.Get(r.Leader().Store.View(), record.Workspaces, "ws")
		return w.PausedAt.IsZero()
	})
	if got, _ := r.get(d.ID); !*got.FailoverAvailable {
		t.Errorf("%+v", got)
	}
	if _, err := r.failOver(d.ID, false); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
}
