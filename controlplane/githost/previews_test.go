package githost_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func (r *rig) pull(i *fakegithub.Installation, p fakegithub.PullRequest) api.GitEventStatus {
	r.t.Helper()
	p.Repo, p.Title = "shop", "A basket"
	if p.Branch == "" {
		p.Branch = "basket"
	}
	out := r.receive("pull_request", r.github.PullRequestPayload(i, p))
	r.settled()
	return out
}

// comments waits until there is one comment of ours with a text.
func (r *rig) comments(has string) fakegithub.Comment {
	r.t.Helper()
	var last []fakegithub.Comment
	testcluster.Await(r.t, "a comment with "+has, func() bool {
		last = slices.DeleteFunc(r.github.Comments(), func(c fakegithub.Comment) bool { return c.User.Type != "Bot" })
		return len(last) == 1 && strings.Contains(last[0].Body, has)
	})
	return last[0]
}

func TestPreview(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	shop := r.github.URL + "/acme/shop"
	r.app("ws", "app-a", shop, "main")
	r.app("ws", "app-manual", shop, "main", func(a *record.App) { a.AutoDeploy = false })
	r.app("other", "app-other", shop, "main")
	if _, err := r.hosts().PutPreviewVariable(t.Context(), caller, "9000", "API_URL", api.PutRepoVariable{Value: "https://staging.test", Secret: new(true)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.hosts().PutPreviewVariable(t.Context(), stranger, "9000", "API_URL", api.PutRepoVariable{Value: "https://theirs.test"}); err != nil {
		t.Fatal(err)
	}
	r.github.AddComment("acme/shop", 5, "<!-- berth-preview app-a#5 --> mine") // anybody can write this
	at := r.clock.Now()
	if got := r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: at}); got != api.GitEventAccepted {
		t.Fatal(got)
	}
	want := []deployment{{"app-a-pr5", "basket", sha('2'), "A basket", "ann", "pull_request"}}
	if diff := cmp.Diff(want, r.apps.deployed()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]githost.Variable{{Key: "API_URL", Value: "https://staging.test", Secret: true}}, r.apps.env["app-a-pr5"]); diff != "" {
		t.Error(diff)
	}
	first := r.comments("is being deployed")
	if strings.Contains(first.Body, "https://app-a-pr5") || first.Number != 5 {
		t.Errorf("%+v", first)
	}
	r.become("app-a-pr5", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	if c := r.comments("is live"); c.ID != first.ID || !strings.Contains(c.Body, "https://app-a-pr5.apps.test/") || !strings.Contains(c.Body, "the app-a") {
		t.Errorf("%+v", c)
	}

	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 5, Before: sha('2'), Commit: sha('3'), At: at.Add(time.Minute)})
	if got := r.apps.deployed(); len(got) != 2 || got[1].Commit != sha('3') {
		t.Errorf("%+v", got)
	}
	r.become("app-a-pr5", record.DeploymentBuilding, record.DeploymentFailed)
	if c := r.comments("failed: the build command ended"); c.ID != first.ID || !strings.Contains(c.Body, "https://app-a-pr5.apps.test/") {
		t.Errorf("what is served still: %+v", c)
	}
	// A comment that somebody deletes is written anew.
	r.github.DeleteComment(first.ID)
	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 5, Before: sha('3'), Commit: sha('4'), At: at.Add(2 * time.Minute)})
	r.comments("is being deployed")

	r.pull(i, fakegithub.PullRequest{Action: "closed", Number: 5, Commit: sha('4'), At: at.Add(3 * time.Minute)})
	if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); there {
		t.Error("the preview is there")
	}
	r.comments("was removed")
	testcluster.Await(t, "no row", func() bool { return len(raftstore.All(r.view(), record.GitPreviews)) == 0 })
	// What comes late brings nothing back, and an owner can.
	for _, late := range []fakegithub.PullRequest{
		{Action: "synchronize", Number: 5, Before: sha('3'), Commit: sha('4'), At: at.Add(2*time.Minute + time.Second)},
		{Action: "synchronize", Number: 5, Before: sha('4'), Commit: sha('5'), At: at.Add(3 * time.Minute)},
		{Action: "labeled", Number: 5, Commit: sha('5'), At: at.Add(4 * time.Minute)},
	} {
		if got := r.pull(i, late); got == api.GitEventAccepted {
			t.Errorf("%s is %s", late.Action, got)
		}
	}
	if got := r.pull(i, fakegithub.PullRequest{Action: "reopened", Number: 5, Commit: sha('4'), At: at.Add(3 * time.Minute)}); got != api.GitEventAccepted {
		t.Error(got)
	}
	if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); !there {
		t.Error("there is no preview")
	}
}

