package githost

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

const (
	// receiptTime is how long a delivery is remembered. What comes again later is older
	// than what is known of its branch.
	receiptTime = 24 * time.Hour
	// maxReceipts bounds those that are remembered.
	maxReceipts = 20000
	// maxSeen bounds the commits that a branch has left.
	maxSeen = 32
)

// CheckHook refuses, before its body is read, a webhook of a git host that is not set up,
// and one that cannot be the git host's whatever its body is.
func (g *GitHosts) CheckHook(provider string, header http.Header) error {
	p := g.providers[provider]
	switch {
	case p == nil:
		return errNoHook(provider)
	case !p.Bears(header):
		return errSignature
	}
	return nil
}

var errSignature = apierror.Unauthorized("invalid signature")

// Receive takes a webhook of a git host. What is to be done is written down and then done
// by a loop, so that the git host has its answer at once.
func (g *GitHosts) Receive(ctx context.Context, provider string, header http.Header, body []byte) (api.GitEventReceipt, error) {
	if err := g.CheckHook(provider, header); err != nil {
		return api.GitEventReceipt{}, err
	}
	p := g.providers[provider]
	if !p.Verify(header, body) {
		return api.GitEventReceipt{}, errSignature
	}
	e, err := p.Parse(header, body)
	if err == nil {
		err = e.checkTimes()
	}
	if err != nil {
		return api.GitEventReceipt{}, &apierror.Error{Code: apierror.EInvalid, Message: "invalid payload", Detail: oneLine(err.Error(), 200), Err: err}
	}
	if e.Renamed != nil {
		if err := g.renameApps(ctx, e.Renamed, receiptsOf(provider, e, body)); err != nil {
			return api.GitEventReceipt{}, err
		}
	}
	status := api.GitEventIgnored
	err = g.core.Update(ctx, func(tx *raftstore.Tx) error {
		status = g.accept(tx, provider, e, body)
		return nil
	})
	if err != nil {
		return api.GitEventReceipt{}, err
	}
	if e.Installation != nil && g.github != nil {
		g.github.forget(e.Installation.ID)
	}
	g.core.Logger.InfoContext(ctx, "event of a git host", "provider", provider, "status", string(status))
	return api.GitEventReceipt{Status: status}, nil
}

// accept writes an event down. It leaves no trace of one that is of no interest, so that
// what is remembered is bounded by what apps follow.
func (g *GitHosts) accept(tx *raftstore.Tx, provider string, e Event, body []byte) api.GitEventStatus {
	if e.Installation != nil {
		return acceptInstallation(tx, e.Installation)
	}
	if len(e.Left) > 0 {
		return acceptLeft(tx, e.Left)
	}
	receipts := receiptsOf(provider, e, body)
	if e.Renamed != nil {
		return acceptRenamed(tx, e.Renamed, receipts)
	}
	head, ok := g.headOf(tx, e)
	if !ok {
		return api.GitEventIgnored
	}
	if remembered(tx, receipts) {
		return api.GitEventDuplicate
	}
	before, known := raftstore.Get(tx, record.GitHeads, head.ID)
	if known && stale(before, head, e) {
		return api.GitEventStale
	}
	if known {
		head.Seen = before.Seen
		if before.Commit != head.Commit {
			head.Seen = leave(head.Seen, before.Commit)
		}
	}
	switch {
	case e.Push != nil:
		head.Seen = leave(head.Seen, e.Push.Before)
	case e.PullRequest != nil:
		head.Seen = leave(head.Seen, e.PullRequest.Before)
	}
	head.Seen = slices.DeleteFunc(slices.Clone(head.Seen), func(c string) bool { return c == head.Commit })
	head.AcceptedAt, head.Pending, head.NextAttemptAt = tx.Now(), true, tx.Now()
	raftstore.Put(tx, record.GitHeads, head)
	remember(tx, receipts, head.ID)
	return api.GitEventAccepted
}

// remembered reports whether a delivery has been accepted before.
func remembered(tx *raftstore.Tx, receipts []string) bool {
	return slices.ContainsFunc(receipts, func(id string) bool {
		r, known := raftstore.Get(tx, record.GitReceipts, id)
		return known && tx.Now().Before(r.ExpiresAt)
	})
}

func remember(tx *raftstore.Tx, receipts []string, about string) {
	for _, id := range receipts {
		raftstore.Put(tx, record.GitReceipts, &record.GitReceipt{Meta: record.Meta{ID: id}, ExpiresAt: tx.Now().Add(receiptTime), About: about})
	}
}

// receiptsOf are the names under which a delivery is remembered.
func receiptsOf(provider string, e Event, body []byte) []string {
	digest := func(raw []byte) string {
		sum := sha256.Sum256(raw)
		return hex.EncodeToString(sum[:])
	}
	var out []string
	if e.Delivery != "" {
		out = append(out, provider+":id:"+digest([]byte(e.Delivery)))
	}
	if e.Signed {
		out = append(out, provider+":body:"+digest(body))
	}
	return out
}

