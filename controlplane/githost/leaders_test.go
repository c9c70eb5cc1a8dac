package githost_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/githost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// A leader is lost at each step of a connection, a push, a pull request's life and the end of
// the connection: before and after each write of an app, before each call to GitHub, and
// before its answer. The next one goes on, and nothing is done twice. Who had no answer asks
// again.
func TestALeaderIsLostAtEachStep(t *testing.T) {
	tier.Slow(t)
	steps := lifeWithout(t, 0, false)
	if steps < 30 {
		t.Fatalf("only %d steps", steps)
	}
	for n := int64(1); n <= steps; n++ {
		for _, unheard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%t", n, unheard), func(t *testing.T) {
				t.Parallel()
				lifeWithout(t, n, unheard)
			})
		}
	}
}

// lifeWithout loses the leader at the step lost, and returns how many steps there were.
// If it is unheard, the call to GitHub of that step has no effect.
func lifeWithout(t *testing.T, lost int64, unheard bool) int64 {
	t.Helper()
	r := newRigOf(t, 3, func(c *githost.Config) { c.Delays = slices.Repeat([]time.Duration{time.Second}, 10) })
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	back := r.state(caller)
	i := r.github.Install(fakegithub.Installation{Account: "acme", Org: true, Repos: []string{"shop"}})
	id := fmt.Sprint(i.ID)
	var steps atomic.Int64
	step := func() bool {
		if steps.Add(1) != lost {
			return false
		}
		r.cutLeader()
		return true
	}
	r.apps.step = func() { step() }
	r.github.Break(func(http.ResponseWriter, *http.Request) bool {
		if step() && unheard {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	await := func(what string, holds func() bool) {
		t.Helper()
		testcluster.Await(t, what, func() bool {
			r.clock.add(50 * time.Millisecond) // what has failed is tried again
			return holds()
		})
	}
	at := r.clock.Now()
	send := func(event, delivery string, body []byte) { // again, if it was not answered
		t.Helper()
		await("an answer to "+delivery, func() bool {
			out, err := r.hosts().Receive(t.Context(), githost.GitHub, fakegithub.Header(event, delivery, body), body)
			return err == nil && (out.Status == api.GitEventAccepted || out.Status == api.GitEventDuplicate)
		})
	}
	pull := func(action string, before, commit byte, minute int) {
		t.Helper()
		p := fakegithub.PullRequest{Repo: "shop", Title: "A basket", Branch: "basket", Action: action, Number: 5, Commit: sha(commit), At: at.Add(time.Duration(minute) * time.Minute)}
		if before != 0 {
			p.Before = sha(before)
		}
		send("pull_request", action, r.github.PullRequestPayload(i, p))
	}
	// told waits until GitHub has been told of the deployment of a commit.
	told := func(commit byte, status, states string) {
		t.Helper()
		await("commit "+string(commit)+", "+status, func() bool {
			all := slices.DeleteFunc(r.github.Statuses(), func(s fakegithub.Status) bool { return s.Commit != sha(commit) })
			return len(all) > 0 && all[len(all)-1].State == status
		})
		await("deployment of "+string(commit)+", "+states, func() bool {
			return slices.ContainsFunc(r.github.Deployments(), func(d fakegithub.Deployment) bool {
				return d.Ref == sha(commit) && strings.Join(slices.Compact(d.States), " ") == states
			})
		})
	}
	comment := func(has string) {
		t.Helper()
		await("a comment with "+has, func() bool {
			return slices.ContainsFunc(r.github.Comments(), func(c fakegithub.Comment) bool { return strings.Contains(c.Body, has) })
		})
	}
	goesLive := func(app string, commit byte) {
		t.Helper()
		told(commit, "pending", "in_progress")
		r.become(app, record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
		told(commit, "success", "in_progress success")
	}

	await("the connection", func() bool {
		got, err := r.hosts().Callback(t.Context(), githost.Callback{InstallationID: id, State: back, SetupAction: "install"})
		return err == nil && got.ID == id
	})
	send("push", "push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('0'), After: sha('1'), At: at}))
	goesLive("app-a", '1')
	pull("opened", 0, '2', 0)
	comment("is being deployed")
	goesLive("app-a-pr5", '2')
	comment("is live")
	pull("synchronize", '2', '3', 1)
	goesLive("app-a-pr5", '3')
	comment("Commit " + sha('3')[:8])
	pull("closed", 0, '3', 2)
	comment("was removed")
	await("the end of the preview", func() bool {
		_, there := raftstore.Get(r.view(), record.Apps, "app-a-pr5")
		return !there && len(raftstore.All(r.view(), record.GitPreviews)) == 0 && len(raftstore.Find(r.view(), record.GitHeads, "pending", "yes")) == 0
	})

	await("the end of the connection", func() bool {
		err := r.hosts().DeleteInstallation(t.Context(), caller, id)
		return err == nil || apierror.CodeOf(err) == apierror.ENotFound
	})
	if left := raftstore.All(r.view(), record.GitInstallations); len(left) > 0 {
		t.Errorf("%+v", left[0])
	}

	if steps.Load() < lost {
		t.Skipf("there were only %d steps", steps.Load())
	}
	done := map[string]int{}
	for _, d := range raftstore.All(r.view(), record.Deployments) {
		done["deployment of "+d.AppID+" "+d.GitCommit[:1]]++
	}
	for _, d := range r.github.Deployments() {
		done["at GitHub "+d.Ref[:1]]++
	}
	for _, c := range r.github.Comments() {
		done["comment on "+fmt.Sprint(c.Number)]++
	}
	want := map[string]int{
		"deployment of app-a 1": 1, "deployment of app-a-pr5 2": 1, "deployment of app-a-pr5 3": 1, "at GitHub 1": 1, "at GitHub 2": 1, "at GitHub 3": 1, "comment on 5": 1,
	}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Error(diff)
	}
	return steps.Load()
}

// cutLeader takes the replica that leads off the network.
func (r *rig) cutLeader() {
	for _, rep := range r.Replicas {
		if rep.Store.IsLeader() {
			r.Cut(rep)
		}
	}
}