// Previews are a setting of their own.
func TestPreviewsAreASettingOfTheApp(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	shop := r.github.URL + "/acme/shop"
	r.app("ws", "app-deploys", shop, "main", func(a *record.App) { a.Previews = new(false) })
	r.app("ws", "app-shows", shop, "main", func(a *record.App) { a.AutoDeploy, a.Previews = false, new(true) })
	at := r.clock.Now()
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: at})
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('3'), At: at}))
	r.settled()
	var apps []string
	for _, d := range r.apps.deployed() {
		apps = append(apps, d.App)
	}
	if want := []string{"app-shows-pr5", "app-deploys"}; !slices.Equal(apps, want) {
		t.Errorf("deployed %v, want %v", apps, want)
	}
	// Without a new one, what there is goes with its pull request.
	r.Update(func(tx *raftstore.Tx) error {
		a, _ := raftstore.Get(tx, record.Apps, "app-shows")
		a = a.Clone()
		a.Previews = new(false)
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	if got := r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 6, Commit: sha('2'), At: at}); got != api.GitEventIgnored {
		t.Errorf("another one is %s", got)
	}
	r.pull(i, fakegithub.PullRequest{Action: "closed", Number: 5, Commit: sha('2'), At: at.Add(time.Minute)})
	if _, there := raftstore.Get(r.view(), record.Apps, "app-shows-pr5"); there {
		t.Error("the preview is there")
	}
}

// The branch of a fork is of somebody who has no right to the repository, nor to what its
// previews know.
func TestForksGetNoPreview(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	for _, action := range []string{"opened", "synchronize", "reopened", "closed"} {
		if got := r.pull(i, fakegithub.PullRequest{Action: action, Number: 6, Commit: sha('2'), Before: sha('1'), At: r.clock.Now(), Fork: true}); got != api.GitEventIgnored {
			t.Errorf("%s is %s", action, got)
		}
	}
	if len(r.apps.deployed()) != 0 {
		t.Error("it was deployed")
	}
}

