package githost

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/berth-cloud/berth/raftstore/record"
)

// Provider is a kind of git host that sends webhooks.
type Provider interface {
	// Bears reports whether a request has what Verify needs beside the body.
	Bears(header http.Header) bool
	// Verify reports whether a request was made by who has the secret.
	Verify(header http.Header, body []byte) bool
	// Parse reads a request that was verified.
	Parse(header http.Header, body []byte) (Event, error)
}

// Event is what a webhook says. At most one of its parts is there; none is for an event
// that is of no interest.
type Event struct {
	Delivery string // the git host's id of it; "": it has none
	// Signed says that the signature is one of the body, which then identifies an event:
	// whoever repeats one can choose the id, but not the body.
	Signed bool

	Push         *Push
	PullRequest  *PullRequest
	Installation *installationEvent
	Left         []string // full names of repositories that may be there no longer
	Renamed      *renaming
}

// checkTimes refuses times that no record can have (RFC 3339 has years of four digits).
func (e Event) checkTimes() error {
	var at time.Time
	switch {
	case e.Push != nil:
		at = e.Push.At
	case e.PullRequest != nil:
		at = e.PullRequest.At
	case e.Installation != nil:
		at = e.Installation.At
	}
	if y := at.UTC().Year(); y < 0 || y > 9999 {
		return badPayload("a time is none that could be")
	}
	return nil
}

// Repo is a repository.
type Repo struct {
	Provider       string
	URL            string // record.NormalGitURL of its clone URL
	ID             string
	FullName       string
	DefaultBranch  string
	InstallationID string // of the GitHub App that sent the event; "": it was none
	Private        bool
}

// Push is a new commit of a branch.
type Push struct {
	Repo
	Workspaces      []string // whose apps it is for; nil: any
	Branch          string
	Commit, Before  string // "": the branch is gone, or is new
	Message, Author string
	At              time.Time // by the git host's clock; zero: it does not say
	AcceptedIndex   uint64    // of the write that accepted it
}

// PullRequest is what became of a pull request.
type PullRequest struct {
	Repo
	Workspaces      []string // whose apps it is for; nil: any
	Number          int
	Branch          string // its own, or the ref by which the repository has that of a fork
	Commit, Before  string // "": it has no new commit
	Message, Author string
	Closed          bool
	Reopened        bool
	Fork            bool // its branch is in another repository
	At              time.Time
	AcceptedIndex   uint64 // of the write that accepted it
}

// installationEvent is what became of an installation of the GitHub App.
type installationEvent struct {
	ID        string
	Gone      bool
	Suspended bool
	At        time.Time
}

// renaming is another name of a repository.
type renaming struct {
	InstallationID   string
	From, To         string // as Repo.URL
	FromName, ToName string // as Repo.FullName
	CloneURL         string // by its new name
	followed         bool   // an app has its new name
}

// errPayload is wrapped by the error for a payload that is not as documented.
var errPayload = errors.New("the payload is not as documented")

func badPayload(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errPayload, fmt.Errorf(format, args...))
}

func decodePayload(body []byte, out any) error {
	if err := json.Unmarshal(body, out); err != nil {
		return badPayload("%w", err)
	}
	return nil
}

// only is the value of a header that is there once.
func only(h http.Header, name string) string {
	if v := h.Values(name); len(v) == 1 {
		return v[0]
	}
	return ""
}

// signed reports whether a signature in hex is the HMAC-SHA256 of a body.
func signed(secret, body []byte, signature string) bool {
	given, err := hex.DecodeString(signature)
	if err != nil || len(secret) == 0 {
		return false
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return hmac.Equal(given, mac.Sum(nil))
}

// hasDigest reports whether a signature could be an HMAC-SHA256 in hex.
func hasDigest(signature string) bool {
	raw, err := hex.DecodeString(signature)
	return err == nil && len(raw) == sha256.Size
}

// same compares secrets in constant time, whatever their lengths.
func same(secret []byte, given string) bool {
	a, b := sha256.Sum256(secret), sha256.Sum256([]byte(given))
	return len(secret) > 0 && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// branchPush makes a push of what all git hosts say in alike. It is nil for a tag.
func branchPush(repo Repo, cloneURL, ref, before, after string) (*Push, error) {
	branch, ok := strings.CutPrefix(ref, "refs/heads/")
	if !ok {
		return nil, nil
	}
	p := &Push{Repo: repo, Branch: branch}
	p.URL = record.NormalGitURL(cloneURL)
	if !zeros(after) {
		p.Commit = strings.ToLower(after)
	}
	if !zeros(before) {
		p.Before = strings.ToLower(before)
	}
	switch {
	case p.URL == "":
		return nil, badPayload("the clone URL is no https URL")
	case !validBranch(branch):
		return nil, badPayload("no branch has this name")
	case p.Commit != "" && !commitID.MatchString(p.Commit), p.Before != "" && !commitID.MatchString(p.Before):
		return nil, badPayload("a commit's name is not hexadecimal")
	case p.DefaultBranch != "" && !validBranch(p.DefaultBranch):
		p.DefaultBranch = ""
	}
	return p, nil
}
