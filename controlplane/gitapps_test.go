package controlplane

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// gitRig is a plane whose apps are joined with a GitHub. It has no host, so that
// deployments fail; what they are of is in their rows.
type gitRig struct {
	*testplane.Plane
	t      *testing.T
	github *fakegithub.GitHub
	apps   *app.Apps
	hosts  *githost.GitHosts
	sent   int
}

func newGitRig(t *testing.T) *gitRig {
	t.Helper()
	r := &gitRig{Plane: testplane.New(t, 1, nil), t: t, github: fakegithub.New(t, time.Now)}
	reached := r.github.URL
	r.github.URL = "https://github.test" // as it calls itself: apps get tokens over TLS alone
	n := r.LeaderNode()
	cfg := testplane.AppConfig(n.Sandboxes, n.Templates)
	cfg.Databases = n.Databases
	var err error
	r.apps, r.hosts, err = joinApps(n.Core, cfg, githost.Config{
		App: &githost.App{
			ID: fakegithub.AppID, Slug: fakegithub.Slug, PrivateKey: r.github.Key, WebhookSecret: fakegithub.WebhookSecret, API: reached, Web: r.github.URL,
		},
		Transport: &http.Transport{DisableKeepAlives: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	all := loops.New(loops.Config{Store: n.Store, Clock: time.Now, Logger: testcluster.Log(), Every: 20 * time.Millisecond})
	all.Register(r.hosts.Loops)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { loops.WhileLeading(ctx, n.Store.Leadership(), all.Run) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	r.Update(func(tx *raftstore.Tx) error {
		for _, id := range []string{"ws", "other"} {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: id}})
		}
		key := testplane.Caller.KeyID
		raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: key}, WorkspaceID: testplane.Caller.WorkspaceID, Prefix: key})
		return nil
	})
	return r
}

// connect installs the GitHub App in an account, for the workspace ws.
func (r *gitRig) connect(account string, repos ...string) *fakegithub.Installation {
	r.t.Helper()
	out, err := r.hosts.Connect(r.t.Context(), testplane.Caller)
	if err != nil {
		r.t.Fatal(err)
	}
	u, err := url.Parse(out.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	// GitHub tells the time in whole seconds.
	i := r.github.Install(fakegithub.Installation{Account: account, Org: true, Repos: repos, CreatedAt: time.Now().Add(time.Second)})
	if _, err := r.hosts.Callback(r.t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID), State: u.Query().Get("state"), SetupAction: "install"}); err != nil {
		r.t.Fatal(err)
	}
	return i
}

