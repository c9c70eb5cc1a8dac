package githost_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
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

func TestPushDeploysWhatFollows(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	shop := r.github.URL + "/acme/shop"
	r.app("ws", "app-main", shop+".git", "main")
	r.app("ws", "app-default", strings.ToUpper(shop), "") // the same repository, as git hosts see it
	r.app("ws", "app-dev", shop, "dev")
	r.app("ws", "app-manual", shop, "main", func(a *record.App) { a.AutoDeploy = false })
	r.app("ws", "app-site", r.github.URL+"/acme/site", "main")
	r.app("other", "app-other", shop, "main") // of a workspace that has not connected it
	if got := r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now(), Message: "Add a basket\x1b[31m"})); got != api.GitEventAccepted {
		t.Fatal(got)
	}
	r.settled()
	got := r.apps.deployed()
	slices.SortFunc(got, func(a, b deployment) int { return strings.Compare(a.App, b.App) })
	want := []deployment{
		{"app-default", "main", sha('2'), "Add a basket[31m", "Ann", "push"},
		{"app-main", "main", sha('2'), "Add a basket[31m", "Ann", "push"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for what, p := range map[string]fakegithub.Push{
		"a tag":              {Repo: "shop", Ref: "refs/tags/v1", Before: fakegithub.Zeros, After: sha('3'), At: r.clock.Now()},
		"another branch":     {Repo: "shop", Ref: "refs/heads/x", Before: sha('1'), After: sha('3'), At: r.clock.Now()},
		"another repository": {Repo: "blog", Before: sha('1'), After: sha('3'), At: r.clock.Now()},
	} {
		if got := r.receive("push", r.github.PushPayload(i, p)); got != api.GitEventIgnored {
			t.Errorf("%s is %s", what, got)
		}
	}
	unknown := &fakegithub.Installation{ID: 99, Account: "acme"}
	if got := r.receive("push", r.github.PushPayload(unknown, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('3'), At: r.clock.Now()})); got != api.GitEventIgnored {
		t.Errorf("a push through an installation that nobody has connected is %s", got)
	}
	for _, event := range []string{"ping", "star", ""} {
		if got := r.receive(event, r.github.PingPayload()); got != api.GitEventIgnored {
			t.Errorf("%s is %s", event, got)
		}
	}
	// A branch that is deleted deploys nothing.
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Ref: "refs/heads/dev", Before: sha('1'), After: fakegithub.Zeros, At: r.clock.Now()}))
	r.settled()
	if got := r.apps.deployed(); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

// The apps of a repository follow its name, once for each event.
func TestARepositoryIsRenamed(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop", "store")
	shop, store := r.github.URL+"/acme/shop", r.github.URL+"/acme/store"
	r.app("ws", "app-a", shop, "main")
	r.app("ws", "app-blog", r.github.URL+"/acme/blog", "main")
	r.app("other", "app-other", shop, "main") // of a workspace that has not connected it
	push := func(repo string, before, after byte) api.GitEventStatus {
		r.clock.add(time.Minute)
		got := r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: repo, Before: sha(before), After: sha(after), At: r.clock.Now()}))
		r.settled()
		return got
	}
	push("shop", '1', '2')
	r.Update(func(tx *raftstore.Tx) error { // as package app writes it
		d := raftstore.Find(tx, record.Deployments, "app", "app-a")[0].Clone()
		d.GitURL = shop
		raftstore.Put(tx, record.Deployments, d)
		return nil
	})
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('5'), At: r.clock.Now()})
	renamed := r.github.RepositoryPayload(i, "store", "renamed", "Shop")
	for _, want := range []api.GitEventStatus{api.GitEventAccepted, api.GitEventDuplicate} {
		if got := r.receive("repository", renamed); got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
	if got := push("store", '2', '3'); got != api.GitEventAccepted {
		t.Errorf("a push by the new name is %s", got)
	}
	urls := map[string]string{}
	for _, a := range raftstore.All(r.view(), record.Apps) {
		urls[a.ID] = record.NormalGitURL(a.GitURL)
	}
	if diff := cmp.Diff(map[string]string{"app-a": store, "app-a-pr5": store, "app-blog": r.github.URL + "/acme/blog", "app-other": shop}, urls); diff != "" {
		t.Error(diff)
	}
	for _, d := range raftstore.Find(r.view(), record.Deployments, "app", "app-a") {
		if d.GitCommit == sha('2') && record.NormalGitURL(d.GitURL) != store {
			t.Errorf("what was deployed before is built from %s", d.GitURL)
		}
	}
	r.clock.add(time.Minute)
	r.receive("pull_request", r.github.PullRequestPayload(i, fakegithub.PullRequest{Action: "closed", Repo: "store", Number: 5, Branch: "feature", Commit: sha('5'), At: r.clock.Now()}))
	r.settled()
	if _, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5"); there {
		t.Error("the preview of a pull request that was closed is there")
	}
	for name, body := range map[string][]byte{
		"of another account":  r.github.RepositoryPayload(&fakegithub.Installation{ID: 99, Account: "acme"}, "shop", "renamed", "store"),
		"that nobody follows": r.github.RepositoryPayload(i, "x", "renamed", "y"),
	} {
		if got := r.receive("repository", body); got != api.GitEventIgnored {
			t.Errorf("one %s is %s", name, got)
		}
	}
}

