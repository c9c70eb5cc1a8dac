package githost

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// perInstallation bounds the calls at once for one installation: GitHub refuses many.
	perInstallation = 4
	// reportAge is how long after its end a deployment of which GitHub knows nothing is
	// still told of.
	reportAge = time.Hour

	maxDescription = 140 // characters that GitHub takes
)

// The states of a commit that GitHub knows.
const (
	statePending = "pending"
	stateSuccess = "success"
	stateFailure = "failure"
	stateError   = "error" // it was never found out
)

// due is a commit status that GitHub is to have, and the state of its deployment.
type due struct {
	id, installation  string
	owner, repo       string
	commit            string
	state, url        string
	name, description string

	superseded  bool   // the commit's status is that of a later deployment of it
	remote      int64  // the deployment's id at GitHub; 0: none is known
	environment string // of a deployment at GitHub that is made
	preview     bool
}

// report begins to tell GitHub of each deployment whose status has changed.
func (k *keeper) report(ctx context.Context) {
	view, now, old := k.Store.View(), k.Clock(), false
	for _, d := range mayBeDue(view, now, !k.reported) {
		r, known := raftstore.Get(view, record.GitReports, d.ID)
		state := stateOf(d)
		switch {
		case !known && d.Status.Ended() && now.Sub(d.FinishedAt) > reportAge:
			continue
		case known && (r.State == state || r.GivenUp == state || r.NextAttemptAt.After(now)):
			continue
		}
		if s, ok := k.g.dueOf(view, d); ok && (known || !s.superseded) {
			old = old || d.Status.Ended() && now.Sub(d.FinishedAt) > reportAge
			k.Begin(loops.Job{What: loopReports, Host: s.installation, ID: d.ID}, perInstallation, func() { k.tell(ctx, s) })
		}
	}
	k.reported = k.reported || !old // more may be due than are told at once
}

// mayBeDue are the deployments of which there may be something to tell: those under way,
// those that have ended lately, and those that are to be told of again. Only the first
// passes of a leader look at all: while none led, any may have become too old for that.
func mayBeDue(r raftstore.Reader, now time.Time, all bool) []*record.Deployment {
	if all {
		return raftstore.All(r, record.Deployments)
	}
	rows := raftstore.Find(r, record.Deployments, "ended", record.NotEnded)
	for at := now.Add(-reportAge); !at.After(now.Add(reportAge)); at = at.Add(time.Hour) { // clocks may differ
		rows = append(rows, raftstore.Find(r, record.Deployments, "ended", record.EndedIn(at))...)
	}
	for _, report := range raftstore.Find(r, record.GitReports, "again", "yes") {
		d, ok := raftstore.Get(r, record.Deployments, report.ID)
		if ok && d.Status.Ended() && now.Sub(d.FinishedAt) > reportAge {
			rows = append(rows, d) // an earlier index may have it too; work on it begins once
		}
	}
	return rows
}

func stateOf(d *record.Deployment) string {
	switch d.Status {
	case record.DeploymentLive:
		return stateSuccess
	case record.DeploymentFailed:
		return stateFailure
	}
	return statePending
}

// told reports whether GitHub hears of a deployment: not of one of a commit that was
// deployed before.
func told(d *record.Deployment) bool {
	return d.Trigger == "api" || d.Trigger == triggerPush || d.Trigger == triggerPullRequest
}

// dueOf is what GitHub is to be told of a deployment: of its own repositories, and of those
// deployments that stand for a commit. The latest of each has the commit's status.
func (g *GitHosts) dueOf(r raftstore.Reader, d *record.Deployment) (due, bool) {
	if !told(d) {
		return due{}, false
	}
	app, ok := raftstore.Get(r, record.Apps, d.AppID)
	if !ok || !commitID.MatchString(d.GitCommit) {
		return due{}, false
	}
	s := due{id: d.ID, commit: d.GitCommit, state: stateOf(d), environment: oneLine(app.Name, 100), preview: app.ParentID != ""}
	s.name = "berth/" + s.environment
	if s.installation, ok = g.InstallationFor(r, app.WorkspaceID, app.GitURL); !ok {
		return due{}, false
	}
	s.owner, s.repo, _ = g.splitURL(app.GitURL)
	for _, other := range raftstore.Find(r, record.Deployments, "app", d.AppID) {
		if told(other) && other.GitCommit == d.GitCommit && other.CreateIndex > d.CreateIndex {
			s.superseded = true
		}
	}
	if g.cfg.AppURL != nil {
		s.url = g.cfg.AppURL(app.ID)
	}
	switch d.Status {
	case record.DeploymentQueued:
		s.description = "Waits for its turn"
	case record.DeploymentBuilding:
		s.description = "Builds"
	case record.DeploymentDeploying:
		s.description = "Starts"
	case record.DeploymentLive:
		s.description = "Live"
	case record.DeploymentFailed:
		s.description = oneLine("Failed: "+d.Error, maxDescription)
	}
	return s, true
}