// An app may want previews of forks. They are of the ref by which its own repository has
// the branch, and know that they are of a fork.
func TestPreviewsOfForks(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	shop := r.github.URL + "/acme/shop"
	r.app("ws", "app-open", shop, "main", func(a *record.App) { a.ForkPreviews = true })
	r.app("ws", "app-shut", shop, "main")
	r.app("ws", "app-none", shop, "main", func(a *record.App) { a.Previews, a.ForkPreviews = new(false), true })
	at := r.clock.Now()
	there := func(id string) bool { _, there := raftstore.Get(r.view(), record.Apps, id); return there }
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 6, Commit: sha('2'), Branch: "main", At: at, Fork: true})
	want := []deployment{{"app-open-pr6", "refs/pull/6/head", sha('2'), "A basket", "ann", "pull_request"}}
	if diff := cmp.Diff(want, r.apps.deployed()); diff != "" {
		t.Error(diff)
	}
	if a, _ := raftstore.Get(r.view(), record.Apps, "app-open-pr6"); a == nil || !a.Fork || a.GitBranch != "refs/pull/6/head" {
		t.Errorf("%+v", a)
	}
	first := r.comments("is being deployed")
	r.become("app-open-pr6", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	if c := r.comments("is live"); c.ID != first.ID || !strings.Contains(c.Body, "https://app-open-pr6.apps.test/") {
		t.Errorf("%+v", c)
	}
	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 6, Before: sha('2'), Commit: sha('3'), At: at.Add(time.Minute), Fork: true})
	if got := r.apps.deployed(); len(got) != 2 || got[1].Commit != sha('3') {
		t.Errorf("%+v", got)
	}
	r.pull(i, fakegithub.PullRequest{Action: "closed", Number: 6, Commit: sha('3'), At: at.Add(2 * time.Minute), Fork: true})
	if there("app-open-pr6") {
		t.Error("it outlives its pull request")
	}
	r.comments("was removed")

	// What was made of a branch of the repository is not given a fork's code, and goes where
	// no fork's is wanted.
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 7, Commit: sha('2'), At: at})
	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 7, Before: sha('2'), Commit: sha('3'), At: at.Add(time.Minute), Fork: true})
	if a, _ := raftstore.Get(r.view(), record.Apps, "app-open-pr7"); a == nil || !a.Fork || there("app-shut-pr7") {
		t.Errorf("%+v; the other is there: %t", a, there("app-shut-pr7"))
	}
	// An app that no longer wants them has none from the next event on.
	r.Update(func(tx *raftstore.Tx) error {
		a, _ := raftstore.Get(tx, record.Apps, "app-open")
		a = a.Clone()
		a.ForkPreviews = false
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	n := len(r.apps.deployed())
	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 7, Before: sha('3'), Commit: sha('4'), At: at.Add(2 * time.Minute), Fork: true})
	if there("app-open-pr7") || len(r.apps.deployed()) != n {
		t.Error("it is there, or was deployed")
	}
}

func TestEventsOfAPullRequestOutOfOrder(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	at := r.clock.Now()
	// Both of one second, the second first.
	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 5, Before: sha('2'), Commit: sha('3'), At: at})
	if got := r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: at}); got != api.GitEventStale {
		t.Error(got)
	}
	// The end before the beginning.
	r.pull(i, fakegithub.PullRequest{Action: "closed", Number: 7, Commit: sha('2'), At: at.Add(time.Minute)})
	if got := r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 7, Commit: sha('2'), At: at}); got != api.GitEventStale {
		t.Error(got)
	}
	if got := r.apps.deployed(); len(got) != 1 || got[0].Commit != sha('3') {
		t.Errorf("%+v", got)
	}
}

// GitHub says once that a pull request is closed, and nobody may hear it. It is asked, once
// an hour.
func TestEndOfAPullRequestThatWasMissed(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()})
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 6, Commit: sha('2'), At: r.clock.Now()})
	missed := r.hosts().Missed(r.term())
	asked := func() int { return len(r.github.Calls("GET /repos/acme/shop/pulls/5")) }
	there := func(id string) bool { _, there := raftstore.Get(r.view(), record.Apps, id); return there }
	missed(t.Context())
	before := asked()
	r.github.Close("acme/shop", 5, r.clock.Now().Add(time.Minute))
	r.clock.add(59 * time.Minute)
	missed(t.Context())
	if asked() != before || !there("app-a-pr5") {
		t.Errorf("asked %d times, %d before", asked(), before)
	}
	r.clock.add(time.Minute)
	missed(t.Context())
	testcluster.Await(t, "the end of its preview", func() bool { return !there("app-a-pr5") })
	if !there("app-a-pr6") {
		t.Error("the preview of a pull request that is open is gone")
	}
	// What GitHub says of before an event that has arrived counts for nothing.
	r.github.Close("acme/shop", 6, r.clock.Now().Add(-2*time.Hour))
	r.clock.add(time.Hour)
	missed(t.Context())
	r.settled()
	if !there("app-a-pr6") {
		t.Error("an old end has closed the preview of a later event")
	}
}