// Apps and what they may be built from again follow a name however much there is of them.
func TestALargeRepositoryIsRenamed(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop", "store")
	shop, store := r.github.URL+"/acme/shop", r.github.URL+"/acme/store"
	const apps, deployments = 3, 120
	for n := range apps {
		id := fmt.Sprint("app-", n)
		r.app("ws", id, shop, "main", func(a *record.App) {
			a.Env = []record.AppVariable{{Key: "LARGE", ValueSealed: make([]byte, 200<<10)}}
		})
		for k := range deployments {
			r.Update(func(tx *raftstore.Tx) error {
				raftstore.Put(tx, record.Deployments, &record.Deployment{
					Meta: record.Meta{ID: fmt.Sprintf("dep-%d-%d", n, k)}, WorkspaceID: "ws", AppID: id, Status: record.DeploymentQueued, GitURL: shop,
					GitMessage: strings.Repeat("x", 1000), StartCommand: strings.Repeat("x", 4000),
				})
				return nil
			})
		}
	}
	renamed := r.github.RepositoryPayload(i, "store", "renamed", "shop")
	for _, want := range []api.GitEventStatus{api.GitEventAccepted, api.GitEventDuplicate} {
		if got := r.receive("repository", renamed); got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
	for _, a := range raftstore.All(r.view(), record.Apps) {
		if record.NormalGitURL(a.GitURL) != store {
			t.Errorf("%s is of %s", a.ID, a.GitURL)
		}
	}
	for _, d := range raftstore.All(r.view(), record.Deployments) {
		if record.NormalGitURL(d.GitURL) != store {
			t.Fatalf("%s is of %s", d.ID, d.GitURL)
		}
	}
}

// Events that wait for their workspace follow a name, too, however many there are; one by
// the new name takes their place.
func TestEventsThatWaitFollowARename(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop", "store")
	shop := r.github.URL + "/acme/shop"
	const branches = 40
	for n := range branches {
		r.app("ws", fmt.Sprint("app-", n), shop, fmt.Sprint("b", n))
	}
	push := func(repo string, n int, before, after byte) {
		t.Helper()
		body := r.github.PushPayload(i, fakegithub.Push{Repo: repo, Ref: fmt.Sprint("refs/heads/b", n), Before: sha(before), After: sha(after), At: r.clock.Now()})
		if got := r.receive("push", body); got != api.GitEventAccepted {
			t.Errorf("a push is %s", got)
		}
	}
	r.apps.breaks(core.ErrSuspended)
	for n := range branches {
		push("shop", n, '1', '2')
	}
	testcluster.Await(t, "all pushes to be held", func() bool {
		return !slices.ContainsFunc(raftstore.All(r.view(), record.GitHeads), func(h *record.GitHead) bool { return h.AcceptedIndex == 0 })
	})
	if got := r.receive("repository", r.github.RepositoryPayload(i, "store", "renamed", "shop")); got != api.GitEventAccepted {
		t.Errorf("it is %s", got)
	}
	r.clock.add(time.Second)
	push("store", 0, '2', '3')
	r.apps.breaks(nil)
	r.tried()
	r.clock.add(time.Hour)
	r.settled()
	want := map[string]string{"app-0": sha('3')}
	for n := 1; n < branches; n++ {
		want[fmt.Sprint("app-", n)] = sha('2')
	}
	got := map[string]string{}
	for _, d := range r.apps.deployed() {
		got[d.App] += d.Commit
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A webhook of a repository comes through no installation: of a private one, only
// workspaces that have a part in it learn.
func TestPushWithoutAnInstallation(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	shop := r.github.URL + "/acme/shop"
	r.app("ws", "app-a", shop, "main")
	r.app("other", "app-b", shop, "main")
	push := func(c byte, public bool) {
		r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha(c), At: r.clock.Now().Add(time.Duration(c) * time.Second), NoInstallation: true, Public: public, Message: "secret plans"}))
		r.settled()
	}
	push('2', false)
	if got := r.apps.deployed(); len(got) != 1 || got[0].App != "app-a" || got[0].Message != "" {
		t.Errorf("private: %+v", got)
	}
	push('3', true)
	if got := r.apps.deployed(); len(got) != 3 {
		t.Errorf("public: %+v", got)
	}
}

