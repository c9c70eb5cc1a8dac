package api

// GitHubConnect is the answer to GET /v1/github/connect.
type GitHubConnect struct {
	URL       string `json:"url"` // where a person installs the GitHub App
	ExpiresAt Time   `json:"expires_at"`
}

// GitHubInstallation is an installation of the GitHub App that a workspace has connected.
type GitHubInstallation struct {
	ID                  string `json:"id"`      // GitHub's
	Account             string `json:"account"` // login of the user or the organization
	AccountType         string `json:"account_type"`
	RepositorySelection string `json:"repository_selection"` // all or selected
	Suspended           bool   `json:"suspended"`
	CreatedAt           Time   `json:"created_at"` // when it was connected
}

// GitHubRepo is a repository of an installation.
type GitHubRepo struct {
	ID            string `json:"id"` // GitHub's
	FullName      string `json:"full_name"`
	CloneURL      string `json:"clone_url"`
	Private       bool   `json:"private"`
	DefaultBranch string `json:"default_branch"`
}

// GitEventStatus is what becomes of an event of a git host.
type GitEventStatus string

// An accepted event is acted on in a moment. One is ignored if no app follows what it
// tells of, a duplicate if it has been received, and stale if a newer one has.
const (
	GitEventAccepted  GitEventStatus = "accepted"
	GitEventIgnored   GitEventStatus = "ignored"
	GitEventDuplicate GitEventStatus = "duplicate"
	GitEventStale     GitEventStatus = "stale"
)

// GitEventReceipt is the answer to an event of a git host.
type GitEventReceipt struct {
	Status GitEventStatus `json:"status"`
}

// PutRepoVariable is the body of PUT /v1/repos/{repoID}/preview-env/{key}. Without secret a
// variable that exists stays what it is, and a new one is not secret.
type PutRepoVariable struct {
	Value  string `json:"value" maxLength:"65536"`
	Secret *bool  `json:"secret,omitempty"` // masked when read, and redacted from build logs
}

// RepoVariable is a variable of the previews of a repository's pull requests.
type RepoVariable struct {
	Key       string `json:"key"`
	Value     string `json:"value"` // masked if it is secret
	Secret    bool   `json:"secret"`
	UpdatedAt Time   `json:"updated_at"`
}
