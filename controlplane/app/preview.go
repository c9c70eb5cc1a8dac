package app

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// production is the scope of variables that previews do not get.
const production = "production"

// Variable is a variable of a preview's environment, in the clear.
type Variable struct {
	Key, Value string
	Secret     bool
}

// OpenPreview creates the preview of an app for a pull request, or updates an existing one
// to the app's present settings. The preview has the app's variables except those for
// production. env is added and takes precedence. One with the code of a fork gets nothing
// that is secret, of either, and no database. Like Pushed, OpenPreview acts on the word of a
// git host.
func (s *Apps) OpenPreview(ctx context.Context, parentID string, pullRequest int, branch string, fork bool, env []Variable) (id string, err error) {
	if err := validRef("git_branch", branch); err != nil {
		return "", err
	}
	if pullRequest < 1 {
		return "", apierror.Invalid("invalid pull_request", "want its number")
	}
	fresh := appPrefix + core.RandomText(appRandom)
	err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
		parent, ok := raftstore.Get(tx, record.Apps, parentID)
		if !ok || parent.Status == record.AppDeleting || parent.ParentID != "" {
			return apierror.NotFound()
		}
		before, known := previewOf(tx, parent, pullRequest)
		if !known {
			if err := s.admit(tx, core.Caller{WorkspaceID: parent.WorkspaceID}); err != nil {
				return err
			}
			before = &record.App{Meta: record.Meta{ID: fresh}, WorkspaceID: parent.WorkspaceID, Status: record.AppCreated, ParentID: parent.ID, PullRequest: pullRequest, Fork: fork}
		}
		if before.Fork != fork { // its artifacts and its database have what a fork may not know
			return &apierror.Error{Code: apierror.EConflict, Message: "the preview is of another repository's branch", Detail: "close it first"}
		}
		id = before.ID
		a := before.Clone()
		takeSettings(a, parent, branch)
		if err := s.takeEnv(tx, a, parent, env); err != nil {
			return err
		}
		if known && reflect.DeepEqual(before, a) {
			return nil
		}
		changed(before, a)
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
	return id, err
}

// previewOf finds an app's preview for a pull request.
func previewOf(r raftstore.Reader, parent *record.App, pullRequest int) (*record.App, bool) {
	for _, a := range appsOf(r, parent.WorkspaceID, record.KindApp) {
		if a.ParentID == parent.ID && a.PullRequest == pullRequest {
			return a, true
		}
	}
	return nil, false
}

// takeSettings gives a preview the settings of its app. Pushes to the preview's branch
// arrive as events of its pull request, so AutoDeploy is off.
func takeSettings(a, parent *record.App, branch string) {
	suffix := fmt.Sprintf(" (pull request %d)", a.PullRequest)
	name := []rune(parent.Name)
	a.Name = string(name[:min(len(name), maxName-len(suffix))]) + suffix
	a.GitURL, a.GitBranch, a.InstallationID, a.AutoDeploy = parent.GitURL, branch, parent.InstallationID, false
	a.Framework, a.Runtime, a.RootDirectory = parent.Framework, parent.Runtime, parent.RootDirectory
	a.InstallCommand, a.BuildCommand, a.StartCommand = parent.InstallCommand, parent.BuildCommand, parent.StartCommand
	a.Port, a.CPU, a.MemoryMB, a.MaxInstances = parent.Port, parent.CPU, parent.MemoryMB, parent.MaxInstances
	a.AutoHibernate, a.IdleTimeoutSeconds = parent.AutoHibernate, parent.IdleTimeoutSeconds
}

// takeEnv gives a preview its variables, sealed for the preview. Variables for production
// are not even opened. For the code of a fork, a secret of env hides the app's variable of
// that name all the same.
func (s *Apps) takeEnv(tx *raftstore.Tx, a, parent *record.App, env []Variable) error {
	given := parent.Clone()
	given.Env = slices.DeleteFunc(given.Env, func(v record.AppVariable) bool { return v.Scope == production || a.Fork && v.Secret })
	values, _, err := s.flows.openEnv(given)
	if err != nil {
		return err
	}
	traits := map[string]record.AppVariable{}
	for _, v := range given.Env {
		traits[v.Key] = record.AppVariable{Secret: v.Secret, Scope: v.Scope, DatabaseID: s.flows.databaseIn(tx, a, v.Key, values[v.Key])}
	}
	for _, v := range env {
		values[v.Key], traits[v.Key] = v.Value, record.AppVariable{Secret: v.Secret}
	}
	if a.Fork {
		maps.DeleteFunc(values, func(key, value string) bool { return traits[key].Secret || s.flows.mentionsDatabase(value) })
	}
	if err := validEnv(values); err != nil {
		return err
	}
	if a.Env, err = s.flows.sealEnv(a, values, tx.Now()); err != nil {
		return err
	}
	for i := range a.Env {
		t := traits[a.Env[i].Key]
		a.Env[i].Secret, a.Env[i].Scope, a.Env[i].DatabaseID = t.Secret, t.Scope, t.DatabaseID
	}
	return nil
}

// ClosePreview begins to remove a preview. It succeeds if there is none.
func (s *Apps) ClosePreview(ctx context.Context, id string) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		a, ok := raftstore.Get(tx, record.Apps, id)
		switch {
		case !ok || a.Status == record.AppDeleting:
			return nil
		case a.ParentID == "":
			return &apierror.Error{Code: apierror.EConflict, Message: "app is no preview"}
		}
		_, err := beginDelete(tx, flow.NewID(), a, "")
		return err
	})
}