func TestSignatures(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	body := r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()})
	good := fakegithub.Sign(fakegithub.WebhookSecret, body)
	for name, signature := range map[string][]string{
		"none": nil, "empty": {""}, "wrong": {fakegithub.Sign("another secret", body)}, "of another body": {fakegithub.Sign(fakegithub.WebhookSecret, body[1:])},
		"cut": {good[:len(good)-2]}, "longer": {good + "00"}, "no hex": {"sha256=" + strings.Repeat("x", 64)}, "without its name": {strings.TrimPrefix(good, "sha256=")},
		"SHA-1": {"sha1=" + strings.TrimPrefix(good, "sha256=")}, "two": {good, good}, "only its name": {"sha256="},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakegithub.Header("push", "d", body)
			h["X-Hub-Signature-256"] = signature
			_, err := r.hosts().Receive(t.Context(), githost.GitHub, h, body)
			testplane.Want(t, err, apierror.EUnauthorized, "unauthorized")
		})
	}
	// What no body can make good is known without one.
	for name, c := range map[string]struct {
		provider string
		header   http.Header
		bears    bool
	}{
		"none":              {githost.GitHub, http.Header{}, false},
		"another's":         {githost.GitHub, http.Header{"X-Gitea-Signature": {strings.Repeat("0", 64)}}, false},
		"too short":         {githost.GitHub, http.Header{"X-Hub-Signature-256": {"sha256=00"}}, false},
		"one that could be": {githost.GitHub, http.Header{"X-Hub-Signature-256": {"sha256=" + strings.Repeat("0", 64)}}, true},
		"gitea, none":       {githost.Gitea, http.Header{}, false},
		"gitlab, wrong":     {githost.GitLab, http.Header{"X-Gitlab-Token": {"another"}}, false},
	} {
		err := r.hosts().CheckHook(c.provider, c.header)
		if c.bears && err != nil || !c.bears && apierror.CodeOf(err) != apierror.EUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Another git host's credential is none.
	_, err := r.hosts().Receive(t.Context(), githost.GitHub, http.Header{"X-Gitlab-Token": {"a secret of gitlab"}}, body)
	testplane.Want(t, err, apierror.EUnauthorized, "")
	if len(r.apps.deployed()) != 0 {
		t.Error("something was deployed")
	}
	// The form in which a webhook of a repository may be sent.
	form := []byte(url.Values{"payload": {string(body)}}.Encode())
	h := fakegithub.Header("push", "d", form)
	h.Set("Content-Type", "application/x-www-form-urlencoded")
	if out, err := r.hosts().Receive(t.Context(), githost.GitHub, h, form); err != nil || out.Status != api.GitEventAccepted {
		t.Errorf("%+v, %v", out, err)
	}
}

// Whoever has recorded a delivery can send it again with another id, at any time.
func TestReplays(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	first := r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()})
	second := r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('2'), After: sha('3'), At: r.clock.Now().Add(time.Minute)})
	send := func(delivery string, body []byte) api.GitEventStatus {
		t.Helper()
		out, err := r.hosts().Receive(t.Context(), githost.GitHub, fakegithub.Header("push", delivery, body), body)
		if err != nil {
			t.Fatal(err)
		}
		return out.Status
	}
	for _, c := range []struct {
		what, delivery string
		body           []byte
		want           api.GitEventStatus
	}{
		{"first", "a", first, api.GitEventAccepted},
		{"again", "a", first, api.GitEventDuplicate},
		{"with another id", "b", first, api.GitEventDuplicate},
		{"with the id of another", "a", second, api.GitEventDuplicate},
		{"next", "c", second, api.GitEventAccepted},
	} {
		if got := send(c.delivery, c.body); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		r.settled()
	}
	// When it is no longer remembered, it is old.
	r.clock.add(25 * time.Hour)
	r.Update(func(tx *raftstore.Tx) error {
		for _, receipt := range raftstore.All(tx, record.GitReceipts) {
			raftstore.Delete(tx, record.GitReceipts, receipt.ID)
		}
		return nil
	})
	for _, body := range [][]byte{first, second} {
		if got := send("z", body); got != api.GitEventStale {
			t.Errorf("after a day: %s", got)
		}
	}
	r.settled()
	if got := r.apps.deployed(); len(got) != 2 || got[1].Commit != sha('3') {
		t.Errorf("%+v", got)
	}
}