// tell makes one attempt to tell GitHub of a deployment.
func (k *keeper) tell(ctx context.Context, s due) {
	if r, ok := raftstore.Get(k.Store.View(), record.GitReports, s.id); ok {
		if r.State == s.state {
			return // by a job that ended since the pass looked
		}
		s.remote = r.RemoteID
	}
	remote, err := k.g.tellGitHub(ctx, s)
	if ctx.Err() != nil {
		return
	}
	k.Update(ctx, loopReports, func(tx *raftstore.Tx) error {
		if _, ok := raftstore.Get(tx, record.Deployments, s.id); !ok && err != nil {
			return nil // nothing to end
		}
		row := &record.GitReport{Meta: record.Meta{ID: s.id}}
		if there, ok := raftstore.Get(tx, record.GitReports, s.id); ok {
			row = there.Clone()
		}
		row.RemoteID = remote
		switch next, again := k.again(err, row.Tries); {
		case err == nil:
			row.State, row.Tries, row.NextAttemptAt = s.state, 0, time.Time{}
			row.InstallationID, row.FullName, row.Commit, row.Name = s.installation, s.owner+"/"+s.repo, s.commit, s.name
		case again:
			row.Tries, row.NextAttemptAt = row.Tries+1, next
		default:
			row.GivenUp, row.Tries, row.NextAttemptAt = s.state, 0, time.Time{}
		}
		raftstore.Put(tx, record.GitReports, row)
		return nil
	})
	if err != nil {
		k.Logger.InfoContext(ctx, "github could not be told of a deployment", "deployment_id", s.id, "error", err)
	}
}

// again says when something that failed is tried again, if it is.
func (k *keeper) again(err error, tries int) (time.Time, bool) {
	if err == nil || final(err) || tries >= len(k.g.cfg.Delays) {
		return time.Time{}, false
	}
	return k.Clock().UTC().Add(max(k.g.cfg.Delays[tries], apierror.As(err).RetryAfter)), true
}

func (g *GitHosts) setStatus(ctx context.Context, s due) error {
	auth, err := g.github.asInstallation(ctx, s.installation, s.repo, toReport)
	if err != nil {
		return err
	}
	in := struct {
		State       string `json:"state"`
		TargetURL   string `json:"target_url,omitempty"`
		Description string `json:"description"`
		Context     string `json:"context"`
	}{s.state, s.url, s.description, s.name}
	return g.github.do(ctx, request{
		method: http.MethodPost, url: "/repos/" + s.owner + "/" + s.repo + "/statuses/" + s.commit, auth: auth, limit: s.installation, in: in,
	}, nil)
}

// unended reports whether GitHub was told that a commit's status is pending, or that a
// deployment serves, and may yet be told otherwise.
func unended(r *record.GitReport) bool {
	end := endOf(r)
	return end != "" && r.GivenUp != end && r.Commit != ""
}

// endOf is the state that is told of a deployment that is gone: its app was deleted before
// GitHub could be told of its end, or it serves no more. "": nothing is.
func endOf(r *record.GitReport) string {
	switch {
	case r.State == statePending:
		return stateError
	case r.State == stateSuccess && r.RemoteID != 0:
		return stateInactive
	}
	return ""
}

// endReports ends what GitHub was told of deployments that are gone.
func (k *keeper) endReports(ctx context.Context, view *raftstore.Snapshot) {
	if k.g.github == nil {
		return
	}
	for _, r := range raftstore.All(view, record.GitReports) {
		if _, there := raftstore.Get(view, record.Deployments, r.ID); there || !unended(r) || r.NextAttemptAt.After(k.Clock()) {
			continue
		}
		owner, repo, _ := strings.Cut(r.FullName, "/")
		s := due{
			id: r.ID, installation: r.InstallationID, owner: owner, repo: repo, commit: r.Commit, name: r.Name, state: endOf(r), description: "Its app was deleted", remote: r.RemoteID,
		}
		k.Begin(loops.Job{What: loopReports, Host: s.installation, ID: s.id}, perInstallation, func() { k.endReport(ctx, s) })
	}
}

// endReport makes one attempt to end a status.
func (k *keeper) endReport(ctx context.Context, s due) {
	if r, ok := raftstore.Get(k.Store.View(), record.GitReports, s.id); !ok || !unended(r) || endOf(r) != s.state {
		return // a job that ended since the pass looked has done it
	}
	_, err := k.g.tellGitHub(ctx, s)
	if ctx.Err() != nil {
		return
	}
	k.Update(ctx, loopReports, func(tx *raftstore.Tx) error {
		row, ok := raftstore.Get(tx, record.GitReports, s.id)
		if !ok {
			return nil
		}
		row = row.Clone()
		switch next, again := k.again(err, row.Tries); {
		case err == nil:
			row.State, row.NextAttemptAt = s.state, time.Time{}
		case again:
			row.Tries, row.NextAttemptAt = row.Tries+1, next
		default:
			row.GivenUp, row.NextAttemptAt = s.state, time.Time{}
		}
		raftstore.Put(tx, record.GitReports, row)
		return nil
	})
	if err != nil {
		k.Logger.InfoContext(ctx, "github could not be told of the end of a deployment", "deployment_id", s.id, "error", err)
	}
}
