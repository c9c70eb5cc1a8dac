package fakegithub

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// Zeros is the commit of a branch before it is made and after it is deleted.
var Zeros = strings.Repeat("0", 40)

// Sign is the header X-Hub-Signature-256 of a body.
func Sign(secret string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// Header is that of a delivery, with its signature.
func Header(event, delivery string, body []byte) http.Header {
	return http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"GitHub-Hookshot/044aadd"},
		"X-Github-Event": {event}, "X-Github-Delivery": {delivery}, "X-Github-Hook-Id": {"292430182"},
		"X-Github-Hook-Installation-Target-Id": {AppID}, "X-Github-Hook-Installation-Target-Type": {"integration"},
		"X-Hub-Signature": {"sha1=0000000000000000000000000000000000000000"}, "X-Hub-Signature-256": {Sign(WebhookSecret, body)},
	}
}

// Push is what a push event says.
type Push struct {
	Repo           string // its name in the account
	Ref            string // default refs/heads/main
	Before, After  string
	At             time.Time // pushed_at
	Message        string
	NoInstallation bool // it comes from a webhook of the repository
	Public         bool
}

func marshal(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// PushPayload makes a payload of push.
func (g *GitHub) PushPayload(i *Installation, p Push) []byte {
	if p.Ref == "" {
		p.Ref = "refs/heads/main"
	}
	var head any
	if p.After != Zeros {
		head = map[string]any{
			"id": p.After, "tree_id": p.After, "distinct": true, "message": p.Message + "\n\nLonger.", "timestamp": p.At.Format(time.RFC3339),
			"author": map[string]any{"name": "Ann", "email": "ann@example.com", "username": "ann"}, "added": []string{"a"}, "removed": []string{}, "modified": []string{},
		}
	}
	repo := g.repo(i, p.Repo, 9000)
	repo["pushed_at"] = p.At.Unix() // a number in this event, and a text in others
	repo["created_at"] = p.At.Add(-time.Hour).Unix()
	repo["private"] = !p.Public
	out := map[string]any{
		"ref": p.Ref, "before": p.Before, "after": p.After, "created": p.Before == Zeros, "deleted": p.After == Zeros, "forced": false, "base_ref": nil,
		"compare": g.URL + "/compare", "commits": []any{head}, "head_commit": head, "repository": repo,
		"pusher": map[string]any{"name": "ann", "email": "ann@example.com"}, "sender": map[string]any{"login": "ann", "id": 7},
	}
	if !p.NoInstallation {
		out["installation"] = map[string]any{"id": i.ID, "node_id": "MDIz"}
	}
	return marshal(out)
}

// PullRequest is what an event of a pull request says.
type PullRequest struct {
	Action         string
	Repo           string
	Number         int
	Branch         string
	Commit, Before string
	Title          string
	At             time.Time // updated_at
	Fork           bool
}

// PullRequestPayload makes a payload of pull_request.
func (g *GitHub) PullRequestPayload(i *Installation, p PullRequest) []byte {
	repo := g.repo(i, p.Repo, 9000)
	repo["pushed_at"] = p.At.Format(time.RFC3339)
	from := repo
	if p.Fork {
		from = g.repo(&Installation{Account: "stranger"}, p.Repo, 9999)
	}
	state := "open"
	if p.Action == "closed" {
		state = "closed"
	}
	out := map[string]any{
		"action": p.Action, "number": p.Number,
		"pull_request": map[string]any{
			"id": 279147437, "number": p.Number, "state": state, "locked": false, "title": p.Title, "body": nil, "merged": false,
			"user": map[string]any{"login": "ann", "id": 7, "type": "User"}, "created_at": p.At.Format(time.RFC3339), "updated_at": p.At.Format(time.RFC3339),
			"head": map[string]any{"label": "ann:" + p.Branch, "ref": p.Branch, "sha": p.Commit, "repo": from},
			"base": map[string]any{"label": "ann:main", "ref": "main", "sha": strings.Repeat("b", 40), "repo": repo},
		},
		"repository": repo, "sender": map[string]any{"login": "ann", "id": 7}, "installation": map[string]any{"id": i.ID, "node_id": "MDIz"},
	}
	if p.Action == "synchronize" {
		out["before"], out["after"] = p.Before, p.Commit
	}
	return marshal(out)
}

// InstallationPayload makes a payload of installation. Its times are numbers or texts,
// by the action, as GitHub's are.
func (g *GitHub) InstallationPayload(i *Installation, action string, at time.Time) []byte {
	about := i.json()
	about["updated_at"] = at.Format("2006-01-02T15:04:05.000Z07:00")
	if action == "deleted" {
		about["created_at"], about["updated_at"] = i.CreatedAt.Unix(), at.Unix()
	}
	return marshal(map[string]any{"action": action, "installation": about, "repositories": []any{}, "sender": map[string]any{"login": "ann", "id": 7}})
}

// RepositoryPayload makes a payload of repository. Of one that was transferred, i is the
// account that has it now, and from the login that had it; of one that was renamed, from is
// the name that it had.
func (g *GitHub) RepositoryPayload(i *Installation, repo, action, from string) []byte {
	out := map[string]any{
		"action": action, "repository": g.repo(i, repo, 9000), "sender": map[string]any{"login": "ann", "id": 7}, "installation": map[string]any{"id": i.ID, "node_id": "MDIz"},
	}
	switch {
	case action == "renamed":
		out["changes"] = map[string]any{"repository": map[string]any{"name": map[string]any{"from": from}}}
	case from != "":
		out["changes"] = map[string]any{"owner": map[string]any{"from": map[string]any{"organization": map[string]any{"login": from, "id": 8}}}}
	}
	return marshal(out)
}

// RemovedPayload makes a payload of installation_repositories, of one that is no longer
// selected.
func (g *GitHub) RemovedPayload(i *Installation, repo string) []byte {
	return marshal(map[string]any{
		"action": "removed", "installation": i.json(), "repository_selection": "selected", "repositories_added": []any{},
		"repositories_removed": []any{map[string]any{"id": 9000, "node_id": "R_x", "name": repo, "full_name": i.Account + "/" + repo, "private": true}},
		"requester":            nil, "sender": map[string]any{"login": "ann", "id": 7},
	})
}

// PingPayload makes a payload of ping.
func (g *GitHub) PingPayload() []byte {
	return marshal(map[string]any{"zen": "Design for failure.", "hook_id": 1, "hook": map[string]any{"type": "App", "id": 1, "active": true, "events": []string{"push"}}})
}