func TestPushesOutOfOrder(t *testing.T) {
	tier.Slow(t)
	type push struct {
		before, after byte
		at            int // seconds; -1: the git host does not say
	}
	for name, c := range map[string]struct {
		provider string
		pushes   []push
		statuses []api.GitEventStatus
		last     byte
	}{
		"the second first":          {githost.GitHub, []push{{'2', '3', 20}, {'1', '2', 10}}, []api.GitEventStatus{"accepted", "stale"}, '3'},
		"a way back":                {githost.GitHub, []push{{'1', '2', 10}, {'2', '1', 20}}, []api.GitEventStatus{"accepted", "accepted"}, '1'},
		"a way back, first":         {githost.GitHub, []push{{'1', '2', 10}, {'3', '2', 30}, {'2', '3', 20}}, []api.GitEventStatus{"accepted", "accepted", "stale"}, '2'},
		"in one second":             {githost.GitHub, []push{{'2', '3', 10}, {'1', '2', 10}, {'3', '4', 10}}, []api.GitEventStatus{"accepted", "stale", "accepted"}, '4'},
		"without times":             {githost.GitLab, []push{{'2', '3', -1}, {'1', '2', -1}, {'3', '4', -1}}, []api.GitEventStatus{"accepted", "stale", "accepted"}, '4'},
		"an older commit, pushed":   {githost.GitLab, []push{{'1', '2', 20}, {'2', '3', 10}}, []api.GitEventStatus{"accepted", "accepted"}, '3'},
		"an older commit, too late": {githost.GitLab, []push{{'3', '4', 30}, {'1', '2', 10}}, []api.GitEventStatus{"accepted", "stale"}, '4'},
		"the second first, Gitea":   {githost.Gitea, []push{{'2', '3', 20}, {'1', '2', 10}}, []api.GitEventStatus{"accepted", "stale"}, '3'},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			i := r.connect(caller, "acme", "shop")
			at := r.github.URL
			if c.provider != githost.GitHub {
				at = "https://git.example.com"
			}
			r.app("ws", "app-a", at+"/acme/shop", "main")
			for at, p := range c.pushes {
				var when time.Time
				if p.at >= 0 {
					when = r.clock.Now().Add(time.Duration(p.at) * time.Second)
				}
				body, header := r.push(c.provider, i, at, fakegithub.Push{Repo: "shop", Before: sha(p.before), After: sha(p.after), At: when})
				out, err := r.hosts().Receive(t.Context(), c.provider, header, body)
				if err != nil || out.Status != c.statuses[at] {
					t.Errorf("push %d: %s, %v, want %s", at, out.Status, err, c.statuses[at])
				}
				r.settled()
			}
			if got := r.apps.deployed(); len(got) == 0 || got[len(got)-1].Commit != sha(c.last) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// push makes a delivery of a push, in the form of a git host.
func (r *rig) push(provider string, i *fakegithub.Installation, n int, p fakegithub.Push) ([]byte, http.Header) {
	switch provider {
	case githost.GitLab:
		return gitlabPush("https://git.example.com/acme/shop.git", n, p)
	case githost.Gitea:
		return giteaPush("https://git.example.com/acme/shop.git", n, p)
	}
	body := r.github.PushPayload(i, p)
	return body, fakegithub.Header("push", fmt.Sprint("d", n), body)
}

// What fails is tried again, for a bounded number of times; what no try cures is not; and
// a newer push takes the place of one that fails.
func TestFailuresOfApps(t *testing.T) {
	r := newRig(t, func(c *githost.Config) { c.Delays = []time.Duration{time.Minute, time.Hour} })
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	n := 0
	push := func(c byte) {
		n++
		r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha(c), At: r.clock.Now().Add(time.Duration(n) * time.Second)}))
	}
	fails := func(n int) {
		t.Helper()
		testcluster.Await(t, fmt.Sprint(n, " failures"), func() bool { return r.apps.failures() == n })
		r.tried()
	}
	r.apps.breaks(apierror.Unavailable("", errors.New("no leader")))
	push('2')
	fails(1)
	r.clock.add(time.Minute)
	fails(2)
	r.clock.add(time.Hour)
	fails(3)
	r.settled()

	push('3')
	fails(4)
	r.apps.breaks(nil)
	push('4')
	r.settled()
	r.clock.add(2 * time.Hour)
	if got := r.apps.deployed(); len(got) != 1 || got[0].Commit != sha('4') {
		t.Errorf("%+v", got)
	}

	r.apps.breaks(&apierror.Error{Code: apierror.EConflict, Message: "the source of this app is uploaded"})
	push('5')
	fails(5)
	r.settled()
}

