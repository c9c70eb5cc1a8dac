package githost

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Whoever asks for the URL of an installation may send it to somebody else, who then
// installs the app for the workspace of the former. Nothing binds the browser that comes
// back to who asked: a key or a command-line client has no session there. So the person
// with the browser is told which workspace it is for, and connects it by a second call. A
// client that is no browser has the state and the installation's id in its own hands, and
// would answer the question itself: it is not asked.

// Question is what that person is asked. Confirm is the answer.
type Question struct{ Account, Workspace, WorkspaceID, AskedBy, Confirm string }

// errUnconfirmed has the members of a Question as fields.
var errUnconfirmed = &apierror.Error{
	Code: apierror.EConflict, Message: "confirmation required", Detail: "who installed the app calls this again with confirm, if the workspace is theirs",
}

var errConfirm = &apierror.Error{Code: apierror.EForbidden, Message: "invalid confirm", Detail: beginAgain}

// Asks returns the question that a callback has instead of an answer.
func Asks(err error) (Question, bool) {
	e := apierror.As(err)
	if e == nil || !errUnconfirmed.Is(e) {
		return Question{}, false
	}
	text := func(name string) string { s, _ := e.Fields[name].(string); return s }
	return Question{text("account"), text("workspace"), text("workspace_id"), text("asked_by"), text("confirm")}, true
}

// answer is what a confirm has inside. It is sealed, so only who was asked has it.
type answer struct {
	Nonce        string `json:"n"` // of the state
	Installation string `json:"i"`
}

var answerContext = []byte("githost.confirm")

// ask is the question about an installation that the person may connect.
func (g *GitHosts) ask(r raftstore.Reader, s state, installationID, account string) error {
	raw, err := json.Marshal(answer{Nonce: s.Nonce, Installation: installationID})
	if err == nil {
		raw, err = g.core.Sealer.Seal(raw, answerContext)
	}
	if err != nil {
		return fmt.Errorf("seal an answer: %w", err)
	}
	e := *errUnconfirmed
	e.Fields = map[string]any{
		"account": account, "workspace": workspaceName(r, s.Workspace), "workspace_id": s.Workspace, "asked_by": askedBy(r, s.By),
		"confirm": base64.RawURLEncoding.EncodeToString(raw),
	}
	return &e
}

// checkConfirm refuses an answer to another question.
func (g *GitHosts) checkConfirm(confirm string, s state, installationID string) error {
	var a answer
	raw, err := base64.RawURLEncoding.DecodeString(confirm)
	if err == nil {
		raw, err = g.core.Sealer.Open(raw, answerContext)
	}
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	if err != nil || a != (answer{s.Nonce, installationID}) {
		return errConfirm.With(errConfirm.Detail, err)
	}
	return nil
}

func workspaceName(r raftstore.Reader, id string) string {
	w, ok := raftstore.Get(r, record.Workspaces, id)
	if !ok {
		return id
	}
	return cmp.Or(w.Name, id)
}

// askedBy names who asked for an installation: a person, or a key and who made it.
func askedBy(r raftstore.Reader, by string) string {
	person := func(id string) string {
		u, ok := raftstore.Get(r, record.Users, id)
		if !ok {
			return id
		}
		return cmp.Or(u.Email, id)
	}
	k, ok := raftstore.Get(r, record.APIKeys, by)
	if !ok {
		return person(by)
	}
	name := "the API key " + cmp.Or(k.Name, k.Prefix)
	if k.CreatedBy != "" {
		name += " of " + person(k.CreatedBy)
	}
	return name
}