// The previews of a repository that was deleted, given away, or taken from the
// installation go: nothing would say when their pull requests are closed. They go soon
// where GitHub says so, and otherwise within an hour.
func TestPreviewsGoWithTheirRepository(t *testing.T) {
	for name, c := range map[string]struct {
		public      string // what can still be read of it
		event       string
		uninstalled bool
		body        func(r *rig, i *fakegithub.Installation) []byte
	}{
		"deleted": {event: "repository", body: func(r *rig, i *fakegithub.Installation) []byte {
			return r.github.RepositoryPayload(i, "shop", "deleted", "")
		}},
		"given away": {public: "new/store", event: "repository", body: func(r *rig, i *fakegithub.Installation) []byte {
			return r.github.RepositoryPayload(&fakegithub.Installation{ID: 1, Account: "new"}, "shop", "transferred", "acme")
		}},
		"no longer selected":    {public: "acme/shop", event: "installation_repositories", body: func(r *rig, i *fakegithub.Installation) []byte { return r.github.RemovedPayload(i, "shop") }},
		"deleted, unheard":      {},
		"uninstalled, unheard":  {uninstalled: true},
		"given away, unheard":   {public: "new/store"},
		"not selected, unheard": {public: "acme/shop"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			i := r.connect(caller, "acme", "shop", "other")
			r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
			r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()})
			missed := r.hosts().Missed(r.term())
			missed(t.Context())
			if r.github.Leave(i, "shop", c.public); c.uninstalled {
				r.github.Uninstall(i)
			}
			r.clock.add(time.Minute)
			if c.event != "" {
				if got := r.receive(c.event, c.body(r, i)); got != api.GitEventAccepted {
					t.Errorf("the event is %s", got)
				}
			} else {
				r.clock.add(time.Hour)
			}
			missed(t.Context())
			if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); there {
				t.Error("the preview is there")
			}
			if _, there := raftstore.Get(r.view(), record.Apps, "app-a"); !there {
				t.Error("the app is gone, too")
			}
		})
	}
}

// A repository that is there keeps its previews, whatever GitHub fails to say of them.
func TestPreviewsStayWhileTheirRepositoryIsThere(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop", "other")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()})
	missed := r.hosts().Missed(r.term())
	missed(t.Context())
	for status, where := range map[int]string{404: "/pulls/5", 422: "/pulls/5", 500: "/repos/acme/shop", 403: "/access_tokens"} {
		r.github.Break(func(w http.ResponseWriter, q *http.Request) bool {
			if strings.Contains(q.URL.Path, where) {
				w.WriteHeader(status)
			}
			return strings.Contains(q.URL.Path, where)
		})
		r.clock.add(2 * time.Hour)
		missed(t.Context())
		if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); !there {
			t.Fatalf("after %d of %s the preview is gone", status, where)
		}
	}
	r.github.Break(nil)
	// An event that is not true only has it asked for.
	if got := r.receive("repository", r.github.RepositoryPayload(i, "shop", "deleted", "")); got != api.GitEventAccepted {
		t.Error(got)
	}
	for _, other := range [][]byte{r.github.RepositoryPayload(i, "shop", "edited", ""), r.github.RepositoryPayload(i, "other", "deleted", "")} {
		if got := r.receive("repository", other); got != api.GitEventIgnored {
			t.Error(got)
		}
	}
	before := len(r.github.Calls("GET /repos/acme/shop/pulls/5"))
	for range 2 { // the second time there is nothing to ask
		r.clock.add(time.Minute)
		missed(t.Context())
	}
	if n := len(r.github.Calls("GET /repos/acme/shop/pulls/5")); n != before+1 {
		t.Errorf("asked %d times for the event", n-before)
	}
	if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); !there {
		t.Error("the preview is gone")
	}
}

// A preview goes with its app.
func TestOrphanedPreviews(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()})
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Apps, "app-a"); return nil })
	r.hosts().Prune(t.Context(), r.term())
	if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); there {
		t.Error("the preview is there")
	}
}

