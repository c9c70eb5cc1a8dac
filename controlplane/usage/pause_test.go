package usage_test

import (
	"context"
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

// spend sets what the workspace has spent this month.
func spend(r *testplane.Rig, micro int64) {
	r.Update(func(tx *raftstore.Tx) error {
		month := record.MonthOf(tx.Now())
		u := &record.Usage{Meta: record.Meta{ID: record.UsageID("ws", month)}, WorkspaceID: "ws", Month: month}
		if row, ok := raftstore.Get(tx, record.Usages, u.ID); ok {
			u = row.Clone()
		}
		u.Line(record.ProductSandbox, record.ResourceMemory).MicroUSD = micro
		raftstore.Put(tx, record.Usages, u)
		return nil
	})
}

func workspace(r *testplane.Rig, change func(w *record.Workspace)) {
	r.Update(func(tx *raftstore.Tx) error {
		w, _ := raftstore.Get(tx, record.Workspaces, "ws")
		c := w.Clone()
		change(c)
		raftstore.Put(tx, record.Workspaces, c)
		return nil
	})
}

func status(r *testplane.Rig, id string) record.SandboxStatus {
	s, _ := raftstore.Get(r.Leader().Store.View(), record.Sandboxes, id)
	return s.Status
}

func events(r *testplane.Rig) map[string]int {
	out := map[string]int{}
	for _, d := range raftstore.All(r.Leader().Store.View(), record.WebhookDeliveries) {
		out[d.Type]++
	}
	return out
}

// The whole way: warned, paused, upgraded. Compute stops, nothing is deleted, and what
// would run is refused by the specification's words.
func TestAWorkspaceThatHasSpentItsCredit(t *testing.T) {
	r := testplane.NewRig(t, 1)
	running, paused := r.Must(t, api.CreateSandbox{}), r.Must(t, api.CreateSandbox{})
	if _, err := r.Pause(t.Context(), testplane.Caller, paused.ID); err != nil {
		t.Fatal(err)
	}
	other, err := r.Create(t.Context(), testplane.Stranger, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	if err != nil {
		t.Fatal(err)
	}
	bystander := other.ID
	appBox := r.Must(t, api.CreateSandbox{})
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.WebhookEndpoints, &record.WebhookEndpoint{Meta: record.Meta{ID: "we"}, WorkspaceID: "ws", URL: "https://example.invalid"})
		a := &record.App{Meta: record.Meta{ID: "app-1"}, WorkspaceID: "ws", Name: "a", Status: record.AppCreated, AutoHibernate: true, MaxInstances: 1, IdleTimeoutSeconds: 900}
		raftstore.Put(tx, record.Apps, a)
		a = a.Clone()
		a.Status, a.DeploymentID = record.AppRunning, "dep-1"
		a.Instances = []record.AppInstance{{SandboxID: appBox.ID, DeploymentID: "dep-1", Since: tx.Now()}}
		raftstore.Put(tx, record.Apps, a)
		s, _ := raftstore.Get(tx, record.Sandboxes, appBox.ID)
		s = s.Clone()
		s.Owner = &record.Owner{Type: "app", ID: "app-1"}
		raftstore.Put(tx, record.Sandboxes, s)
		return nil
	})
	workspace(r, func(w *record.Workspace) { w.Quotas.CreditCents = new(540) })

	spend(r, 4_320_000)
	testcluster.Await(t, "the warning", func() bool { return events(r)["quota.warning"] == 1 })
	if _, err := r.Sandboxes.Commands.Exec(t.Context(), testplane.Caller, running.ID, api.Exec{Cmd: api.Shell("true")}); err != nil {
		t.Fatalf("at 80 percent: %v", err)
	}

	detached, err := r.Sandboxes.Commands.Start(t.Context(), testplane.Caller, running.ID, api.Exec{Cmd: api.Argv("cat")}, core.Idempotency{})
	if err != nil {
		t.Fatalf("at 80 percent: %v", err)
	}

	spend(r, 5_400_000)
	testcluster.Await(t, "the end of compute", func() bool {
		a, _ := raftstore.Get(r.Leader().Store.View(), record.Apps, "app-1")
		_, there := raftstore.Get(r.Leader().Store.View(), record.Sandboxes, appBox.ID)
		return status(r, running.ID) == record.SandboxHibernated && status(r, paused.ID) == record.SandboxHibernated && a.Paused && a.Status == record.AppHibernated && !there
	})
	if got := status(r, bystander); got != record.SandboxRunning {
		t.Errorf("another workspace's sandbox is %s", got)
	}
	if got := events(r); got["quota.warning"] != 1 || got["quota.exhausted"] != 1 {
		t.Errorf("told: %v", got)
	}
	_, err = r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EQuota, "free quota exceeded")
	_, err = r.Wake(t.Context(), testplane.Caller, running.ID)
	testplane.Want(t, err, apierror.EQuota, "monthly free credit exhausted")
	_, err = r.Sandboxes.Commands.Exec(t.Context(), testplane.Caller, running.ID, api.Exec{Cmd: api.Shell("true")})
	e := testplane.Want(t, err, apierror.EQuota, "monthly free credit exhausted")
	if e.Fields["credit_usd"] != 5.4 || e.Fields["cost_usd_used"] != 5.4 {
		t.Errorf("fields %v", e.Fields)
	}
	// Every call of a detached command needs the sandbox awake, also one that only reads.
	commands := r.Sandboxes.Commands
	for name, call := range map[string]func() error{
		"start": func() error {
			_, err := commands.Start(t.Context(), testplane.Caller, running.ID, api.Exec{Cmd: api.Shell("true")}, core.Idempotency{})
			return err
		},
		"list": func() error { _, err := commands.List(t.Context(), testplane.Caller, running.ID); return err },
		"get": func() error {
			_, err := commands.Get(t.Context(), testplane.Caller, running.ID, detached.ID)
			return err
		},
		"input": func() error {
			return commands.Write(t.Context(), testplane.Caller, running.ID, detached.ID, []byte("x"), false)
		},
		"signal": func() error { return commands.Signal(t.Context(), testplane.Caller, running.ID, detached.ID, "TERM") },
		"delete": func() error { return commands.Delete(t.Context(), testplane.Caller, running.ID, detached.ID) },
		"output": func() error {
			_, err := commands.Output(t.Context(), testplane.Caller, running.ID, detached.ID, 0, false)
			return err
		},
	} {
		if e := testplane.Want(t, call(), apierror.EQuota, "monthly free credit exhausted"); e.Fields["credit_usd"] != 5.4 || e.Fields["cost_usd_used"] != 5.4 {
			t.Errorf("%s: fields %v", name, e.Fields)
		}
	}
	testplane.Want(t, r.Node.Apps.Awake(t.Context(), "app-1"), apierror.EQuota, "monthly free credit exhausted")
	testplane.Want(t, r.Sandboxes.Ports.WakeForPreview(t.Context(), running.ID), apierror.EQuota, "")

	workspace(r, func(w *record.Workspace) { w.SubscriptionStatus = record.SubscriptionActive })
	testcluster.Await(t, "the end of the pause", func() bool {
		w, _ := raftstore.Get(r.Leader().Store.View(), record.Workspaces, "ws")
		a, _ := raftstore.Get(r.Leader().Store.View(), record.Apps, "app-1")
		return w.PausedAt.IsZero() && !a.Paused
	})
	if _, err := r.Sandboxes.Commands.Exec(t.Context(), testplane.Caller, running.ID, api.Exec{Cmd: api.Shell("true")}); err != nil {
		t.Errorf("after the upgrade: %v", err)
	}
	if _, err := commands.Get(t.Context(), testplane.Caller, running.ID, detached.ID); err != nil {
		t.Errorf("the command after the upgrade: %v", err)
	}
	if got := events(r); got["quota.warning"] != 1 || got["quota.exhausted"] != 1 {
		t.Errorf("told: %v", got)
	}
}