// headOf is the row that an event is about, as it says. There is none for an event that
// no app follows.
func (g *GitHosts) headOf(r raftstore.Reader, e Event) (*record.GitHead, bool) {
	switch {
	case e.Push != nil:
		p := *e.Push
		if _, _, ok := g.splitURL(p.URL); ok && p.Provider != GitHub {
			return nil, false // only GitHub speaks for its repositories
		}
		if !scope(r, &p.Repo, &p.Workspaces) || len(g.followers(r, p)) == 0 {
			return nil, false
		}
		if p.Private && p.InstallationID == "" {
			p.Message, p.Author = "", "" // who only knows the URL may not know them
		}
		h := headRow(p.Repo, "refs/heads/"+p.Branch)
		h.Branch, h.Commit, h.Message, h.Author, h.At = p.Branch, p.Commit, p.Message, p.Author, p.At
		return h, true
	case e.PullRequest != nil:
		p := *e.PullRequest
		if !scope(r, &p.Repo, &p.Workspaces) {
			return nil, false
		}
		wanted := len(g.parents(r, p)) > 0
		if !wanted && len(g.previews(r, p)) == 0 {
			return nil, false
		}
		p.Closed = p.Closed || p.Fork && !wanted // what there is, no app wants any more
		h := headRow(p.Repo, "pull/"+strconv.Itoa(p.Number))
		h.Branch, h.Commit, h.Message, h.Author, h.At = p.Branch, p.Commit, p.Message, p.Author, p.At
		h.PullRequest, h.Fork, h.Closed = p.Number, p.Fork, p.Closed
		return h, true
	}
	return nil, false
}

func headRow(r Repo, ref string) *record.GitHead {
	return &record.GitHead{
		Meta: record.Meta{ID: r.URL + "#" + ref}, Provider: r.Provider, Repo: r.URL, RepoID: r.ID, FullName: r.FullName,
		DefaultBranch: r.DefaultBranch, InstallationID: r.InstallationID, Private: r.Private,
	}
}

// scope says whose apps an event is for: those of the workspace that has connected the
// installation that it comes through; or, where it comes through none, any.
func scope(r raftstore.Reader, repo *Repo, workspaces *[]string) bool {
	if repo.InstallationID == "" {
		return true
	}
	i, ok := raftstore.Get(r, record.GitInstallations, repo.InstallationID)
	if !ok || i.Suspended {
		return false
	}
	*workspaces = []string{i.WorkspaceID}
	return true
}

// stale reports whether an event is older than what is known. Events arrive in any order,
// and nothing must bring a branch back to what it has left.
func stale(before, now *record.GitHead, e Event) bool {
	timed := !before.At.IsZero() && !now.At.IsZero() && !before.At.Equal(now.At)
	if e.PullRequest != nil {
		switch {
		case timed:
			return now.At.Before(before.At)
		case before.Closed != now.Closed: // in the same second; the end counts, unless it was undone
			return before.Closed && !e.PullRequest.Reopened
		}
		return before.Commit == now.Commit || slices.Contains(before.Seen, now.Commit)
	}
	switch {
	case timed && now.At.After(before.At):
		return false
	case before.Commit == now.Commit:
		return true
	case timed && now.Provider == GitHub: // whose time is of the push; elsewhere it is of the commit
		return true
	case before.Commit != "" && e.Push.Before == before.Commit: // it follows what is known
		return false
	}
	return timed || slices.Contains(before.Seen, now.Commit)
}

// leave adds a commit that a branch has left.
func leave(seen []string, commit string) []string {
	if commit == "" || slices.Contains(seen, commit) {
		return seen
	}
	seen = append(slices.Clone(seen), commit)
	return seen[max(0, len(seen)-maxSeen):]
}

// acceptLeft has GitHub asked for the previews of repositories that may be there no longer:
// events arrive in any order, and what is there by then counts.
func acceptLeft(tx *raftstore.Tx, names []string) api.GitEventStatus {
	status := api.GitEventIgnored
	for _, p := range raftstore.All(tx.Snapshot(), record.GitPreviews) {
		if p.Closed || !slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, p.FullName) }) {
			continue
		}
		p = p.Clone()
		p.Ask = true
		raftstore.Put(tx, record.GitPreviews, p)
		status = api.GitEventAccepted
	}
	return status
}

// renamedAtOnce limits the deployments, or events, that one transaction writes for a new name:
// such a row may have some kilobytes.
const renamedAtOnce = 30