// A preview goes with its account's connection, but not where that is only suspended, or
// is there anew.
func TestPreviewsOfAnAccountThatIsDisconnected(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()})
	there := func() bool {
		r.hosts().Prune(t.Context(), r.term())
		_, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5")
		return there
	}
	id := fmt.Sprint(i.ID)
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.GitInstallations, id)
		row = row.Clone()
		row.Suspended = true
		raftstore.Put(tx, record.GitInstallations, row)
		return nil
	})
	if !there() {
		t.Error("it goes with what is suspended")
	}
	r.Update(func(tx *raftstore.Tx) error {
		row, _ := raftstore.Get(tx, record.GitInstallations, id)
		row = row.Clone()
		raftstore.Delete(tx, record.GitInstallations, id)
		row.Meta = record.Meta{ID: "4711"}
		raftstore.Put(tx, record.GitInstallations, row)
		return nil
	})
	if !there() {
		t.Error("it goes although the account is connected anew")
	}
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.GitInstallations, "4711"); return nil })
	if there() {
		t.Error("the preview is there")
	}
	if _, there := raftstore.Get(r.view(), record.Apps, "app-a"); !there {
		t.Error("its app is gone")
	}
}

// What is pending at GitHub ends with the app, also if GitHub could not be told while the
// app was there.
func TestStatusOfADeletedApp(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.settled()
	testcluster.Await(t, "the first report", func() bool {
		all := raftstore.All(r.view(), record.GitReports)
		return len(all) == 1 && all[0].State == "pending"
	})
	r.Update(func(tx *raftstore.Tx) error {
		for _, d := range raftstore.All(tx, record.Deployments) {
			raftstore.Delete(tx, record.Deployments, d.ID)
		}
		raftstore.Delete(tx, record.Apps, "app-a")
		return nil
	})
	term := r.term()
	testcluster.Await(t, "its end", func() bool {
		r.hosts().Prune(t.Context(), term)
		return len(raftstore.All(r.view(), record.GitReports)) == 0
	})
	all := r.github.Statuses()
	want := fakegithub.Status{Repo: "acme/shop", Commit: sha('2'), State: "error", Description: "Its app was deleted", Context: "berth/the app-a"}
	if diff := cmp.Diff(want, all[len(all)-1]); diff != "" || len(all) != 2 {
		t.Errorf("%d statuses, %s", len(all), diff)
	}
}

func TestCommitStatuses(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "Shop")
	r.app("ws", "app-a", r.github.URL+"/acme/Shop", "main")
	r.app("ws", "app-far", "https://git.example.com/acme/shop", "main")
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "Shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.settled()
	if _, err := r.apps.DeployApp(t.Context(), "app-far", "main", sha('2'), "", "", "push"); err != nil {
		t.Fatal(err)
	}
	told := func(state string) fakegithub.Status {
		t.Helper()
		var last fakegithub.Status
		testcluster.Await(t, state, func() bool {
			all := r.github.Statuses()
			if len(all) > 0 {
				last = all[len(all)-1]
			}
			return last.State == state
		})
		return last
	}
	want := fakegithub.Status{Repo: "acme/Shop", Commit: sha('2'), State: "pending", TargetURL: "https://app-a.apps.test/", Description: "Waits for its turn", Context: "berth/the app-a"}
	if diff := cmp.Diff(want, told("pending")); diff != "" {
		t.Error(diff)
	}
	r.become("app-a", record.DeploymentBuilding, record.DeploymentFailed)
	if s := told("failure"); s.Description != "Failed: the build command ended with code 1" {
		t.Errorf("%+v", s)
	}
	// The same commit again: the latest deployment counts.
	r.clock.add(time.Second)
	if _, err := r.apps.DeployApp(t.Context(), "app-a", "main", sha('2'), "", "", "api"); err != nil {
		t.Fatal(err)
	}
	told("pending")
	r.become("app-a", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	told("success")
	for _, s := range r.github.Statuses() {
		if s.Repo != "acme/Shop" {
			t.Errorf("%+v", s)
		}
	}
	// A wake is of a commit that has its status.
	n := len(r.github.Statuses())
	if _, err := r.apps.DeployApp(t.Context(), "app-a", "main", sha('2'), "", "", "wake"); err != nil {
		t.Fatal(err)
	}
	r.become("app-a", record.DeploymentBuilding, record.DeploymentFailed)
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "Shop", Before: sha('2'), After: sha('3'), At: r.clock.Now().Add(time.Minute)}))
	testcluster.Await(t, "the next", func() bool { all := r.github.Statuses(); return all[len(all)-1].Commit == sha('3') })
	if got := len(r.github.Statuses()); got != n+1 {
		t.Errorf("%d statuses, want %d", got, n+1)
	}
}

