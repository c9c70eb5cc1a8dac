package app_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/guest/appapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

const token = "ghs_of-one-clone"

// withToken has repositories cloned with a token, or says why they are not.
func withToken(fail func() error) func(*app.Config) {
	return func(c *app.Config) {
		c.InstallationFor = func(_ raftstore.Reader, workspaceID, repoURL string) (string, bool) {
			return "7", workspaceID == "ws" && repoURL == repo
		}
		c.CloneToken = func(_ context.Context, workspaceID, installationID, repoURL string) (string, string, error) {
			if workspaceID != "ws" || installationID != "7" || repoURL != repo {
				return "", "", apierror.NotFound()
			}
			return "x-access-token", token, fail()
		}
	}
}

// untold fails the test if a row has the token.
func (r *rig) untold() {
	r.t.Helper()
	view := r.Leader().Store.View()
	for _, rows := range []any{raftstore.All(view, record.Apps), raftstore.All(view, record.Deployments), raftstore.All(view, record.Flows)} {
		raw, err := json.Marshal(rows)
		if err != nil || strings.Contains(string(raw), token) {
			r.t.Errorf("the token is in a row: %s, %v", raw, err)
		}
	}
}

// A push is built at its commit, whatever its branch is by then, and the guest has no
// say in which that was.
func TestPushIsBuiltAtItsCommit(t *testing.T) {
	r := newRig(t, 1, 1, nil, withToken(func() error { return nil }))
	a := r.create()
	if got := r.row(a.ID).InstallationID; got != "7" {
		t.Errorf("installation %q", got)
	}
	commit := strings.Repeat("2", 40)
	out, err := r.apps().Pushed(t.Context(), "ws", a.ID, app.Push{GitRef: "main", Commit: commit, Message: "Add a basket\x1b[31m", Author: "Ann\n"})
	if err != nil || out.GitCommit != commit || out.GitRef != "main" || out.Trigger != api.TriggerPush {
		t.Fatalf("%+v: %v", out, err)
	}
	d := r.ends(out.ID, record.DeploymentLive)
	if d.GitCommit != commit || d.GitRef != "main" || d.GitMessage != "Add a basket[31m" || d.GitAuthor != "Ann" {
		t.Errorf("%+v", d)
	}
	want := appapi.Git{URL: repo, Ref: commit, Username: "x-access-token", Token: token}
	if diff := cmp.Diff(&want, r.guests.at(d.SandboxID).build.Git); diff != "" {
		t.Error(diff)
	}
	r.untold()
	_, err = r.apps().Pushed(t.Context(), "ws", a.ID, app.Push{GitRef: "main", Commit: "main"})
	hasText(t, err, apierror.EInvalid, "git_commit")
}

// Without a token a repository may still be public.
func TestCloneWithoutAToken(t *testing.T) {
	refused := &apierror.Error{Code: apierror.EUnprocessable, Message: "repository is not accessible"}
	r := newRig(t, 1, 1, nil, withToken(func() error { return refused }))
	a := r.create()
	d := r.ends(r.deploy(a.ID).ID, record.DeploymentLive)
	if git := r.guests.at(d.SandboxID).build.Git; git.Token != "" || git.Username != "" || git.Ref != "" {
		t.Errorf("%+v", git)
	}
	r.guests.set(func(g *guests) {
		g.plan = appapi.BuildStatus{State: appapi.StateFailed, Phase: appapi.PhaseSource, Error: "could not read Username"}
	})
	d = r.ends(r.deploy(a.ID).ID, record.DeploymentFailed)
	for _, want := range []string{"no token", "repository is not accessible", "could not read Username"} {
		if !strings.Contains(d.Error, want) {
			t.Errorf("%q has no %q", d.Error, want)
		}
	}
	r.guests.set(func(g *guests) { g.plan.Phase = appapi.PhaseBuild })
	if d = r.ends(r.deploy(a.ID).ID, record.DeploymentFailed); strings.Contains(d.Error, "no token") {
		t.Errorf("of another phase: %q", d.Error)
	}
	r.untold()
}

// A git host that is out of order for a moment is waited for.
func TestTokenIsWaitedFor(t *testing.T) {
	tier.Slow(t)
	var asked atomic.Int32
	r := newRig(t, 1, 1, nil, withToken(func() error {
		if asked.Add(1) == 1 {
			return &apierror.Error{Code: apierror.EBadGateway, Message: "github unreachable"}
		}
		return nil
	}), func(c *app.Config) { c.GuestSilent = 20 * time.Second })
	d := r.ends(r.deploy(r.create().ID).ID, record.DeploymentLive)
	if git := r.guests.at(d.SandboxID).build.Git; git.Token != token || asked.Load() != 2 {
		t.Errorf("%+v after %d", git, asked.Load())
	}
}

func TestPreviews(t *testing.T) {
	r := newRig(t, 1, 0, nil, withToken(func() error { return nil }))
	parent := r.create(func(in *api.CreateApp) {
		in.AutoDeploy, in.BuildCommand, in.Port = true, "make", new(4000)
		in.Env = map[string]string{"PLAIN": "p", "API_URL": "https://prod.test", "KEY": "k"}
	})
	for key, in := range map[string]api.PutAppVariable{"LIVE": {Value: "live only", Scope: new("production")}, "KEY": {Value: "k2", Secret: new(true)}} {
		if _, err := r.apps().PutVariable(t.Context(), caller, parent.ID, key, in); err != nil {
			t.Fatal(err)
		}
	}
	open := func(branch, url string) string {
		t.Helper()
		id, err := r.apps().OpenPreview(t.Context(), parent.ID, 5, branch, false, []app.Variable{{Key: "API_URL", Value: url, Secret: true}})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := open("basket", "https://staging.test")
	a := r.row(id)
	if a.ParentID != parent.ID || a.PullRequest != 5 || a.AutoDeploy || a.GitBranch != "basket" || a.BuildCommand != "make" || a.Port != 4000 ||
		a.InstallationID != "7" || a.WorkspaceID != "ws" || a.Name != "shop (pull request 5)" || a.GitURL != repo {
		t.Errorf("%+v", a)
	}
	vars, err := r.apps().Env(t.Context(), caller, id)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range vars {
		got = append(got, v.Key+"="+v.Value)
	}
	if want := []string{"API_URL=********", "KEY=********", "PLAIN=p"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if again := open("basket", "https://staging.test"); again != id || r.row(id).ModifyIndex != a.ModifyIndex {
		t.Errorf("the same again: %s, changed at %d and %d", again, a.ModifyIndex, r.row(id).ModifyIndex)
	}
	if again := open("basket-2", "https://other.test"); again != id || r.row(id).GitBranch != "basket-2" {
		t.Errorf("changed: %s %+v", again, r.row(id))
	}
	_, err = r.apps().OpenPreview(t.Context(), id, 6, "x", false, nil)
	hasText(t, err, apierror.ENotFound, "") // no preview of a preview
	_, err = r.apps().OpenPreview(t.Context(), parent.ID, 6, "-x", false, nil)
	hasText(t, err, apierror.EInvalid, "git_branch")
	_, err = r.apps().OpenPreview(t.Context(), parent.ID, 0, "x", false, nil)
	hasText(t, err, apierror.EInvalid, "pull_request")
	hasText(t, r.apps().ClosePreview(t.Context(), parent.ID), apierror.EConflict, "no preview")
	for range 2 { // the second time there is none
		if err := r.apps().ClosePreview(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		r.await("the end of the preview", func() bool {
			_, ok := raftstore.Get(r.Leader().Store.View(), record.Apps, id)
			return !ok
		})
	}
	r.row(parent.ID)
}