// Of what is pushed while a workspace is suspended, or has spent its credit, the newest
// commit is deployed when it may deploy again, however long that takes.
func TestPushesWaitForTheirWorkspace(t *testing.T) {
	for name, why := range map[string]error{
		"suspended": core.ErrSuspended, "without credit": &apierror.Error{Code: apierror.EQuota, Message: "free quota exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *githost.Config) { c.Delays = []time.Duration{time.Minute} })
			i := r.connect(caller, "acme", "shop")
			r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
			r.app("ws", "app-b", r.github.URL+"/acme/shop", "main")
			failures := 0
			fail := func() { // once each app
				t.Helper()
				failures += 2
				testcluster.Await(t, fmt.Sprint(failures, " failures"), func() bool { return r.apps.failures() == failures })
				r.tried()
			}
			r.apps.breaks(why)
			r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
			fail()
			for range 5 {
				r.clock.add(time.Hour)
				fail()
			}
			r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('2'), After: sha('3'), At: r.clock.Now()}))
			fail()
			r.apps.breaks(nil)
			r.clock.add(time.Hour)
			r.settled()
			if got := r.apps.deployed(); len(got) != 2 || got[0].Commit != sha('3') || got[1].Commit != sha('3') || got[0].App == got[1].App {
				t.Errorf("deployed %+v, want the newest commit in each app", got)
			}
		})
	}
}

// A leader that dies between the receipt and the deployment leaves it to the next, which
// does it once.
func TestLeaderDies(t *testing.T) {
	tier.Slow(t)
	r := newRigOf(t, 3)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.apps.breaks(apierror.Unavailable("", errors.New("no leader")))
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	testcluster.Await(t, "a failure", func() bool { return r.apps.failures() > 0 })
	dead := r.Leader()
	r.Cut(dead)
	testcluster.Await(t, "the next leader", func() bool { return r.Leader() != dead })
	r.apps.breaks(nil)
	r.tried()
	r.clock.add(time.Hour)
	r.settled()
	if got := r.apps.deployed(); len(got) != 1 || got[0].Commit != sha('2') {
		t.Errorf("%+v", got)
	}
	// What was deployed before its end was written down is not deployed again.
	r.Update(func(tx *raftstore.Tx) error {
		for _, h := range raftstore.All(tx, record.GitHeads) {
			h = h.Clone()
			h.Pending = true
			raftstore.Put(tx, record.GitHeads, h)
		}
		return nil
	})
	r.settled()
	if got := r.apps.deployed(); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	r.Heal(dead)
}

// Whether an event was acted on does not depend on the clocks of those who lead.
func TestADeploymentByALeaderWhoseClockIsBehind(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	again := func() int {
		r.Update(func(tx *raftstore.Tx) error {
			for _, h := range raftstore.All(tx, record.GitHeads) {
				h = h.Clone()
				h.Pending = true
				h.AcceptedAt = h.AcceptedAt.Add(time.Hour) // ahead of all that comes
				raftstore.Put(tx, record.GitHeads, h)
			}
			return nil
		})
		r.settled()
		return len(r.apps.deployed())
	}
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.settled()
	if n := again(); n != 1 {
		t.Errorf("it is deployed %d times", n)
	}
}

// A push of thousands of commits is as good as any.
func TestLargePayload(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	body := r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()})
	padding := `{"commits_of_others":["` + strings.Repeat(strings.Repeat("x", 99)+" ", 110<<10) + `"],`
	body = append([]byte(padding), body[1:]...)
	if len(body) < 10<<20 {
		t.Fatal(len(body))
	}
	if got := r.receive("push", body); got != api.GitEventAccepted {
		t.Error(got)
	}
}

