package app_test

import (
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// TestWakeBehindADeployment: an app that is asked for while another version of it is
// built is served by that, if it can be. What was live before does not come back after
// it.
func TestWakeBehindADeployment(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	for name, succeeds := range map[string]bool{"live": true, "failed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			a, _ := r.asleep()
			r.edit(a.ID, func(a *record.App) { a.Stale, a.AutoHibernate = true, false })
			r.guests.set(func(g *guests) { g.hold = true })
			other, err := r.apps().Deploy(t.Context(), caller, a.ID, api.CreateDeployment{GitRef: "v2"}, noKey)
			if err != nil {
				t.Fatal(err)
			}
			r.at(other.ID, "poll")
			awake := make(chan error, 1)
			go func() { awake <- r.LeaderNode().Apps.Awake(t.Context(), a.ID) }()
			r.becomes(a.ID, record.AppWaking)
			r.await("the end of the wake's flow", func() bool {
				_, under := flow.Live(r.Leader().Store.View(), app.Subject(a.ID))
				return !under
			})
			if !succeeds {
				r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
			}
			r.guests.set(func(g *guests) { g.hold = false })
			want := record.DeploymentLive
			if !succeeds {
				want = record.DeploymentFailed
			}
			r.ends(other.ID, want)
			r.guests.set(func(g *guests) { g.plan.State = appapi.StateSucceeded })
			if err := <-awake; err != nil {
				t.Errorf("wake: %v", err)
			}
			r.settled(1)
			woken, found := find(r, "wake")
			if row := r.row(a.ID); succeeds && (found || row.DeploymentID != other.ID) || !succeeds && (!found || row.DeploymentID != woken.ID) {
				t.Errorf("it serves %+v", r.deployment(row.DeploymentID))
			}
		})
	}
}

// TestPushWhileItWakes: an app that waits for a push's deployment waits for the next one,
// when that takes its place.
func TestPushWhileItWakes(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, _ := r.asleep()
	r.edit(a.ID, func(a *record.App) { a.Stale, a.AutoHibernate = true, false })
	push := func(ref string) api.Deployment {
		d, err := r.apps().Pushed(t.Context(), "ws", a.ID, app.Push{GitRef: ref})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	r.guests.set(func(g *guests) { g.hold = true })
	builds := r.deploy(a.ID)
	r.at(builds.ID, "poll")
	push("one")
	awake := make(chan error, 1)
	go func() { awake <- r.LeaderNode().Apps.Awake(t.Context(), a.ID) }()
	r.becomes(a.ID, record.AppWaking)
	r.await("the end of the wake's flow", func() bool {
		_, under := flow.Live(r.Leader().Store.View(), app.Subject(a.ID))
		return !under
	})
	if _, err := r.apps().CancelDeployment(t.Context(), caller, a.ID, builds.ID); err != nil {
		t.Fatal(err)
	}
	next := push("two")
	if row := r.row(a.ID); row.Status != record.AppWaking {
		t.Errorf("it is %s: %s", row.Status, row.Error)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	if err := <-awake; err != nil {
		t.Errorf("wake: %v", err)
	}
	r.ends(next.ID, record.DeploymentLive)
	r.settled(1)
}

// TestWakeOfAnUpload: what is built when an artifact is gone is the source of what is
// live, not one that came after it and failed.
func TestWakeOfAnUpload(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a := r.create(func(in *api.CreateApp) { in.GitURL, in.Source = "", new(api.AppFromUpload) })
	r.upload(a.ID, "good")
	r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.upload(a.ID, "bad")
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateFailed })
	r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
	r.guests.set(func(g *guests) { g.plan.State = appapi.StateSucceeded })
	r.edit(a.ID, func(a *record.App) { a.Stale = true })
	r.lose(a.ID)
	r.await("another deployment", func() bool { d, ok := find(r, "wake"); return ok && d.Status.Ended() })
	d, _ := find(r, "wake")
	if source := string(r.guests.at(d.SandboxID).source); source != "good" || d.Status != record.DeploymentLive {
		t.Errorf("%q is built: %+v", source, d)
	}
	r.settled(1)

	// Without that source there is no way back to what was live, which the app then says.
	r.edit(a.ID, func(a *record.App) {
		a.Stale = true
		a.Uploads[0].ID = "src-none"
	})
	r.lose(a.ID)
	if row := r.becomes(a.ID, record.AppFailed); !strings.Contains(row.Error, "its artifact cannot be used, and its source is gone") || row.DeploymentID != d.ID {
		t.Errorf("%+v", row)
	}
}

// TestSettingsChangeDuringARollback: they are those of the next wake.
func TestSettingsChangeDuringARollback(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	restored, changed := make(chan struct{}), make(chan struct{})
	r := newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
		if f.Step == "restored" && at == flow.BeforeAct {
			restored <- struct{}{}
			<-changed
		}
		return nil
	})
	a, _ := r.live()
	r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	r.settled(1)
	back, err := r.apps().RollBack(t.Context(), caller, a.ID, api.RollBackApp{}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	<-restored
	if _, err := r.apps().PutVariable(t.Context(), caller, a.ID, "TOKEN", api.PutAppVariable{Value: "new", Secret: new(true)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.apps().Patch(t.Context(), caller, a.ID, api.PatchApp{BuildCommand: api.SetTo("make")}); err != nil {
		t.Fatal(err)
	}
	changed <- struct{}{}
	d := r.ends(back.ID, record.DeploymentLive)
	if g := r.guests.at(d.SandboxID); g.builds != 0 || g.run.Env["TOKEN"] != "new" {
		t.Errorf("it was started with %q, after %d builds", g.run.Env, g.builds)
	}
	if !r.row(a.ID).Stale {
		t.Error("the artifact that the former command built would be used again")
	}
	// One during which nothing changes is used again.
	forth, err := r.apps().RollBack(t.Context(), caller, a.ID, api.RollBackApp{}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	<-restored
	changed <- struct{}{}
	if r.ends(forth.ID, record.DeploymentLive); r.row(a.ID).Stale {
		t.Error("its artifact would not be used")
	}
	r.settled(1)
}

// TestArtifactOfARollbackThatWaits is kept, however many come before it.
func TestArtifactOfARollbackThatWaits(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 1, nil)
	a, first := r.live()
	for range 4 {
		r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	}
	r.guests.set(func(g *guests) { g.hold = true })
	sixth := r.deploy(a.ID)
	r.at(sixth.ID, "poll")
	back, err := r.apps().RollBack(t.Context(), caller, a.ID, api.RollBackApp{DeploymentID: first.ID}, noKey)
	if err != nil {
		t.Fatal(err)
	}
	r.guests.set(func(g *guests) { g.hold = false })
	r.ends(sixth.ID, record.DeploymentLive)
	if d := r.ends(back.ID, record.DeploymentLive); r.guests.at(d.SandboxID).builds != 0 {
		t.Error("it was built: its artifact had been dropped")
	}
	r.settled(1)
}
