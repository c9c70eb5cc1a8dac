package githost

import (
	"cmp"
	"net/http"
	"strconv"
	"time"
)

// giteaHook reads the push hooks of Gitea, and of Forgejo, which sends the same headers.
type giteaHook struct{ secret []byte }

// Bears implements Provider.
func (h giteaHook) Bears(header http.Header) bool {
	return hasDigest(only(header, "X-Gitea-Signature"))
}

// Verify implements Provider.
func (h giteaHook) Verify(header http.Header, body []byte) bool {
	return signed(h.secret, body, only(header, "X-Gitea-Signature"))
}

// Parse implements Provider.
func (h giteaHook) Parse(header http.Header, body []byte) (Event, error) {
	e := Event{Delivery: only(header, "X-Gitea-Delivery"), Signed: true}
	if only(header, "X-Gitea-Event") != "push" {
		return e, nil
	}
	var in struct {
		Ref        string `json:"ref"`
		Before     string `json:"before"`
		After      string `json:"after"`
		HeadCommit *struct {
			Message   string    `json:"message"`
			Timestamp time.Time `json:"timestamp"`
			Author    struct {
				Name     string `json:"name"`
				Username string `json:"username"`
			} `json:"author"`
		} `json:"head_commit"`
		Repository struct {
			ID            int64  `json:"id"`
			FullName      string `json:"full_name"`
			CloneURL      string `json:"clone_url"`
			Private       bool   `json:"private"`
			DefaultBranch string `json:"default_branch"`
		} `json:"repository"`
	}
	if err := decodePayload(body, &in); err != nil {
		return e, err
	}
	repo := Repo{
		Provider: Gitea, ID: strconv.FormatInt(in.Repository.ID, 10), FullName: oneLine(in.Repository.FullName, maxBranch),
		DefaultBranch: in.Repository.DefaultBranch, Private: in.Repository.Private,
	}
	var err error
	e.Push, err = branchPush(repo, in.Repository.CloneURL, in.Ref, in.Before, in.After)
	if e.Push == nil || err != nil {
		return e, err
	}
	if c := in.HeadCommit; c != nil {
		e.Push.Message, e.Push.At = oneLine(c.Message, maxMessage), c.Timestamp.UTC()
		e.Push.Author = oneLine(cmp.Or(c.Author.Name, c.Author.Username), maxAuthor)
	}
	return e, nil
}
