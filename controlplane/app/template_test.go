package app_test

import (
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
)

// bare adds a host that has no template of apps, and builds one once release is closed.
func (r *rig) bare(release <-chan struct{}) *fakehost.Host {
	r.t.Helper()
	h := r.Plane.Host("h1", 16<<10)
	h.SetDial(r.guests.dial(h))
	h.SetBuild(func(id string, spec hostapi.BuildSpec) hostapi.Build {
		select {
		case <-release:
			return hostapi.Build{ID: id, Template: spec.Template, Status: hostapi.BuildSucceeded, BuildID: "built"}
		default:
			return hostapi.Build{ID: id, Template: spec.Template, Status: hostapi.BuildBuilding}
		}
	})
	h.SetSources(hostapi.TemplateSource{Name: template.App, Recipe: "r1", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
	r.hosts = append(r.hosts, h)
	r.await("the template", func() bool {
		tpl, ok := template.Operators(r.Leader().Store.View(), template.App)
		return ok && tpl.Status == record.TemplateUnbuilt
	})
	return h
}

// flow returns the live flow of a deployment if it is at a step, or nil.
func (r *rig) flow(deployment, step string) *record.Flow {
	f, ok := flow.Live(r.Leader().Store.View(), app.DeploymentSubject(deployment))
	if !ok || f.Step != step {
		return nil
	}
	return f
}

// The first deployment waits for the template of apps, and has the whole of its budget once
// that is built.
func TestADeploymentDoesNotPayForTheTemplate(t *testing.T) {
	t.Parallel()
	release, build := make(chan struct{}), make(chan struct{})
	r := newRig(t, 1, 0, func(f *record.Flow, at flow.Point) error {
		if f.Kind == app.KindDeploy && f.Step == "build" && at == flow.BeforeCommit {
			<-build
		}
		return nil
	})
	letBuild := sync.OnceFunc(func() { close(build) })
	t.Cleanup(letBuild)
	h := r.bare(release)
	a := r.create()
	d := r.deploy(a.ID)
	var waits *record.Flow
	r.await("its wait", func() bool {
		asked := r.buildsTemplate() // by the commit that begins the wait
		waits = r.flow(d.ID, "template")
		return asked && waits != nil
	})
	budget := timescale.Limit(20 * time.Second) // of a test plane
	if left := time.Until(waits.Deadline); left < template.BuildWait-time.Minute || left > template.BuildWait {
		t.Errorf("it has %s for the template", left)
	}
	close(release)
	h.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*ts = append(*ts, hostapi.TemplateState{Name: template.App, BuildID: "built", Status: "ready", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
	})
	var builds *record.Flow
	r.await("its build", func() bool { builds = r.flow(d.ID, "build"); return builds != nil })
	if left := time.Until(builds.Deadline); left > budget {
		t.Errorf("it has %s for the build", left)
	}
	letBuild()
	r.ends(d.ID, record.DeploymentLive)
}

// buildsTemplate reports whether the template of apps is being built.
func (r *rig) buildsTemplate() bool {
	tpl, ok := template.Operators(r.Leader().Store.View(), template.App)
	return ok && tpl.Status == record.TemplateBuilding
}

// A template that is never built fails the deployment, which says so.
func TestADeploymentWhoseTemplateIsNotBuilt(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 1, 0, nil)
	r.bare(make(chan struct{}))
	d := r.deploy(r.create().ID)
	r.await("its wait", func() bool { return r.flow(d.ID, "template") != nil && r.buildsTemplate() })
	r.Update(func(tx *raftstore.Tx) error {
		if f, ok := flow.Live(tx, app.DeploymentSubject(d.ID)); ok {
			f = f.Clone()
			f.Deadline = time.Now().Add(-time.Second)
			raftstore.Put(tx, record.Flows, f)
		}
		return nil
	})
	if got := r.ends(d.ID, record.DeploymentFailed); got.Error != "the template app was not built within "+template.BuildWait.String() {
		t.Errorf("%q", got.Error)
	}
}