// A commit that is served again before GitHub was told how its own deployment has ended is
// not left waiting: of a wake and a rollback GitHub hears nothing.
func TestCommitThatIsServedAgain(t *testing.T) {
	tier.Slow(t)
	for _, trigger := range []string{"wake", "rollback"} {
		t.Run(trigger, func(t *testing.T) {
			r := newRig(t)
			i := r.connect(caller, "acme", "shop")
			r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
			r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
			last := func(state string) func() bool {
				return func() bool { all := r.github.Statuses(); return len(all) > 0 && all[len(all)-1].State == state }
			}
			testcluster.Await(t, "pending", last("pending"))
			r.github.Break(func(w http.ResponseWriter, q *http.Request) bool {
				if strings.Contains(q.URL.Path, "/statuses/") {
					w.WriteHeader(http.StatusBadGateway)
					return true
				}
				return false
			})
			r.become("app-a", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
			if _, err := r.apps.DeployApp(t.Context(), "app-a", "main", sha('2'), "", "", trigger); err != nil {
				t.Fatal(err)
			}
			r.github.Break(nil)
			testcluster.Await(t, "success", func() bool {
				r.clock.add(time.Minute)
				return last("success")()
			})
		})
	}
}

// The preview that somebody has deleted is forgotten once its comment says so, whether its
// pull request is ever closed or not; and one that comes back has the same comment.
func TestPreviewThatIsDeletedByHand(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	at := r.clock.Now()
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: at})
	r.comments("is being deployed")
	r.Update(func(tx *raftstore.Tx) error {
		for _, d := range raftstore.Find(tx, record.Deployments, "app", "app-a-pr5") {
			raftstore.Delete(tx, record.Deployments, d.ID)
		}
		raftstore.Delete(tx, record.Apps, "app-a-pr5")
		return nil
	})
	r.comments("was removed")
	testcluster.Await(t, "the end of its row", func() bool { return len(raftstore.All(r.view(), record.GitPreviews)) == 0 })
	r.pull(i, fakegithub.PullRequest{Action: "synchronize", Number: 5, Before: sha('2'), Commit: sha('3'), At: at.Add(time.Minute)})
	r.comments(sha('3')[:8])
}

// A pass over what may be told looks at few deployments, however many there are.
func TestFewDeploymentsMayBeDue(t *testing.T) {
	r := newRig(t, func(c *githost.Config) { c.App = nil })
	now := r.clock.Now()
	ended := map[string]time.Time{"retried": now.Add(-30 * time.Hour), "just-now": now, "lately": now.Add(time.Second - githost.ReportAge), "waits": {}}
	for i := range 50 {
		ended[fmt.Sprint("old-", i)] = now.Add(-time.Duration(3+i) * time.Hour)
	}
	r.Update(func(tx *raftstore.Tx) error {
		for id := range ended {
			raftstore.Put(tx, record.Deployments, &record.Deployment{Meta: record.Meta{ID: id}, AppID: "app-a", WorkspaceID: "ws", Status: record.DeploymentQueued})
		}
		return nil
	})
	r.Update(func(tx *raftstore.Tx) error {
		for id, at := range ended {
			if at.IsZero() {
				continue
			}
			d, _ := raftstore.Get(tx, record.Deployments, id)
			d = d.Clone()
			d.Status, d.FinishedAt = record.DeploymentFailed, at
			raftstore.Put(tx, record.Deployments, d)
		}
		raftstore.Put(tx, record.GitReports, &record.GitReport{Meta: record.Meta{ID: "retried"}, Tries: 1, NextAttemptAt: now})
		raftstore.Put(tx, record.GitReports, &record.GitReport{Meta: record.Meta{ID: "old-1"}, State: "failure"})
		return nil
	})
	var ids []string
	for _, d := range githost.MayBeDue(r.view(), now, false) {
		ids = append(ids, d.ID)
	}
	slices.Sort(ids)
	if got := strings.Join(ids, " "); got != "just-now lately retried waits" {
		t.Errorf("looked at %s", got)
	}
	if n := len(githost.MayBeDue(r.view(), now, true)); n != len(ended) {
		t.Errorf("the first pass looks at %d", n)
	}
}

