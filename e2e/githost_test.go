package e2e

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
	"github.com/berth-cloud/berth/tier"
)

// gitHub is the stand-in for GitHub and one repository there, of which a tenant has an app.
type gitHub struct {
	*fakegithub.GitHub
	*repository
	installation *fakegithub.Installation
	sent         int
}

// newGitHub starts a stack whose operator has set up the stand-in. Its repository is
// acme/shop.
func newGitHub(t *testing.T) *gitHub {
	t.Helper()
	g := &gitHub{GitHub: fakegithub.New(t, time.Now)}
	called := g.URL
	g.repository, g.URL = newRepositoryAt(t, "acme/shop.git") // as GitHub calls its repositories from now on
	g.url = g.URL + "/acme/shop.git"
	key := filepath.Join(t.TempDir(), "github.pem")
	if err := os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(g.Key)}), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := stack.Cache(theStack.Root, "e2e", "githost")
	host := []string{"BERTH_RESOLVERS=" + outsideDNS, "BERTH_SNAPSHOT_STORE="}
	standOn(t, stack.Options{
		Root: theStack.Root, Dir: filepath.Join(dir, "run"), Logs: filepath.Join(dir, "log"),
		PortBase: stack.DefaultPortBase + 400, HostPrefix: "g", HostRange: 4, HostMemoryMB: 8192,
		ReplicaEnv: []string{
			"BERTH_DB_FIRST_BACKUP=3s", "BERTH_DB_ARCHIVE_INTERVAL=5s", "BERTH_APP_HEALTH=3m", "BERTH_GIT_ALLOW_HTTP=true",
			"BERTH_GITHUB_APP_ID=" + fakegithub.AppID, "BERTH_GITHUB_APP_SLUG=" + fakegithub.Slug, "BERTH_GITHUB_PRIVATE_KEY=" + key,
			"BERTH_GITHUB_WEBHOOK_SECRET=" + fakegithub.WebhookSecret, "BERTH_GITHUB_API=" + called, "BERTH_GITHUB_WEB=" + g.URL,
		},
		HostEnv: map[string][]string{"g1": host, "g2": host},
	})
	return g
}

// connect installs the GitHub App in the account acme, for a tenant's workspace.
func (g *gitHub) connect(t *testing.T, c *tenant) {
	t.Helper()
	var asked struct {
		URL string `json:"url"`
	}
	c.call(t, "GET", "/v1/github/connect", "", 200, &asked)
	u, err := url.Parse(asked.URL)
	if err != nil {
		t.Fatal(err)
	}
	// GitHub tells the time in whole seconds.
	g.installation = g.Install(fakegithub.Installation{Account: "acme", Org: true, Repos: []string{"shop"}, CreatedAt: time.Now().Add(time.Second)})
	back := url.Values{"installation_id": {fmt.Sprint(g.installation.ID)}, "state": {u.Query().Get("state")}, "setup_action": {"install"}}
	c.call(t, "GET", "/v1/github/callback?"+back.Encode(), "", 200, nil)
}

// tell sends an event to a replica.
func (g *gitHub) tell(t *testing.T, event string, body []byte) {
	t.Helper()
	g.sent++
	header := map[string]string{}
	for name, values := range fakegithub.Header(event, fmt.Sprint("delivery-", g.sent), body) {
		header[name] = values[0]
	}
	a := request{method: "POST", path: "/v1/webhooks/github", body: string(body), header: header, replica: g.sent % len(theStack.URLs)}.send(t)
	if a.status != http.StatusAccepted || !strings.Contains(a.body, `"accepted"`) {
		t.Fatalf("%s: %d %s", event, a.status, a.body)
	}
}

func (g *gitHub) pull(t *testing.T, p fakegithub.PullRequest) {
	t.Helper()
	p.Repo, p.Title, p.At = "shop", "A basket", time.Now()
	g.tell(t, "pull_request", g.PullRequestPayload(g.installation, p))
}

// comments waits until the only comment of a pull request has a text.
func (g *gitHub) comments(t *testing.T, number int, texts ...string) {
	t.Helper()
	eventually(t, appWait, "the comment says "+strings.Join(texts, ", "), func(context.Context) error {
		var of []fakegithub.Comment
		for _, c := range g.Comments() {
			if c.Number == number {
				of = append(of, c)
			}
		}
		if len(of) != 1 {
			return fmt.Errorf("there are %d", len(of))
		}
		for _, text := range texts {
			if !strings.Contains(of[0].Body, text) {
				return fmt.Errorf("it is %s", of[0].Body)
			}
		}
		return nil
	})
}

