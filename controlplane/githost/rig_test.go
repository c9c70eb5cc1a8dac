package githost_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/raftstore/seal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	caller   = testplane.Caller
	stranger = testplane.Stranger
)

// clock is a time that a test moves. It begins after all that the store stamps.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// rig is a cluster whose leader acts on events, beside a GitHub.
type rig struct {
	*testcluster.Cluster
	t       *testing.T
	clock   *clock
	github  *fakegithub.GitHub
	apps    *deployer
	of      map[*testcluster.Replica]*githost.GitHosts
	stop    func() // the loops
	sent    int
	secrets core.Sealer
}

func newRig(t *testing.T, change ...func(*githost.Config)) *rig {
	t.Helper()
	return newRigOf(t, 1, change...)
}

func newRigOf(t *testing.T, replicas int, change ...func(*githost.Config)) *rig {
	t.Helper()
	secrets, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		Cluster: testcluster.New(t, replicas), t: t, clock: &clock{now: time.Now().Add(time.Hour).Truncate(time.Second)},
		of: map[*testcluster.Replica]*githost.GitHosts{}, secrets: secrets,
	}
	r.github = fakegithub.New(t, r.clock.Now)
	r.apps = &deployer{r: r}
	cfg := githost.Config{
		App: &githost.App{
			ID: fakegithub.AppID, Slug: fakegithub.Slug, PrivateKey: r.github.Key, WebhookSecret: fakegithub.WebhookSecret, API: r.github.URL, Web: r.github.URL,
		},
		GitLabSecret: "a secret of gitlab", GiteaSecret: "a secret of gitea",
		AppURL:    func(id string) string { return "https://" + id + ".apps.test/" },
		Transport: &http.Transport{DisableKeepAlives: true},
	}
	for _, c := range change {
		c(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(r.stop)
	for _, rep := range r.Replicas {
		g, err := githost.New(core.New(core.Core{Store: rep.Store, Sealer: secrets, Clock: r.clock.Now, Logger: testcluster.Log()}), cfg)
		if err != nil {
			t.Fatal(err)
		}
		g.Serve(g.Apps(&replicaDeployer{deployer: r.apps, store: rep.Store}))
		all := loops.New(loops.Config{Store: rep.Store, Clock: r.clock.Now, Logger: testcluster.Log(), Every: 20 * time.Millisecond})
		all.Register(g.Loops)
		r.of[rep] = g
		wg.Go(func() { loops.WhileLeading(ctx, rep.Store.Leadership(), all.Run) })
	}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "other"}})
		for _, c := range []core.Caller{caller, stranger} {
			raftstore.Put(tx, record.APIKeys, &record.APIKey{Meta: record.Meta{ID: c.KeyID}, WorkspaceID: c.WorkspaceID, Prefix: c.KeyID})
		}
		return nil
	})
	return r
}

// hosts are the use cases of the replica that leads.
func (r *rig) hosts() *githost.GitHosts {
	r.t.Helper()
	return r.of[r.Leader()]
}

func (r *rig) view() *raftstore.Snapshot { return r.Leader().Store.View() }

// state begins to connect, and is what GitHub brings back.
func (r *rig) state(c core.Caller) string {
	r.t.Helper()
	out, err := r.hosts().Connect(r.t.Context(), c)
	if err != nil {
		r.t.Fatal(err)
	}
	u, err := url.Parse(out.URL)
	if err != nil || !strings.HasSuffix(u.Path, "apps/"+fakegithub.Slug+"/installations/new") {
		r.t.Fatalf("%s: %v", out.URL, err)
	}
	return u.Query().Get("state")
}

// connect installs the app in an account, for a workspace.
func (r *rig) connect(c core.Caller, account string, repos ...string) *fakegithub.Installation {
	r.t.Helper()
	s := r.state(c)
	i := r.github.Install(fakegithub.Installation{Account: account, Org: true, Repos: repos})
	if _, err := r.hosts().Callback(r.t.Context(), githost.Callback{InstallationID: fmt.Sprint(i.ID), State: s, SetupAction: "install"}); err != nil {
		r.t.Fatal(err)
	}
	return i
}

// app makes an app of a workspace that deploys on pushes.
func (r *rig) app(workspace, id, gitURL, branch string, change ...func(*record.App)) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		a := &record.App{Meta: record.Meta{ID: id}, WorkspaceID: workspace, Status: record.AppCreated, Name: "the " + id, GitURL: gitURL, GitBranch: branch, AutoDeploy: true}
		for _, c := range change {
			c(a)
		}
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
}

// receive sends an event of GitHub, and returns what becomes of it.
func (r *rig) receive(event string, body []byte) api.GitEventStatus {
	r.t.Helper()
	r.sent++
	out, err := r.hosts().Receive(r.t.Context(), githost.GitHub, fakegithub.Header(event, fmt.Sprint("delivery-", r.sent), body), body)
	if err != nil {
		r.t.Fatal(err)
	}
	return out.Status
}