// A GitHub that fails is asked again, on the schedule and no more often.
func TestReportsAreRetried(t *testing.T) {
	r := newRig(t, func(c *githost.Config) { c.Delays = []time.Duration{time.Minute, time.Hour} })
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.github.Break(func(w http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/statuses/") {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
		return false
	})
	asked := func(n int) {
		t.Helper()
		testcluster.Await(t, fmt.Sprint(n, " attempts"), func() bool { return len(r.github.Calls("POST /repos/acme/shop/statuses")) == n })
	}
	rows := func(done func(*record.GitReport) bool) {
		t.Helper()
		testcluster.Await(t, "a row", func() bool { all := raftstore.All(r.view(), record.GitReports); return len(all) == 1 && done(all[0]) })
	}
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	asked(1)
	rows(func(row *record.GitReport) bool { return row.Tries == 1 })
	r.clock.add(time.Minute)
	asked(2)
	rows(func(row *record.GitReport) bool { return row.Tries == 2 })
	r.clock.add(time.Hour)
	asked(3)
	rows(func(row *record.GitReport) bool { return row.GivenUp == "pending" })
	r.clock.add(100 * time.Hour)
	r.github.Break(nil)
	r.become("app-a", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	rows(func(row *record.GitReport) bool { return row.State == "success" })
	asked(4)
	if all := r.github.Statuses(); len(all) != 1 || all[0].State != "success" {
		t.Errorf("%+v", all)
	}
}

// An attempt whose answer is lost makes no second comment.
func TestLostAnswerMakesNoSecondComment(t *testing.T) {
	r := newRig(t, func(c *githost.Config) { c.Delays = []time.Duration{time.Minute} })
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	lose := make(chan struct{}, 1)
	lose <- struct{}{}
	r.github.AfterComment(func() bool {
		select {
		case <-lose:
			return true
		default:
			return false
		}
	})
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()})
	testcluster.Await(t, "a failed attempt", func() bool {
		all := raftstore.All(r.view(), record.GitPreviews)
		return len(all) == 1 && all[0].Tries == 1
	})
	r.clock.add(time.Minute)
	testcluster.Await(t, "its id", func() bool { return raftstore.All(r.view(), record.GitPreviews)[0].CommentID != 0 })
	if c := r.comments("is being deployed"); c.Edits != 1 {
		t.Errorf("%+v", c)
	}
}

// Every replica has the environments of all workspaces in memory.
func TestThePreviewEnvironmentsOfAWorkspaceAreBounded(t *testing.T) {
	r := newRig(t)
	put := func(c core.Caller, repo int, size int) error {
		_, err := r.hosts().PutPreviewVariable(t.Context(), c, strconv.Itoa(repo), "A", api.PutRepoVariable{Value: strings.Repeat("x", size)})
		return err
	}
	var err error
	n := 1
	for ; err == nil && n < 100; n++ {
		err = put(caller, n, 60<<10)
	}
	testplane.Want(t, err, apierror.ERateLimited, "preview environments too large")
	if err := put(caller, 1, 50<<10); err != nil {
		t.Errorf("a shorter value: %v", err)
	}
	if err := put(stranger, 1, 60<<10); err != nil {
		t.Errorf("of another workspace: %v", err)
	}
}