// deploysCommit waits until an app's deployment of a commit is live.
func (c *tenant) deploysCommit(t *testing.T, appID, commit string, trigger api.DeploymentTrigger) api.Deployment {
	t.Helper()
	var found api.Deployment
	eventually(t, appWait, "a deployment of "+commit[:8], func(context.Context) error {
		var all []api.Deployment
		c.call(t, "GET", "/v1/apps/"+appID+"/deploys", "", 200, &all)
		if len(all) == 0 || all[0].GitCommit != commit {
			return fmt.Errorf("there are %d, and none of it is the newest", len(all))
		}
		found = all[0]
		return nil
	})
	if found.ID == "" {
		t.FailNow()
	}
	if found.Trigger != trigger {
		t.Errorf("its trigger is %s, want %s", found.Trigger, trigger)
	}
	return c.deployed(t, found, api.DeploymentLive)
}

// appNamed waits for an app by its name, and deletes it at the end of the test.
func (c *tenant) appNamed(t *testing.T, name string) api.App {
	t.Helper()
	var found api.App
	eventually(t, appWait, "the app "+name, func(context.Context) error {
		var all []api.App
		c.call(t, "GET", "/v1/apps", "", 200, &all)
		for _, a := range all {
			if a.Name == name {
				found = a
				return nil
			}
		}
		return fmt.Errorf("there are %d others", len(all))
	})
	if found.ID == "" {
		t.FailNow()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.DeleteApp(ctx, found.ID); err != nil && api.StatusOf(err) != http.StatusNotFound {
			t.Errorf("delete %s: %v", found.ID, err)
		}
	})
	return found
}

// notThere waits until a path answers 404.
func (c *tenant) notThere(t *testing.T, path string) {
	t.Helper()
	eventually(t, appWait, path+" is gone", func(context.Context) error {
		if a := (request{method: "GET", path: path, token: c.token}).send(t); a.status != http.StatusNotFound {
			return fmt.Errorf("%d %s", a.status, a.body)
		}
		return nil
	})
}