// Ceilings of paid tiers refuse, and stop nothing.
func TestMonthlyCeilings(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	spend(r, 2_000_000)
	for message, quotas := range map[string]record.Quotas{
		"monthly budget exceeded": {BudgetCents: new(200)}, "monthly cpu-seconds quota exceeded": {CPUSecondsPerMonth: new(0)},
	} {
		workspace(r, func(w *record.Workspace) { w.Quotas = quotas })
		_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
		testplane.Want(t, err, apierror.ERateLimited, message)
		r.Passes(3)
		if got := status(r, sb.ID); got != record.SandboxRunning {
			t.Errorf("%s: the sandbox is %s", message, got)
		}
		if _, err := r.Sandboxes.Commands.Exec(t.Context(), testplane.Caller, sb.ID, api.Exec{Cmd: api.Shell("true")}); err != nil {
			t.Errorf("%s: exec: %v", message, err)
		}
	}
	// Past due: creates are refused by their own words, and nothing is paused.
	workspace(r, func(w *record.Workspace) {
		w.Quotas, w.SubscriptionStatus = record.Quotas{CreditCents: new(100)}, record.SubscriptionPastDue
	})
	_, err := r.Create(t.Context(), testplane.Caller, api.CreateSandbox{Template: "base"}, core.Idempotency{})
	testplane.Want(t, err, apierror.EQuota, "subscription not active")
	r.Passes(3)
	if w, _ := raftstore.Get(r.Leader().Store.View(), record.Workspaces, "ws"); !w.PausedAt.IsZero() {
		t.Error("it is paused")
	}
}

// The leader dies after a sandbox ended and before its use was written down: the next one
// asks the host, and the use is written down once, for the sandbox that is gone.
func TestALeaderDiesBetweenTheEndAndTheRecord(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 3)
	workspace(r, func(w *record.Workspace) { w.Quotas.BudgetCents = new(10_000) })
	deaf := make(chan struct{})
	r.H1.SetFault(func(_ context.Context, c fakehost.Call) error {
		select {
		case <-deaf:
			return nil
		default:
		}
		if c.Op == "usage" {
			return fakehost.ErrDrop
		}
		return nil
	})
	sb := r.Must(t, api.CreateSandbox{})
	began := time.Now()
	testcluster.Await(t, "some time of its life", func() bool { return time.Since(began) > 100*time.Millisecond })
	r.H1.Use(hostapi.BoxUsage{ID: sb.ID, RunMS: 50, MemoryMS: 50, DiskMS: 50})
	if err := r.Delete(t.Context(), testplane.Caller, sb.ID); err != nil {
		t.Fatal(err)
	}
	old := r.Leader()
	r.Cut(old)
	testcluster.Await(t, "another leader", func() bool { return r.Leader() != old })
	close(deaf)
	amount := func() int64 {
		view := r.Leader().Store.View()
		row, ok := raftstore.Get(view, record.Usages, record.UsageID("ws", record.MonthOf(time.Now())))
		if !ok {
			return 0
		}
		return row.Line(record.ProductSandbox, record.ResourceVCPU).Amount
	}
	testcluster.Await(t, "its last use", func() bool { return amount() > 0 })
	r.Heal(old)
	r.Passes(5)
	if got := amount(); got != 50 {
		t.Errorf("%d ms are counted", got)
	}
}