func TestPayloadsThatAreNone(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	push := func(change ...string) []byte {
		body := string(r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
		out := strings.NewReplacer(change...).Replace(body)
		if out == body {
			t.Fatalf("%q changes nothing", change)
		}
		return []byte(out)
	}
	for name, body := range map[string][]byte{
		"nothing": {}, "no JSON": []byte("{"), "a list": []byte("[]"), "an empty object": []byte("{}"),
		"a branch with options":     push(`refs/heads/main`, `refs/heads/--upload-pack=x`),
		"a branch with a newline":   push(`refs/heads/main`, `refs/heads/a\nb`),
		"a branch that leads up":    push(`refs/heads/main`, `refs/heads/a/../b`),
		"a commit that is a branch": push(sha('2'), "main"),
		"a short commit":            push(sha('2'), sha('2')[:39]),
		"a name with a path":        push(`"full_name":"acme/shop"`, `"full_name":"acme/../../app"`),
		"a name of dots":            push(`"full_name":"acme/shop"`, `"full_name":"acme/.."`),
		"another transport":         push(`"clone_url":"http`, `"clone_url":"file`),
		"a negative id":             push(`"id":9000`, `"id":-1`),
		"a text for a number":       push(`"id":9000`, `"id":"9000"`),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.hosts().Receive(t.Context(), githost.GitHub, fakegithub.Header("push", name, body), body)
			testplane.Want(t, err, apierror.EInvalid, "invalid payload")
		})
	}
	if len(raftstore.All(r.view(), record.GitHeads)) != 0 {
		t.Error("something is remembered")
	}
}

// What nobody needs any longer is forgotten.
func TestPrune(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.settled()
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Delete(tx, record.Apps, "app-a")
		for _, d := range raftstore.All(tx, record.Deployments) {
			raftstore.Delete(tx, record.Deployments, d.ID)
		}
		return nil
	})
	r.clock.add(25 * time.Hour)
	testcluster.Await(t, "nothing", func() bool {
		r.hosts().Prune(t.Context(), r.term()) // one pass ends what the next removes
		view := r.view()
		return len(raftstore.All(view, record.GitHeads)) == 0 && len(raftstore.All(view, record.GitReports)) == 0
	})
}

func TestSuspendedInstallationDeploysNothing(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.receive("installation", r.github.InstallationPayload(i, "suspend", r.clock.Now().Add(time.Second)))
	list, _, err := r.hosts().Installations(t.Context(), caller, core.ListOptions{})
	if err != nil || len(list) != 1 || !list[0].Suspended {
		t.Errorf("%+v, %v", list, err)
	}
	if got := r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()})); got != api.GitEventIgnored {
		t.Error(got)
	}
	if got := r.receive("installation", r.github.InstallationPayload(&fakegithub.Installation{ID: 98}, "deleted", r.clock.Now())); got != api.GitEventIgnored {
		t.Error(got)
	}
	r.receive("installation", r.github.InstallationPayload(i, "deleted", r.clock.Now()))
	if list, _, err := r.hosts().Installations(t.Context(), caller, core.ListOptions{}); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

// Times that no record can have are refused, as all that cannot be: they are no error of ours.
func TestTimesThatCannotBe(t *testing.T) {
	r := newRig(t)
	r.app("ws", "app-1", r.github.URL+"/acme/shop.git", "main")
	i := r.connect(caller, "acme", "shop")
	const commit = "1111111111111111111111111111111111111111"
	repo := fmt.Sprintf(`"installation":{"id":%d},"repository":{"id":9,"full_name":"acme/shop","clone_url":"%s/acme/shop.git","pushed_at":`, i.ID, r.github.URL)
	for event, body := range map[string]string{
		"push":         `{"ref":"refs/heads/main","after":"` + commit + `",` + repo + `%s}}`,
		"pull_request": `{"action":"opened","number":1,"pull_request":{"updated_at":"9999-12-31T23:59:59-23:00","head":{"ref":"x","sha":"` + commit + `","repo":{"id":9}}},` + repo + `%s}}`,
		"installation": fmt.Sprintf(`{"action":"suspend","installation":{"id":%d,"updated_at":`, i.ID) + `%s}}`,
	} {
		for _, at := range []string{"99999999999999", "-9223372036854775808", `"9999-12-31T23:59:59-23:00"`} {
			raw := []byte(fmt.Sprintf(body, at))
			_, err := r.hosts().Receive(t.Context(), githost.GitHub, fakegithub.Header(event, event+at, raw), raw)
			if e := apierror.As(err); err == nil || e.Code != apierror.EInvalid || e.Message != "invalid payload" {
				t.Errorf("%s at %s: %v", event, at, err)
			}
		}
	}
}