// create makes an app that follows main.
func (r *gitRig) create(c core.Caller, env map[string]string) string {
	r.t.Helper()
	a, err := r.apps.Create(r.t.Context(), c, api.CreateApp{
		Name: "shop", GitURL: r.github.URL + "/acme/shop.git", GitBranch: "main", AutoDeploy: true, Env: env,
	}, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	return a.ID
}

func (r *gitRig) receive(event string, body []byte) {
	r.t.Helper()
	r.sent++
	out, err := r.hosts.Receive(r.t.Context(), githost.GitHub, fakegithub.Header(event, fmt.Sprint("delivery-", r.sent), body), body)
	if err != nil || out.Status != api.GitEventAccepted {
		r.t.Fatalf("%s: %v", out.Status, err)
	}
	testcluster.Await(r.t, "end of the event", func() bool {
		return len(raftstore.Find(r.view(), record.GitHeads, "pending", "yes")) == 0
	})
}

func (r *gitRig) view() *raftstore.Snapshot { return r.Leader().Store.View() }

// only is the only deployment of an app.
func (r *gitRig) only(appID string) *record.Deployment {
	r.t.Helper()
	all := raftstore.Find(r.view(), record.Deployments, "app", appID)
	if len(all) != 1 {
		r.t.Fatalf("%d deployments of %s", len(all), appID)
	}
	return all[0]
}

// previews are those of an app.
func (r *gitRig) previews(parentID string) (out []*record.App) {
	for _, a := range raftstore.All(r.view(), record.Apps) {
		if a.ParentID == parentID {
			out = append(out, a)
		}
	}
	return out
}

// From what GitHub says to what is in the rows of apps, with nothing but GitHub and the
// hosts stood in for.
func TestGitHostsDeployApps(t *testing.T) {
	tier.Slow(t)
	r := newGitRig(t)
	i := r.connect("acme", "shop")
	mine := r.create(testplane.Caller, map[string]string{"PLAIN": "p", "API_URL": "https://prod.test"})
	theirs := r.create(testplane.Stranger, nil) // which have not connected the repository
	if _, err := r.apps.PutVariable(t.Context(), testplane.Caller, mine, "LIVE", api.PutAppVariable{Value: "live only", Scope: new("production")}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hosts.PutPreviewVariable(t.Context(), testplane.Caller, "9000", "API_URL", api.PutRepoVariable{Value: "https://staging.test"}); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{mine: fmt.Sprint(i.ID), theirs: ""} {
		if a, ok := raftstore.Get(r.view(), record.Apps, id); !ok || a.InstallationID != want {
			t.Errorf("%s has the installation %q, want %q", id, a.InstallationID, want)
		}
	}

	at, commit := time.Now().Add(time.Minute), strings.Repeat("2", 40)
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: strings.Repeat("1", 40), After: commit, At: at, Message: "Add a basket"}))
	if d := r.only(mine); d.GitCommit != commit || d.GitRef != "main" || d.Trigger != "push" || d.GitMessage != "Add a basket" || d.GitAuthor != "Ann" {
		t.Errorf("%+v", d)
	}

	pull := fakegithub.PullRequest{Action: "opened", Repo: "shop", Number: 5, Branch: "basket", Commit: strings.Repeat("3", 40), Title: "A basket", At: at}
	r.receive("pull_request", r.github.PullRequestPayload(i, pull))
	all := r.previews(mine)
	if len(all) != 1 {
		t.Fatalf("%d previews", len(all))
	}
	preview := all[0]
	if preview.PullRequest != 5 || preview.GitBranch != "basket" || preview.AutoDeploy || preview.InstallationID != fmt.Sprint(i.ID) {
		t.Errorf("%+v", preview)
	}
	if d := r.only(preview.ID); d.GitCommit != pull.Commit || d.GitRef != "basket" || d.Trigger != "pull_request" {
		t.Errorf("%+v", d)
	}
	vars, err := r.apps.Env(t.Context(), testplane.Caller, preview.ID)
	got := map[string]string{}
	for _, v := range vars {
		got[v.Key] = v.Value
	}
	if err != nil || len(got) != 2 || got["PLAIN"] != "p" || got["API_URL"] != "https://staging.test" {
		t.Errorf("environment %v: %v", got, err)
	}

	pull.Action, pull.At = "closed", at.Add(time.Minute)
	r.receive("pull_request", r.github.PullRequestPayload(i, pull))
	testcluster.Await(t, "end of the preview", func() bool { return len(r.previews(mine)) == 0 })
	if _, ok := raftstore.Get(r.view(), record.Apps, mine); !ok {
		t.Error("the app has gone with its preview")
	}
	if n := len(raftstore.Find(r.view(), record.Deployments, "app", theirs)) + len(r.previews(theirs)); n != 0 {
		t.Errorf("another workspace's app with the same URL has %d deployments and previews", n)
	}
}

