package githost_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-cloud/berth/controlplane/fakegithub"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// deployments waits until GitHub has deployments with these states.
func (r *rig) deployments(states ...string) []fakegithub.Deployment {
	r.t.Helper()
	var last []fakegithub.Deployment
	testcluster.Await(r.t, "deployments that are "+strings.Join(states, "; "), func() bool {
		var got []string
		last = r.github.Deployments()
		for _, d := range last {
			got = append(got, strings.Join(d.States, " "))
		}
		return cmp.Equal(states, got)
	})
	return last
}

func TestDeploymentsAtGitHub(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.deployments("in_progress")
	r.become("app-a", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	r.deployments("in_progress success")
	r.pull(i, fakegithub.PullRequest{Action: "opened", Number: 5, Commit: sha('3'), At: r.clock.Now()})
	r.deployments("in_progress success", "in_progress")
	r.become("app-a-pr5", record.DeploymentBuilding, record.DeploymentFailed)
	got := r.deployments("in_progress success", "in_progress failure")
	want := []fakegithub.Deployment{
		{Repo: "acme/shop", Ref: sha('2'), Environment: "the app-a", Production: true, URL: "https://app-a.apps.test/"},
		{Repo: "acme/shop", Ref: sha('3'), Environment: "the app-a preview", Transient: true, URL: "https://app-a-pr5.apps.test/"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(fakegithub.Deployment{}, "ID", "Payload", "States")); diff != "" {
		t.Error(diff)
	}
	// What served and is deleted serves no more.
	r.Update(func(tx *raftstore.Tx) error {
		for _, d := range raftstore.All(tx, record.Deployments) {
			raftstore.Delete(tx, record.Deployments, d.ID)
		}
		return nil
	})
	term := r.term()
	testcluster.Await(t, "the end of the reports", func() bool {
		r.hosts().Prune(t.Context(), term)
		return len(raftstore.All(r.view(), record.GitReports)) == 0
	})
	r.deployments("in_progress success inactive", "in_progress failure")
}

// What ended while none led for longer than it is looked for is told of by the next leader,
// also where it is more than is told at once.
func TestWhatEndedLongAgoIsTold(t *testing.T) {
	r := newRigOf(t, 3)
	i := r.connect(caller, "acme", "shop")
	const apps = 9
	for n := range apps {
		r.app("ws", fmt.Sprint("app-", n), r.github.URL+"/acme/shop", "main")
	}
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.deployments(slices.Repeat([]string{"in_progress"}, apps)...)
	told := func(state string) func() bool {
		return func() bool {
			all := raftstore.All(r.view(), record.GitReports)
			return len(all) == apps && !slices.ContainsFunc(all, func(g *record.GitReport) bool { return g.State != state })
		}
	}
	testcluster.Await(t, "reports that they are under way", told("pending"))
	r.Update(func(tx *raftstore.Tx) error {
		for _, d := range raftstore.All(tx, record.Deployments) {
			d = d.Clone()
			d.Status, d.FinishedAt = record.DeploymentFailed, r.clock.Now().Add(-3*time.Hour)
			raftstore.Put(tx, record.Deployments, d)
		}
		return nil
	})
	r.cutLeader()
	testcluster.Await(t, "reports that they have failed", told("failure"))
}

// The permission for deployments was added later: an app that has not been given it sets
// statuses as before.
func TestNoPermissionForDeployments(t *testing.T) {
	r := newRig(t)
	r.github.Withhold("deployments")
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.settled()
	r.become("app-a", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	testcluster.Await(t, "the report", func() bool {
		all := raftstore.All(r.view(), record.GitReports)
		return len(all) == 1 && all[0].State == "success" && all[0].GivenUp == ""
	})
	if n := len(r.github.Deployments()); n != 0 {
		t.Errorf("%d deployments", n)
	}
}

func TestLostAnswerMakesNoSecondDeployment(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	lost := false
	r.github.AfterDeployment(func() bool { first := !lost; lost = true; return first })
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	testcluster.Await(t, "a failed attempt", func() bool {
		all := raftstore.All(r.view(), record.GitReports)
		return len(all) == 1 && all[0].Tries == 1
	})
	r.clock.add(time.Minute)
	r.deployments("in_progress")
}

// A deployment of a commit that was deployed again before it had ended: the status of the
// commit is that of the later one, also when the former is forgotten.
func TestAForgottenDeploymentDoesNotFailItsCommit(t *testing.T) {
	r := newRig(t)
	i := r.connect(caller, "acme", "shop")
	r.app("ws", "app-a", r.github.URL+"/acme/shop", "main")
	r.receive("push", r.github.PushPayload(i, fakegithub.Push{Repo: "shop", Before: sha('1'), After: sha('2'), At: r.clock.Now()}))
	r.settled()
	last := func(state string) func() bool {
		return func() bool { all := r.github.Statuses(); return len(all) > 0 && all[len(all)-1].State == state }
	}
	r.deployments("in_progress")
	first := raftstore.All(r.view(), record.Deployments)[0]
	if _, err := r.apps.DeployApp(t.Context(), "app-a", "main", sha('2'), "", "", "api"); err != nil {
		t.Fatal(err)
	}
	r.deployments("in_progress", "in_progress")
	r.Update(func(tx *raftstore.Tx) error {
		d, _ := raftstore.Get(tx, record.Deployments, first.ID)
		d = d.Clone()
		d.Status, d.FinishedAt = record.DeploymentFailed, r.clock.Now()
		raftstore.Put(tx, record.Deployments, d)
		return nil
	})
	r.become("app-a", record.DeploymentBuilding, record.DeploymentDeploying, record.DeploymentLive)
	testcluster.Await(t, "success", last("success"))
	r.deployments("in_progress failure", "in_progress success")
	testcluster.Await(t, "the report of the former", func() bool {
		row, ok := raftstore.Get(r.view(), record.GitReports, first.ID)
		return ok && row.State == "failure"
	})
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Deployments, first.ID); return nil })
	term := r.term()
	testcluster.Await(t, "its end", func() bool {
		r.hosts().Prune(t.Context(), term)
		_, there := raftstore.Get(r.view(), record.GitReports, first.ID)
		return !there
	})
	if all := r.github.Statuses(); all[len(all)-1].State != "success" {
		t.Errorf("%+v", all)
	}
}