func TestPreviewEnv(t *testing.T) {
	r := newRig(t)
	g := r.hosts()
	put := func(key string, in api.PutRepoVariable) (api.RepoVariable, error) {
		return g.PutPreviewVariable(t.Context(), caller, "9000", key, in)
	}
	for key, in := range map[string]api.PutRepoVariable{"B": {Value: "b"}, "A": {Value: "first", Secret: new(true)}, "C": {Value: "c", Secret: new(true)}, "_c9": {Value: ""}} {
		if _, err := put(key, in); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := put("B", api.PutRepoVariable{Value: "b\n2"}); err != nil || v.Value != "b\n2" {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := put("A", api.PutRepoVariable{Value: "hidden"}); err != nil || v.Value != "********" || !v.Secret {
		t.Errorf("a secret with another value: %+v, %v", v, err)
	}
	if v, err := put("C", api.PutRepoVariable{Value: "shown", Secret: new(false)}); err != nil || v.Value != "shown" || v.Secret {
		t.Errorf("a secret that is none any more: %+v, %v", v, err)
	}
	list, err := g.PreviewEnv(t.Context(), caller, "9000")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range list {
		got = append(got, fmt.Sprint(v.Key, "=", v.Value, v.Secret))
	}
	if diff := cmp.Diff([]string{"A=********true", "B=b\n2false", "C=shownfalse", "_c9=false"}, got); diff != "" {
		t.Error(diff)
	}
	for _, row := range raftstore.All(r.view(), record.RepoEnvs) {
		for _, v := range row.Variables {
			if strings.Contains(string(v.ValueSealed), "hidden") {
				t.Error("a value is not sealed")
			}
		}
	}
	if list, err := g.PreviewEnv(t.Context(), stranger, "9000"); err != nil || len(list) != 0 {
		t.Errorf("another workspace: %+v, %v", list, err)
	}
	for name, c := range map[string]struct {
		repo, key, value string
		code             apierror.Code
	}{
		"no repository": {"acme", "A", "", apierror.ENotFound}, "a path": {"9/8", "A", "", apierror.ENotFound},
		"a digit first": {"9", "1A", "", apierror.EInvalid}, "a dash": {"9", "A-B", "", apierror.EInvalid}, "no key": {"9", "", "", apierror.EInvalid},
		"PORT": {"9", "PORT", "1", apierror.EInvalid}, "a NUL": {"9", "A", "a\x00", apierror.EInvalid}, "a long value": {"9", "A", strings.Repeat("x", 64<<10+1), apierror.EInvalid},
	} {
		_, err := g.PutPreviewVariable(t.Context(), caller, c.repo, c.key, api.PutRepoVariable{Value: c.value})
		t.Run(name, func(t *testing.T) { testplane.Want(t, err, c.code, "") })
	}
	big := strings.Repeat("x", 64<<10)
	var last error
	for n := range 6 {
		_, last = put(fmt.Sprint("BIG", n), api.PutRepoVariable{Value: big})
	}
	testplane.Want(t, last, apierror.EInvalid, "variables too large")

	testplane.Want(t, g.DeletePreviewVariable(t.Context(), stranger, "9000", "B"), apierror.ENotFound, "")
	if err := g.DeletePreviewVariable(t.Context(), caller, "9000", "B"); err != nil {
		t.Error(err)
	}
	testplane.Want(t, g.DeletePreviewVariable(t.Context(), caller, "9000", "B"), apierror.ENotFound, "")
}

// One app that cannot be deployed keeps no other from it.
func TestOneAppFails(t *testing.T) {
	r := newRig(t, func(c *githost.Config) { c.Delays = []time.Duration{time.Minute} })
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.apps.breaks(errors.Join(apierror.NotFound(), errors.New("deleted meanwhile")))
	if got := r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('2'), At: r.clock.Now()}); got != api.GitEventAccepted {
		t.Error(got)
	}
	r.settled()
	if r.apps.failures() != 1 {
		t.Error(r.apps.failures())
	}
}
