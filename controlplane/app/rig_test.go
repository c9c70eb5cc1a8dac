package app_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	caller   = testplane.Caller
	stranger = testplane.Stranger
	want     = testplane.Want
	noKey    = core.Idempotency{}
)

const repo = "https://git.example.com/team/shop.git"

// rig is a plane whose hosts have the template of apps, and guests in their boxes.
type rig struct {
	*testplane.Plane
	t      *testing.T
	guests *guests
	hosts  []*fakehost.Host
}

// newRig makes a rig of so many replicas and hosts.
func newRig(t *testing.T, replicas, hosts int, fault func(f *record.Flow, at flow.Point) error, change ...func(*app.Config)) *rig {
	t.Helper()
	r := &rig{Plane: testplane.New(t, replicas, fault, change...), t: t, guests: newGuests(t)}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "other"}})
		return nil
	})
	for i := range hosts {
		h := r.Plane.Host(fmt.Sprint("h", i+1), 16<<10)
		h.SetDial(r.guests.dial(h))
		h.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
			*ts = append(*ts, hostapi.TemplateState{Name: template.App, BuildID: "of-app", Status: "ready", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
		})
		r.hosts = append(r.hosts, h)
	}
	if hosts > 0 {
		r.await("the template of apps", func() bool {
			tpl, ok := template.Operators(r.Leader().Store.View(), template.App)
			for _, s := range r.LeaderNode().Hosts.Sessions() {
				ok = ok && len(s.Heartbeat.Templates) == 2
			}
			return ok && tpl.BuildID != ""
		})
	}
	return r
}

func (r *rig) await(what string, is func() bool) {
	r.t.Helper()
	testcluster.Await(r.t, what, is)
}

// apps are the use cases of the replica that leads.
func (r *rig) apps() *app.Apps {
	r.t.Helper()
	return r.LeaderNode().Apps
}

// create makes an app.
func (r *rig) create(change ...func(in *api.CreateApp)) api.App {
	r.t.Helper()
	in := api.CreateApp{Name: "shop", GitURL: repo, AutoHibernate: new(false)}
	for _, c := range change {
		c(&in)
	}
	a, err := r.apps().Create(r.t.Context(), caller, in, noKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// deploy begins a deployment.
func (r *rig) deploy(id string) api.Deployment {
	r.t.Helper()
	d, err := r.apps().Deploy(r.t.Context(), caller, id, api.CreateDeployment{}, noKey)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// live makes an app, deploys it and waits until it runs.
func (r *rig) live(change ...func(in *api.CreateApp)) (api.App, api.Deployment) {
	r.t.Helper()
	a := r.create(change...)
	d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	out, err := r.apps().Get(r.t.Context(), caller, a.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	return out, api.Deployment{ID: d.ID}
}

// row is an app's row.
func (r *rig) row(id string) *record.App {
	r.t.Helper()
	a, ok := raftstore.Get(r.Leader().Store.View(), record.Apps, id)
	if !ok {
		r.t.Fatal("no such app")
	}
	return a
}

// deployment is a deployment's row.
func (r *rig) deployment(id string) *record.Deployment {
	r.t.Helper()
	d, ok := raftstore.Get(r.Leader().Store.View(), record.Deployments, id)
	if !ok {
		r.t.Fatal("no such deployment")
	}
	return d
}

// ends waits until a deployment has ended, as it is wanted to.
func (r *rig) ends(id string, want record.DeploymentStatus) *record.Deployment {
	r.t.Helper()
	r.await("the end of a deployment", func() bool { return r.deployment(id).Status.Ended() })
	d := r.deployment(id)
	if d.Status != want {
		r.t.Fatalf("deployment is %s, not %s: %s", d.Status, want, d.Error)
	}
	return d
}

// becomes waits until an app has a status.
func (r *rig) becomes(id string, want record.AppStatus) *record.App {
	r.t.Helper()
	r.await("status "+string(want), func() bool { return r.row(id).Status == want })
	return r.row(id)
}

// edit changes an app's row behind everybody's back.
func (r *rig) edit(id string, change func(a *record.App)) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		a, ok := raftstore.Get(tx, record.Apps, id)
		if !ok {
			return errors.New("no such app")
		}
		a = a.Clone()
		change(a)
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
}

// host is the host of a sandbox.
func (r *rig) host(sandboxID string) *fakehost.Host {
	r.t.Helper()
	box, ok := r.Sandbox(sandboxID)
	for _, h := range r.hosts {
		if ok && h.ID == box.HostID {
			return h
		}
	}
	r.t.Fatalf("sandbox %s is on no host", sandboxID)
	return nil
}

// settled waits until nothing is under way, and nothing is there that no app has.
func (r *rig) settled(sandboxes int) {
	r.t.Helper()
	r.await("drained instances", func() bool {
		for _, a := range raftstore.All(r.Leader().Store.View(), record.Apps) {
			if len(a.Draining) > 0 {
				return false
			}
		}
		return true
	})
	r.await("that nothing is left over", func() bool {
		return len(r.Settled(r.hosts...)) == sandboxes
	})
	named := map[string]bool{}
	view := r.Leader().Store.View()
	for _, d := range raftstore.All(view, record.Deployments) {
		named[d.SnapshotID], named[d.LogBlob] = true, true
	}
	for _, a := range raftstore.All(view, record.Apps) {
		for _, u := range a.Uploads {
			named[u.ID] = true
		}
		for _, u := range []*record.AppUpload{a.Cache, a.Log} {
			if u != nil {
				named[u.ID] = true
			}
		}
	}
	for _, s := range raftstore.All(view, record.Snapshots) {
		if !named[s.ID] {
			r.t.Errorf("snapshot %s is nobody's", s.ID)
		}
	}
	for _, h := range r.hosts {
		for _, name := range h.Blobs() {
			if !named[name] {
				r.t.Errorf("blob %s is nobody's", name)
			}
		}
	}
}

func hasText(t *testing.T, err error, code apierror.Code, text string) {
	t.Helper()
	if e := apierror.As(err); e == nil || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("got %v (%s), want %s with %q", err, apierror.CodeOf(err), code, text)
	}
}

// upload keeps a source of an app.
func (r *rig) upload(id, source string) {
	r.t.Helper()
	if _, err := r.apps().PutSource(r.t.Context(), caller, id, strings.NewReader(source)); err != nil {
		r.t.Fatal(err)
	}
}

// lose has the sandbox that serves an app fail.
func (r *rig) lose(id string) {
	r.t.Helper()
	box := r.row(id).Instances[0].SandboxID
	r.host(box).Become(box, hostapi.StatusFailed)
}