// What a stranger's pull request gets: its commit, and nothing of what is not for everybody.
func TestAPreviewOfAForkKnowsNoSecret(t *testing.T) {
	r := newGitRig(t)
	i := r.connect("acme", "shop")
	mine := r.create(testplane.Caller, map[string]string{"PLAIN": "p", "API_URL": "https://prod.test", "READER_URL": "postgres://reader:word@7d3f0c52-9a41-4f0e-8c1b-2f6f3f1f9a10.db.test/books"})
	if _, err := r.apps.PutVariable(t.Context(), testplane.Caller, mine, "KEY", api.PutAppVariable{Value: "hush", Secret: new(true)}); err != nil {
		t.Fatal(err)
	}
	for key, in := range map[string]api.PutRepoVariable{"API_URL": {Value: "https://hush.test", Secret: new(true)}, "STAGE": {Value: "preview"}} {
		if _, err := r.hosts.PutPreviewVariable(t.Context(), testplane.Caller, "9000", key, in); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.apps.Patch(t.Context(), testplane.Caller, mine, api.PatchApp{ForkPreviews: api.SetTo(true)}); err != nil {
		t.Fatal(err)
	}
	pull := fakegithub.PullRequest{Action: "opened", Repo: "shop", Number: 5, Branch: "main", Commit: strings.Repeat("3", 40), Title: "A basket", At: time.Now(), Fork: true}
	r.receive("pull_request", r.github.PullRequestPayload(i, pull))
	all := r.previews(mine)
	if len(all) != 1 || !all[0].Fork || all[0].GitURL != r.github.URL+"/acme/shop.git" || all[0].GitBranch != "refs/pull/5/head" {
		t.Fatalf("%+v", all)
	}
	if d := r.only(all[0].ID); d.GitCommit != pull.Commit || d.GitRef != "refs/pull/5/head" || d.Trigger != "pull_request" {
		t.Errorf("%+v", d)
	}
	vars, err := r.apps.Env(t.Context(), testplane.Caller, all[0].ID)
	got := map[string]string{}
	for _, v := range vars {
		got[v.Key] = v.Value
	}
	if want := map[string]string{"PLAIN": "p", "STAGE": "preview"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("environment %v, want %v: %v", got, want, err)
	}
	pull.Action, pull.At = "closed", pull.At.Add(time.Minute)
	r.receive("pull_request", r.github.PullRequestPayload(i, pull))
	testcluster.Await(t, "end of the preview", func() bool { return len(r.previews(mine)) == 0 })
}

// An app is cloned with a token of its workspace's own installation, as it is now.
func TestCloneTokens(t *testing.T) {
	r := newGitRig(t)
	clone := cloneToken(r.LeaderNode().Core.Store, r.hosts)
	private := r.github.URL + "/acme/shop"
	if user, token, err := clone(t.Context(), "ws", "", private); user != "" || token != "" || err != nil {
		t.Errorf("before it is connected: %q, %v", user, err)
	}
	if _, _, err := clone(t.Context(), "ws", "404", private); err == nil {
		t.Error("an installation that has gone is not told")
	}
	r.connect("acme", "shop")
	for _, known := range []string{"", "404"} {
		user, token, err := clone(t.Context(), "ws", known, private)
		if err != nil || user == "" || !r.github.MayClone(token, "shop") {
			t.Errorf("known as %q: %q, %v", known, user, err)
		}
	}
	if _, token, err := clone(t.Context(), "other", "", private); token != "" || err != nil {
		t.Errorf("another workspace has a token, or %v", err)
	}
	if _, _, err := clone(t.Context(), "ws", "", r.github.URL+"/acme/absent"); err == nil {
		t.Error("a repository that the installation does not include has a token")
	}
}

// A preview that cannot have a clone of its app's database says why, in the pull request.
func TestAPreviewWithoutADatabaseSaysWhy(t *testing.T) {
	r := newGitRig(t) // of one replica: nothing can be cloned
	i := r.connect("acme", "shop")
	const id = "7d3f0c52-9a41-4f0e-8c1b-2f6f3f1f9a10"
	for _, status := range []record.DatabaseStatus{record.DatabaseProvisioning, record.DatabaseReady} {
		r.Update(func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Databases, &record.Database{
				Meta: record.Meta{ID: id}, WorkspaceID: testplane.Caller.WorkspaceID, Status: status, Size: "1g", Name: "app", Username: "app",
				Credentials: &record.DatabaseCredentials{},
			})
			return nil
		})
	}
	mine := r.create(testplane.Caller, map[string]string{"DATABASE_URL": "postgres://reader:word@" + id + ".db.test/books"})
	r.receive("pull_request", r.github.PullRequestPayload(i, fakegithub.PullRequest{
		Action: "opened", Repo: "shop", Number: 5, Branch: "basket", Commit: strings.Repeat("3", 40), Title: "A basket", At: time.Now(),
	}))
	const why = "no clone of its database " + id + ": not available on a single-node install"
	testcluster.Await(t, "the comment", func() bool {
		all := r.github.Comments()
		return len(all) == 1 && strings.Contains(all[0].Body, why)
	})
	all := r.previews(mine)
	if len(all) != 1 || !strings.HasPrefix(r.only(all[0].ID).Error, why) {
		t.Errorf("%+v", all)
	}
}