// settled waits until every event has been acted on.
func (r *rig) settled() {
	r.t.Helper()
	testcluster.Await(r.t, "end of all events", func() bool {
		return len(raftstore.Find(r.view(), record.GitHeads, "pending", "yes")) == 0
	})
}

// tried waits until it is written down of every event when it is tried again. Whoever moves
// the clock before that moves the next try as well.
func (r *rig) tried() {
	r.t.Helper()
	testcluster.Await(r.t, "end of all tries", func() bool {
		return !slices.ContainsFunc(raftstore.Find(r.view(), record.GitHeads, "pending", "yes"), func(h *record.GitHead) bool {
			return !h.NextAttemptAt.After(r.clock.Now())
		})
	})
}

// deployment is one that was begun.
type deployment struct{ App, Ref, Commit, Message, Author, Trigger string }

// deployer is what the deployers of all replicas share.
type deployer struct {
	r *rig

	mu    sync.Mutex
	all   []deployment
	env   map[string][]githost.Variable // by preview
	fail  error                         // of the next call
	fails int                           // calls that failed
	step  func()                        // before and after each call that does not fail; nil: nothing
}

// replicaDeployer writes the records of apps that package app would, as one replica.
type replicaDeployer struct {
	*deployer
	store *raftstore.Store
}

func (d *deployer) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		d.fails++
	}
	return d.fail
}

// update runs a transaction of the replica.
func (d *replicaDeployer) update(ctx context.Context, fn func(tx *raftstore.Tx) error) error {
	if err := d.failed(); err != nil {
		return err
	}
	if d.step != nil {
		d.step()
	}
	if err := core.StoreError(d.store.Update(ctx, fn)); err != nil {
		return err
	}
	if d.step != nil {
		d.step()
	}
	return nil
}

func (d *deployer) breaks(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func (d *deployer) failures() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fails
}

func (d *deployer) deployed() []deployment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.all)
}

// DeployApp deploys as the replica that leads.
func (d *deployer) DeployApp(ctx context.Context, appID, gitRef, commit, message, author, trigger string) (string, error) {
	return (&replicaDeployer{deployer: d, store: d.r.Leader().Store}).DeployApp(ctx, appID, gitRef, commit, message, author, trigger)
}

func (d *replicaDeployer) DeployApp(ctx context.Context, appID, gitRef, commit, message, author, trigger string) (string, error) {
	id := "dep-" + core.RandomText(12)
	err := d.update(ctx, func(tx *raftstore.Tx) error {
		app, ok := raftstore.Get(tx, record.Apps, appID)
		if !ok {
			return errors.New("no such app")
		}
		raftstore.Put(tx, record.Deployments, &record.Deployment{
			Meta: record.Meta{ID: id}, AppID: appID, WorkspaceID: app.WorkspaceID, Status: record.DeploymentQueued, Source: "git",
			GitRef: gitRef, GitCommit: commit, GitMessage: message, GitAuthor: author, Trigger: trigger,
		})
		return nil
	})
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, deployment{appID, gitRef, commit, message, author, trigger})
	return id, nil
}

func (d *replicaDeployer) CreatePreview(ctx context.Context, parentID string, number int, branch string, fork bool, env []githost.Variable) (string, error) {
	id := fmt.Sprintf("%s-pr%d", parentID, number)
	err := d.update(ctx, func(tx *raftstore.Tx) error {
		parent, _ := raftstore.Get(tx, record.Apps, parentID)
		if _, ok := raftstore.Get(tx, record.Apps, id); ok {
			return nil
		}
		raftstore.Put(tx, record.Apps, &record.App{
			Meta: record.Meta{ID: id}, WorkspaceID: parent.WorkspaceID, Status: record.AppCreated, Name: parent.Name + " preview", GitURL: parent.GitURL, GitBranch: branch,
			ParentID: parentID, PullRequest: number, Fork: fork,
		})
		return nil
	})
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.env == nil {
		d.env = map[string][]githost.Variable{}
	}
	d.env[id] = env
	return id, nil
}

func (d *replicaDeployer) DeletePreview(ctx context.Context, appID string) error {
	return d.update(ctx, func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Apps, appID)
		return nil
	})
}

// become moves an app's latest deployment on.
func (r *rig) become(appID string, to ...record.DeploymentStatus) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		all := raftstore.Find(tx, record.Deployments, "app", appID)
		d := slices.MaxFunc(all, func(a, b *record.Deployment) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
		for _, s := range to {
			d = d.Clone()
			d.Status = s
			if s.Ended() {
				d.FinishedAt = r.clock.Now()
			}
			if s == record.DeploymentFailed {
				d.Error = "the build command ended with code 1"
			}
			raftstore.Put(tx, record.Deployments, d)
			if s == record.DeploymentLive {
				app, _ := raftstore.Get(tx, record.Apps, appID)
				app = app.Clone()
				app.DeploymentID = d.ID
				raftstore.Put(tx, record.Apps, app)
			}
		}
		return nil
	})
}

func sha(c byte) string { return strings.Repeat(string(c), 40) }
