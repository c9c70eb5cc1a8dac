package githost

import (
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// githubHook reads the webhooks of GitHub.
type githubHook struct{ secret []byte }

// Bears implements Provider.
func (h githubHook) Bears(header http.Header) bool {
	signature, ok := githubSignature(header)
	return ok && hasDigest(signature)
}

// Verify implements Provider.
func (h githubHook) Verify(header http.Header, body []byte) bool {
	signature, ok := githubSignature(header)
	return ok && signed(h.secret, body, signature)
}

func githubSignature(header http.Header) (hexadecimal string, ok bool) {
	return strings.CutPrefix(only(header, "X-Hub-Signature-256"), "sha256=")
}

// githubRepo is a repository in a payload.
type githubRepo struct {
	ID            int64  `json:"id"`
	FullName      string `json:"full_name"`
	CloneURL      string `json:"clone_url"`
	Private       bool   `json:"private"`
	DefaultBranch string `json:"default_branch"`
	PushedAt      moment `json:"pushed_at"`
}

type githubInstallation struct {
	ID        int64  `json:"id"`
	UpdatedAt moment `json:"updated_at"`
}

// moment is a time that GitHub gives in seconds in one event, and as a text in another.
type moment struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (m *moment) UnmarshalJSON(raw []byte) error {
	if seconds, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		m.Time = time.Unix(seconds, 0).UTC()
		return nil
	}
	var at *time.Time
	if err := json.Unmarshal(raw, &at); err != nil {
		return err
	}
	if at != nil {
		m.Time = at.UTC()
	}
	return nil
}

// Parse implements Provider.
func (h githubHook) Parse(header http.Header, body []byte) (Event, error) {
	e := Event{Delivery: only(header, "X-GitHub-Delivery"), Signed: true}
	if media, _, _ := mime.ParseMediaType(header.Get("Content-Type")); media == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return e, badPayload("%w", err)
		}
		body = []byte(form.Get("payload"))
	}
	var err error
	switch only(header, "X-GitHub-Event") {
	case "push":
		e.Push, err = githubPush(body)
	case "pull_request":
		e.PullRequest, err = githubPullRequest(body)
	case "installation":
		e.Installation, err = githubInstalled(body)
	case "repository":
		if e.Renamed, err = githubRenamed(body); e.Renamed == nil && err == nil {
			e.Left, err = githubLeft(body)
		}
	case "installation_repositories":
		e.Left, err = githubLeft(body)
	}
	return e, err
}

func (r githubRepo) repo(i *githubInstallation) (Repo, error) {
	out := Repo{
		Provider: GitHub, URL: record.NormalGitURL(r.CloneURL), ID: strconv.FormatInt(r.ID, 10), FullName: r.FullName,
		DefaultBranch: r.DefaultBranch, Private: r.Private,
	}
	if i != nil {
		out.InstallationID = strconv.FormatInt(i.ID, 10)
	}
	switch {
	case r.ID <= 0 || !validFullName(r.FullName):
		return out, badPayload("the repository has no id, or no name that could be")
	case out.URL == "":
		return out, badPayload("the clone URL is no https URL")
	case out.InstallationID != "" && !numberID.MatchString(out.InstallationID):
		return out, badPayload("the installation has no id that could be")
	}
	return out, nil
}

func githubPush(body []byte) (*Push, error) {
	var in struct {
		Ref        string `json:"ref"`
		Before     string `json:"before"`
		After      string `json:"after"`
		HeadCommit *struct {
			Message string `json:"message"`
			Author  struct {
				Name     string `json:"name"`
				Username string `json:"username"`
			} `json:"author"`
		} `json:"head_commit"`
		Repository   githubRepo          `json:"repository"`
		Installation *githubInstallation `json:"installation"`
	}
	if err := decodePayload(body, &in); err != nil {
		return nil, err
	}
	repo, err := in.Repository.repo(in.Installation)
	if err != nil {
		return nil, err
	}
	p, err := branchPush(repo, in.Repository.CloneURL, in.Ref, in.Before, in.After)
	if p == nil || err != nil {
		return nil, err
	}
	p.At = in.Repository.PushedAt.Time
	if c := in.HeadCommit; c != nil {
		p.Message, p.Author = oneLine(c.Message, maxMessage), oneLine(c.Author.Name, maxAuthor)
		if p.Author == "" {
			p.Author = oneLine(c.Author.Username, maxAuthor)
		}
	}
	return p, nil
}

