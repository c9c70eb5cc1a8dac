package record

import (
	"bytes"
	"slices"
	"time"
)

// GitInstallation is an installation of the operator's GitHub App in an account, which a
// workspace has connected. Its id is GitHub's.
type GitInstallation struct {
	Meta
	WorkspaceID string `json:"workspace_id"`
	Account     string `json:"account"` // the login of the user or the organization
	AccountType string `json:"account_type,omitempty"`
	Selection   string `json:"selection,omitempty"` // "all" or "selected" repositories
	Suspended   bool   `json:"suspended,omitempty"`
	// ChangedAt is GitHub's time of the newest change that was heard of.
	ChangedAt   time.Time `json:"changed_at,omitzero"`
	ConnectedBy string    `json:"connected_by,omitempty"` // user or key
}

// Clone returns a deep copy.
func (i *GitInstallation) Clone() *GitInstallation {
	c := *i
	return &c
}

// GitReceipt remembers something that must take effect once: a delivery, by its id and
// by the digest of its body, or a state of an installation.
type GitReceipt struct {
	Meta
	ExpiresAt time.Time `json:"expires_at"`
	About     string    `json:"about,omitempty"` // what it led to
}

// Clone returns a deep copy.
func (r *GitReceipt) Clone() *GitReceipt {
	c := *r
	return &c
}

// GitHead is the newest that is known of a branch or a pull request that apps follow,
// and what is still to be done about it. A newer event takes the place of one that has
// not been acted on.
type GitHead struct {
	Meta                  // the id is the repository's URL, "#", and the ref
	Provider       string `json:"provider"`
	Repo           string `json:"repo"` // normalised URL
	RepoID         string `json:"repo_id,omitempty"`
	FullName       string `json:"full_name,omitempty"`
	DefaultBranch  string `json:"default_branch,omitempty"`
	InstallationID string `json:"installation_id,omitempty"`
	Private        bool   `json:"private,omitempty"`
	Branch         string `json:"branch"` // of a pull request: its own, or the ref by which the repository has that of a fork
	PullRequest    int    `json:"pull_request,omitempty"`
	Fork           bool   `json:"fork,omitempty"` // its branch is in another repository
	Closed         bool   `json:"closed,omitempty"`
	Commit         string `json:"commit,omitempty"` // "": the branch is gone
	Message        string `json:"message,omitempty"`
	Author         string `json:"author,omitempty"`

	At         time.Time `json:"at,omitzero"`    // by the git host's clock; zero: it does not say
	Seen       []string  `json:"seen,omitempty"` // commits that the branch has left, the latest last
	AcceptedAt time.Time `json:"accepted_at"`
	// AcceptedIndex is that of the write which accepted the event, once the row was
	// written again; 0: it is the row's own.
	AcceptedIndex uint64 `json:"accepted_index,omitempty"`

	Pending       bool      `json:"pending,omitempty"` // it is to be acted on
	Tries         int       `json:"tries,omitempty"`
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
}

// Clone returns a deep copy.
func (h *GitHead) Clone() *GitHead {
	c := *h
	c.Seen = slices.Clone(h.Seen)
	return &c
}

// GitPreview is the preview of an app for a pull request: what its comment says.
type GitPreview struct {
	Meta                  // the id is the app's, "#", and the number
	WorkspaceID    string `json:"workspace_id"`
	AppID          string `json:"app_id"`     // that it is a preview of
	PreviewID      string `json:"preview_id"` // the app that it is
	Repo           string `json:"repo"`
	FullName       string `json:"full_name"`
	InstallationID string `json:"installation_id,omitempty"`
	PullRequest    int    `json:"pull_request"`
	Closed         bool   `json:"closed,omitempty"`
	Ask            bool   `json:"ask,omitempty"` // the git host is to be asked soon whether it is still open

	CommentID     int64     `json:"comment_id,omitempty"` // 0: none is known
	Comment       string    `json:"comment,omitempty"`    // its text
	Tries         int       `json:"tries,omitempty"`      // for the text that is due
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	GivenUp       string    `json:"given_up,omitempty"` // the text that could not be written
}

// Clone returns a deep copy.
func (p *GitPreview) Clone() *GitPreview {
	c := *p
	return &c
}

// GitReport is the commit status, and the deployment, that the git host has of a
// deployment. Its id is the deployment's.
type GitReport struct {
	Meta
	State         string    `json:"state,omitempty"` // that the git host has; "": none
	Tries         int       `json:"tries,omitempty"` // for the state that is due
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	GivenUp       string    `json:"given_up,omitempty"` // the state that could not be told

	RemoteID int64 `json:"remote_id,omitempty"` // the deployment's at the git host; 0: it has none

	// Where the state was shown, to end it there when the deployment is gone: the
	// installation, the repository as owner/name, the commit and the status's name.
	InstallationID string `json:"installation_id,omitempty"`
	FullName       string `json:"full_name,omitempty"`
	Commit         string `json:"commit,omitempty"`
	Name           string `json:"name,omitempty"`
}

// Clone returns a deep copy.
func (r *GitReport) Clone() *GitReport {
	c := *r
	return &c
}

// RepoEnv is the preview environment of a repository in a workspace: the variables of
// the previews of its pull requests.
type RepoEnv struct {
	Meta                      // the id is the workspace's, "/", and the repository's at the git host
	WorkspaceID string        `json:"workspace_id"`
	RepoID      string        `json:"repo_id"`
	Variables   []AppVariable `json:"variables,omitempty"` // by key
}

// Clone returns a deep copy.
func (e *RepoEnv) Clone() *RepoEnv {
	c := *e
	c.Variables = slices.Clone(e.Variables)
	for i := range c.Variables {
		c.Variables[i].ValueSealed = bytes.Clone(c.Variables[i].ValueSealed)
	}
	return &c
}
