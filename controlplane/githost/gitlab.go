package githost

import (
	"cmp"
	"net/http"
	"strconv"
	"time"
)

// gitlabHook reads the push hooks of GitLab.
type gitlabHook struct{ secret []byte }

// systemHook is the event of everything that a hook of the whole GitLab announces; the body
// says what it is.
const systemHook = "System Hook"

// Bears implements Provider. It is all that there is: GitLab signs nothing.
func (h gitlabHook) Bears(header http.Header) bool { return h.Verify(header, nil) }

// Verify implements Provider.
func (h gitlabHook) Verify(header http.Header, _ []byte) bool {
	return same(h.secret, only(header, "X-Gitlab-Token"))
}

// Parse implements Provider.
func (h gitlabHook) Parse(header http.Header, body []byte) (Event, error) {
	// The first stays the same when GitLab sends a hook again; older versions have the
	// second alone.
	e := Event{Delivery: cmp.Or(only(header, "Idempotency-Key"), only(header, "X-Gitlab-Event-UUID"))}
	event := only(header, "X-Gitlab-Event")
	if event != "Push Hook" && event != systemHook {
		return e, nil
	}
	var in struct {
		Event     string `json:"event_name"`
		Ref       string `json:"ref"`
		Before    string `json:"before"`
		After     string `json:"after"`
		ProjectID int64  `json:"project_id"` // as GitLab documents pushes of system hooks, their project has no id
		Project   struct {
			ID            int64  `json:"id"`
			URL           string `json:"git_http_url"`
			Path          string `json:"path_with_namespace"`
			DefaultBranch string `json:"default_branch"`
			Visibility    *int   `json:"visibility_level"` // 20 is public
		} `json:"project"`
		Commits []struct {
			ID        string    `json:"id"`
			Message   string    `json:"message"`
			Timestamp time.Time `json:"timestamp"`
			Author    struct {
				Name string `json:"name"`
			} `json:"author"`
		} `json:"commits"`
	}
	if err := decodePayload(body, &in); err != nil {
		return e, err
	}
	if event == systemHook && in.Event != "push" {
		return e, nil
	}
	const public = 20
	repo := Repo{
		Provider: GitLab, ID: strconv.FormatInt(cmp.Or(in.Project.ID, in.ProjectID), 10), FullName: oneLine(in.Project.Path, maxBranch),
		DefaultBranch: in.Project.DefaultBranch, Private: in.Project.Visibility == nil || *in.Project.Visibility != public,
	}
	var err error
	e.Push, err = branchPush(repo, in.Project.URL, in.Ref, in.Before, in.After)
	if e.Push == nil || err != nil {
		return e, err
	}
	for _, c := range in.Commits {
		if c.ID == in.After {
			e.Push.Message, e.Push.Author, e.Push.At = oneLine(c.Message, maxMessage), oneLine(c.Author.Name, maxAuthor), c.Timestamp.UTC()
		}
	}
	return e, nil
}