// A push deploys, and a pull request has the app, and its database, for itself until it is
// closed; one from a fork has neither the database nor anything that is secret.
func TestPushesAndPullRequests(t *testing.T) {
	tier.Slow(t)
	tier.Guests(t)
	g := newGitHub(t)
	c := newTenant(t)
	c.knownEverywhere(t)
	g.connect(t, c)
	db := c.database(t, `{"always_on":true,"label":"orders"}`)
	orders := db.connect(t)
	statement(t, orders, "CREATE TABLE orders (item text)")
	statement(t, orders, "INSERT INTO orders VALUES ('basket')")
	app := c.app(t, map[string]any{
		"name": "shop", "git_url": g.url, "git_branch": "main", "auto_deploy": true, "fork_previews": true, "auto_hibernate": false,
		"env": map[string]string{"DATABASE_URL": db.ConnectionURL + "?sslmode=verify-full", "GREETING": "hello"},
	})
	c.call(t, "PUT", "/v1/apps/"+app.ID+"/env/KEY", `{"value":"s3cr3t-of-the-test","secret":true}`, 200, nil)

	// A push deploys it.
	first := g.commit("The first", server("one"))
	g.tell(t, "push", g.PushPayload(g.installation, fakegithub.Push{Repo: "shop", Before: fakegithub.Zeros, After: first, At: time.Now(), Message: "The first", Public: true}))
	c.deploysCommit(t, app.ID, first, api.TriggerPush)
	c.appServes(t, app, 30*time.Second, "one")
	eventually(t, time.Minute, "GitHub has the commit's status", func(context.Context) error {
		for _, s := range g.Statuses() {
			if s.Commit == first && s.State == "success" && s.TargetURL == app.URL {
				return nil
			}
		}
		return fmt.Errorf("they are %+v", g.Statuses())
	})
	c.archived(t, db.ID, time.Time{})

	// A pull request has a preview, with a clone of the database.
	g.git("checkout", "-q", "-b", "basket")
	second := g.commit("The second", server("two"))
	g.pull(t, fakegithub.PullRequest{Action: "opened", Number: 5, Branch: "basket", Commit: second})
	preview := c.appNamed(t, "shop (pull request 5)")
	c.deploysCommit(t, preview.ID, second, api.TriggerPullRequest)
	c.appServes(t, preview, 30*time.Second, "two")
	g.comments(t, 5, "is live", preview.URL, second[:8])
	var databases []database
	var clone database
	c.call(t, "GET", "/v1/databases", "", 200, &databases)
	for _, d := range databases {
		if d.ClonedFrom == db.ID {
			clone = c.databaseIs(t, d.ID)
		}
	}
	if clone.ID == "" || len(databases) != 2 {
		t.Fatalf("the databases are %+v", databases)
	}
	c.deleteDatabaseAtEnd(t, clone.ID)
	if a := asks(t, 0, preview, "/env?name=DATABASE_URL"); a.body != clone.ConnectionURL+"?sslmode=verify-full" || strings.Contains(a.body, db.Host) {
		t.Errorf("its database is %s, want %s", a.body, clone.ConnectionURL)
	}
	copied := clone.connect(t)
	if item := query[string](t, copied, "SELECT item FROM orders"); item != "basket" {
		t.Errorf("the clone has %q", item)
	}
	statement(t, copied, "DELETE FROM orders")
	if n := query[int](t, orders, "SELECT count(*) FROM orders"); n != 1 {
		t.Errorf("the app's database has %d rows", n)
	}

	// A push to it is deployed again, with the same clone.
	third := g.commit("The third", server("three"))
	g.pull(t, fakegithub.PullRequest{Action: "synchronize", Number: 5, Branch: "basket", Before: second, Commit: third})
	c.deploysCommit(t, preview.ID, third, api.TriggerPullRequest)
	c.appServes(t, preview, 30*time.Second, "three")
	g.comments(t, 5, "is live", preview.URL, third[:8])
	if n := query[int](t, copied, "SELECT count(*) FROM orders"); n != 0 {
		t.Errorf("the clone has %d rows, and had none", n)
	}
	if a := asks(t, 0, app, "/"); a.body != "one" {
		t.Errorf("the app itself serves %d %s", a.status, a.body)
	}

	// A fork's commit is in no branch of the repository, only at its pull request.
	g.git("checkout", "-q", "--detach", "main")
	theirs := g.commit("By somebody", server("theirs"))
	g.git("update-ref", "refs/pull/6/head", theirs)
	g.git("checkout", "-q", "main")
	g.pull(t, fakegithub.PullRequest{Action: "opened", Number: 6, Branch: "main", Commit: theirs, Fork: true})
	fork := c.appNamed(t, "shop (pull request 6)")
	c.deploysCommit(t, fork.ID, theirs, api.TriggerPullRequest)
	c.appServes(t, fork, 30*time.Second, "theirs")
	for name, want := range map[string]string{"GREETING": "hello", "KEY": "(unset)", "DATABASE_URL": "(unset)"} {
		if a := asks(t, 0, fork, "/env?name="+name); a.body != want {
			t.Errorf("a fork's preview has %s=%s", name, a.body)
		}
	}
	g.comments(t, 6, "is live", fork.URL)
	if c.call(t, "GET", "/v1/databases", "", 200, &databases); len(databases) != 2 {
		t.Errorf("the databases are %+v", databases)
	}

	// Closed, they are gone with what is theirs.
	_ = copied.Close(t.Context())
	g.pull(t, fakegithub.PullRequest{Action: "closed", Number: 5, Branch: "basket", Commit: third})
	g.pull(t, fakegithub.PullRequest{Action: "closed", Number: 6, Branch: "main", Commit: theirs, Fork: true})
	for _, path := range []string{"/v1/apps/" + preview.ID, "/v1/apps/" + fork.ID, "/v1/databases/" + clone.ID} {
		c.notThere(t, path)
	}
	g.comments(t, 5, "was removed")
	g.comments(t, 6, "was removed")
	if a := asks(t, 0, app, "/"); a.status != 200 || a.body != "one" {
		t.Errorf("the app itself: %d %s", a.status, a.body)
	}
	if n := query[int](t, orders, "SELECT count(*) FROM orders"); n != 1 {
		t.Errorf("the app's database has %d rows", n)
	}
}
