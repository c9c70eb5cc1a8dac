package app_test

import (
	"cmp"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// What a wake builds anew is of the app's settings as they are. A ref that somebody asked
// for stays, in the repository for which it was.
func TestWhichRefAWakeBuilds(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	const other = "https://git.example.com/team/store.git"
	for name, c := range map[string]struct {
		deploy func(r *rig, id string) (api.Deployment, error) // nil: of the app's branch
		url    string
		branch string
		want   string
	}{
		"as it was":                   {want: "main"},
		"another repository":          {url: other, branch: "trunk", want: "trunk"},
		"another branch":              {branch: "trunk", want: "trunk"},
		"another branch after a push": {deploy: push("main"), branch: "trunk", want: "trunk"},
		"a ref":                       {deploy: ref("v1"), want: "v1"},
		"a ref, and another branch":   {deploy: ref("v1"), branch: "trunk", want: "v1"},
		"a ref of another repository": {deploy: ref("v1"), url: other, branch: "trunk", want: "trunk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1, nil)
			a, _ := r.live(sleepy, func(in *api.CreateApp) { in.GitBranch = "main" })
			if c.deploy != nil {
				d, err := c.deploy(r, a.ID)
				if err != nil {
					t.Fatal(err)
				}
				r.ends(d.ID, record.DeploymentLive)
			}
			r.becomes(a.ID, record.AppHibernated)
			patch := api.PatchApp{BuildCommand: api.SetTo("make")}
			if c.url != "" {
				patch.GitURL = api.SetTo(c.url)
			}
			if c.branch != "" {
				patch.GitBranch = api.SetTo(c.branch)
			}
			if _, err := r.apps().Patch(t.Context(), caller, a.ID, patch); err != nil {
				t.Fatal(err)
			}
			if err := r.apps().Awake(t.Context(), a.ID); err != nil {
				t.Fatal(err)
			}
			d, ok := raftstore.Get(r.Leader().Store.View(), record.Deployments, r.row(a.ID).DeploymentID)
			if !ok || d.Trigger != "wake" || d.GitRef != c.want || d.GitURL != cmp.Or(c.url, repo) {
				t.Errorf("%+v, want %s", d, c.want)
			}
		})
	}
}

func ref(name string) func(r *rig, id string) (api.Deployment, error) {
	return func(r *rig, id string) (api.Deployment, error) {
		return r.apps().Deploy(r.t.Context(), caller, id, api.CreateDeployment{GitRef: name}, noKey)
	}
}

func push(name string) func(r *rig, id string) (api.Deployment, error) {
	return func(r *rig, id string) (api.Deployment, error) {
		return r.apps().Pushed(r.t.Context(), "ws", id, app.Push{GitRef: name})
	}
}