// renameApps has the apps of a repository, the commits that they may be built from again, and
// events that wait follow its new name: pushes come by that, and tokens are for that. They are
// moved in several transactions, because all of them may be larger than one. An event that is
// sent again goes on where the first one was cut off.
func (g *GitHosts) renameApps(ctx context.Context, e *renaming, receipts []string) error {
	for more := true; more; {
		err := g.core.Update(ctx, func(tx *raftstore.Tx) error {
			more = g.renameHeads(tx, e, receipts)
			return nil
		})
		if err != nil {
			return err
		}
	}
	view, err := g.core.Current(ctx)
	if err != nil {
		return err
	}
	for _, a := range raftstore.Find(view, record.Apps, "git_url", e.From) {
		for more := true; more; {
			err := g.core.Update(ctx, func(tx *raftstore.Tx) error {
				more = renameApp(tx, e, receipts, a.ID)
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// renameHeads has some of the events that are still to be acted on, as those of a workspace
// that may not deploy for now, follow their repository's new name, and reports whether there
// is more to do. They are not acted on before the apps have had time to follow.
func (g *GitHosts) renameHeads(tx *raftstore.Tx, e *renaming, receipts []string) (more bool) {
	var workspaces []string
	if e.From == e.To || !scope(tx, &Repo{InstallationID: e.InstallationID}, &workspaces) || remembered(tx, receipts) {
		return false
	}
	n := 0
	for _, h := range raftstore.Find(tx, record.GitHeads, "pending", "yes") {
		if h.Repo != e.From || h.InstallationID != e.InstallationID {
			continue
		}
		if n++; n > renamedAtOnce {
			return true
		}
		raftstore.Delete(tx, record.GitHeads, h.ID)
		to := h.Clone()
		to.ID, to.Repo, to.FullName, to.AcceptedIndex = e.To+strings.TrimPrefix(h.ID, h.Repo), e.To, e.ToName, acceptedIndex(h)
		if newer, ok := raftstore.Get(tx, record.GitHeads, to.ID); ok && newer.RepoID == h.RepoID {
			continue
		}
		if at := tx.Now().Add(g.cfg.Delays[0]); at.After(to.NextAttemptAt) {
			to.NextAttemptAt = at
		}
		raftstore.Put(tx, record.GitHeads, to)
		e.followed = true
	}
	return false
}

// renameApp has some deployments of an app follow its repository's new name, or the app
// itself if they all do, and reports whether there is more to do.
func renameApp(tx *raftstore.Tx, e *renaming, receipts []string, appID string) (more bool) {
	var workspaces []string
	a, ok := raftstore.Get(tx, record.Apps, appID)
	if !ok || record.NormalGitURL(a.GitURL) != e.From || a.GitURL == e.CloneURL {
		return false
	}
	if !scope(tx, &Repo{InstallationID: e.InstallationID}, &workspaces) || !slices.Contains(workspaces, a.WorkspaceID) || remembered(tx, receipts) {
		return false
	}
	n := 0
	for _, d := range raftstore.Find(tx, record.Deployments, "app", a.ID) {
		if d.GitURL != a.GitURL {
			continue
		}
		if n++; n > renamedAtOnce {
			return true
		}
		d = d.Clone()
		d.GitURL = e.CloneURL
		raftstore.Put(tx, record.Deployments, d)
	}
	if n > 0 {
		return true
	}
	a = a.Clone()
	a.GitURL = e.CloneURL
	raftstore.Put(tx, record.Apps, a)
	e.followed = true
	return false
}

// acceptRenamed has the previews of a repository follow its new name, after renameApps.
func acceptRenamed(tx *raftstore.Tx, e *renaming, receipts []string) api.GitEventStatus {
	var workspaces []string
	if !scope(tx, &Repo{InstallationID: e.InstallationID}, &workspaces) {
		return api.GitEventIgnored
	}
	if remembered(tx, receipts) {
		return api.GitEventDuplicate
	}
	status := api.GitEventIgnored
	if e.followed {
		status = api.GitEventAccepted
	}
	for _, p := range raftstore.All(tx.Snapshot(), record.GitPreviews) {
		if p.Repo == e.From && slices.Contains(workspaces, p.WorkspaceID) {
			p = p.Clone()
			p.Repo, p.FullName = e.To, e.ToName
			raftstore.Put(tx, record.GitPreviews, p)
			status = api.GitEventAccepted
		}
	}
	if status == api.GitEventAccepted {
		remember(tx, receipts, e.To)
	}
	return status
}

// acceptInstallation writes down what became of an installation.
func acceptInstallation(tx *raftstore.Tx, e *installationEvent) api.GitEventStatus {
	i, ok := raftstore.Get(tx, record.GitInstallations, e.ID)
	switch {
	case !ok:
		return api.GitEventIgnored
	case e.Gone: // for good: the next one has another id
		raftstore.Delete(tx, record.GitInstallations, e.ID)
		return api.GitEventAccepted
	case e.At.Before(i.ChangedAt):
		return api.GitEventStale
	case i.Suspended == e.Suspended:
		return api.GitEventDuplicate
	}
	i = i.Clone()
	i.Suspended, i.ChangedAt = e.Suspended, e.At
	raftstore.Put(tx, record.GitInstallations, i)
	return api.GitEventAccepted
}