func githubPullRequest(body []byte) (*PullRequest, error) {
	var in struct {
		Action      string `json:"action"`
		Number      int    `json:"number"`
		Before      string `json:"before"` // of synchronize
		PullRequest struct {
			Title     string    `json:"title"`
			UpdatedAt time.Time `json:"updated_at"`
			User      struct {
				Login string `json:"login"`
			} `json:"user"`
			Head struct {
				Ref  string `json:"ref"`
				SHA  string `json:"sha"`
				Repo *struct {
					ID int64 `json:"id"`
				} `json:"repo"`
			} `json:"head"`
		} `json:"pull_request"`
		Repository   githubRepo          `json:"repository"`
		Installation *githubInstallation `json:"installation"`
	}
	if err := decodePayload(body, &in); err != nil {
		return nil, err
	}
	switch in.Action {
	case "opened", "synchronize", "reopened", "closed":
	default:
		return nil, nil
	}
	repo, err := in.Repository.repo(in.Installation)
	if err != nil {
		return nil, err
	}
	head := in.PullRequest.Head
	p := &PullRequest{
		Repo: repo, Number: in.Number, Branch: head.Ref, Commit: strings.ToLower(head.SHA), Closed: in.Action == "closed", Reopened: in.Action == "reopened",
		// A repository that was deleted is another one too.
		Fork:    head.Repo == nil || head.Repo.ID != in.Repository.ID,
		Before:  strings.ToLower(in.Before),
		Message: oneLine(in.PullRequest.Title, maxMessage), Author: oneLine(in.PullRequest.User.Login, maxAuthor), At: in.PullRequest.UpdatedAt.UTC(),
	}
	switch {
	case p.Number < 1 || p.Number > 1<<31-1:
		return nil, badPayload("the pull request has no number that could be")
	case !validBranch(p.Branch):
		return nil, badPayload("no branch has this name")
	case !commitID.MatchString(p.Commit), p.Before != "" && !commitID.MatchString(p.Before):
		return nil, badPayload("a commit's name is not hexadecimal")
	}
	if p.Fork {
		p.Branch = fmt.Sprintf("refs/pull/%d/head", p.Number) // its branch is in a repository that nobody has connected
	}
	return p, nil
}

// githubLeft are the repositories that were deleted, given away, or taken from an
// installation.
func githubLeft(body []byte) ([]string, error) {
	type account struct {
		Login string `json:"login"`
	}
	var in struct {
		Action     string     `json:"action"`
		Repository githubRepo `json:"repository"`
		Changes    struct {
			Owner struct {
				From struct {
					User         account `json:"user"`
					Organization account `json:"organization"`
				} `json:"from"`
			} `json:"owner"`
		} `json:"changes"`
		Removed []githubRepo `json:"repositories_removed"`
	}
	if err := decodePayload(body, &in); err != nil {
		return nil, err
	}
	var names []string
	switch in.Action {
	case "deleted":
		names = append(names, in.Repository.FullName)
	case "transferred": // its name is that of the new owner
		_, name, _ := strings.Cut(in.Repository.FullName, "/")
		names = append(names, cmp.Or(in.Changes.Owner.From.Organization.Login, in.Changes.Owner.From.User.Login)+"/"+name)
	case "removed":
		for _, r := range in.Removed {
			names = append(names, r.FullName)
		}
	}
	for _, name := range names {
		if !validFullName(name) {
			return nil, badPayload("a repository has no name that could be")
		}
	}
	return names, nil
}

// githubRenamed is the new name of a repository; nil: the event is another one, or comes
// through no installation, so that nobody is known whose apps it is about.
func githubRenamed(body []byte) (*renaming, error) {
	var in struct {
		Action     string     `json:"action"`
		Repository githubRepo `json:"repository"`
		Changes    struct {
			Repository struct {
				Name struct {
					From string `json:"from"`
				} `json:"name"`
			} `json:"repository"`
		} `json:"changes"`
		Installation *githubInstallation `json:"installation"`
	}
	if err := decodePayload(body, &in); err != nil {
		return nil, err
	}
	if in.Action != "renamed" || in.Installation == nil {
		return nil, nil
	}
	repo, err := in.Repository.repo(in.Installation)
	if err != nil {
		return nil, err
	}
	owner, name, _ := strings.Cut(repo.FullName, "/")
	from := in.Changes.Repository.Name.From
	at, ok := strings.CutSuffix(repo.URL, "/"+strings.ToLower(name))
	if !ok || !validFullName(owner+"/"+from) {
		return nil, badPayload("a repository has no name that could be")
	}
	return &renaming{
		InstallationID: repo.InstallationID, From: record.NormalGitURL(at + "/" + from), To: repo.URL,
		FromName: owner + "/" + from, ToName: repo.FullName, CloneURL: in.Repository.CloneURL,
	}, nil
}

func githubInstalled(body []byte) (*installationEvent, error) {
	var in struct {
		Action       string             `json:"action"`
		Installation githubInstallation `json:"installation"`
	}
	if err := decodePayload(body, &in); err != nil {
		return nil, err
	}
	switch in.Action {
	case "deleted", "suspend", "unsuspend":
	default:
		return nil, nil
	}
	e := &installationEvent{
		ID: strconv.FormatInt(in.Installation.ID, 10), Gone: in.Action == "deleted", Suspended: in.Action == "suspend", At: in.Installation.UpdatedAt.Time,
	}
	if !numberID.MatchString(e.ID) {
		return nil, badPayload("the installation has no id that could be")
	}
	return e, nil
}
