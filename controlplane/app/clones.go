package app

import (
	"context"
	"slices"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/flow/resource"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Databases is what apps need from managed databases. An app has a database if the value of
// one of its variables is the URL of a database in its workspace. The app's previews get a
// clone of that database.
type Databases interface {
	// Named finds the database of a workspace that a connection URL names. The URL must
	// contain the database's password.
	Named(r raftstore.Reader, workspaceID, value string) (id string, ok bool)
	// Mentioned reports whether a value contains the host name of a database, any and in
	// any form.
	Mentioned(value string) bool
	// CloneForPreview begins to clone a database for a preview, unless the preview has a
	// clone already. The clone is deleted with the preview.
	CloneForPreview(ctx context.Context, c core.Caller, id, previewID, label string) error
	// PreviewReady reports whether a clone is ready. The error says why it never will be.
	PreviewReady(r raftstore.Reader, id, previewID string) (bool, error)
	// PreviewURL converts a connection URL of a database to one of the preview's clone.
	PreviewURL(r raftstore.Reader, id, previewID, value string) (string, error)
}

// databaseIn returns the id of the database that the value of a preview's variable names,
// or "". A value that named a database before still does, whatever has become of the
// database and its password: the clone has its own password.
func (f *Flows) databaseIn(r raftstore.Reader, a *record.App, key, value string) string {
	if f.cfg.Databases == nil {
		return ""
	}
	if i, ok := variable(a, key); ok && a.Env[i].DatabaseID != "" {
		if had, err := f.open(a, &a.Env[i]); err == nil && had == value {
			return a.Env[i].DatabaseID
		}
	}
	if id, ok := f.cfg.Databases.Named(r, a.WorkspaceID, value); ok {
		return id
	}
	return ""
}

// mentionsDatabase reports whether a value may lead to a database.
func (f *Flows) mentionsDatabase(value string) bool {
	return f.cfg.Databases != nil && f.cfg.Databases.Mentioned(value)
}

// clonedFor returns the databases that a preview has clones of.
func clonedFor(a *record.App) (ids []string) {
	for _, v := range a.Env {
		if v.DatabaseID != "" && !slices.Contains(ids, v.DatabaseID) {
			ids = append(ids, v.DatabaseID)
		}
	}
	return ids
}

// cloneURL returns the value of a variable with the preview's clone in place of the database
// that the value names.
func (f *Flows) cloneURL(r raftstore.Reader, a *record.App, v *record.AppVariable, value string) (string, error) {
	if f.cfg.Databases == nil {
		return "", errNoDatabases
	}
	return f.cfg.Databases.PreviewURL(r, v.DatabaseID, a.ID, value)
}

var errNoDatabases = &apierror.Error{Code: apierror.ENotImplemented, Message: "there are no databases here"}

// openWithClones is openEnv for a build. A preview gets the URLs of its clones, and never
// those of its app's databases.
func (f *Flows) openWithClones(a *record.App) (env map[string]string, secrets []string, err error) {
	env, secrets, err = f.openEnv(a)
	view := f.Store.View()
	for i := range a.Env {
		v := &a.Env[i]
		if v.DatabaseID == "" || err != nil {
			continue
		}
		env[v.Key], err = f.cloneURL(view, a, v, env[v.Key])
	}
	return env, secrets, err
}

// clonePause is the time between two tries to clone a database.
const clonePause = 2 * time.Second

// cloneDatabases begins to clone the databases that a preview has no clones of yet.
func (f *Flows) cloneDatabases(ctx context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	_, a, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	if f.cfg.Databases == nil {
		return f.fail(data, errNoDatabases), nil
	}
	if data.CloneBy.IsZero() {
		data.CloneBy = f.Clock().Add(f.cfg.ClonePatience)
	}
	c := core.Caller{WorkspaceID: a.WorkspaceID, RequestID: data.RequestID}
	for _, id := range clonedFor(a) {
		err := f.cfg.Databases.CloneForPreview(ctx, c, id, a.ID, a.Name)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case mayCloneLater(err) && f.Clock().Before(data.CloneBy):
			return going(flow.Sleep(stepClone, clonePause, data)), nil
		default:
			return f.fail(data, notCloned(id, err)), nil
		}
	}
	return going(flow.Goto(stepCloned, data)), nil
}

// mayCloneLater reports whether a database that cannot be cloned now may be cloned later:
// it has no base backup yet, or the host that would have to clone it is away.
func mayCloneLater(err error) bool {
	switch apierror.CodeOf(err) {
	case apierror.EConflict, apierror.ENoArchive, apierror.EInternal, apierror.EBadGateway, apierror.EUnavailable:
		return true
	}
	return false
}

// notCloned returns the error of a preview that gets no clone of a database.
func notCloned(id string, err error) error {
	return &apierror.Error{Code: apierror.CodeOf(err), Message: "no clone of its database " + id, Detail: reasonOf(err), Err: err}
}

// awaitClones waits until a preview's clones are ready. Each clone has a time limit of its
// own. The deployment's budget begins afterwards.
func (f *Flows) awaitClones(_ context.Context, run flow.Run) (flow.Commit, error) {
	var data deploy
	_, a, ok, err := step(run, &data)
	if err != nil || !ok {
		return resource.Finish, err
	}
	if f.cfg.Databases == nil {
		return f.fail(data, errNoDatabases), nil
	}
	for _, id := range clonedFor(a) {
		ready, err := f.cfg.Databases.PreviewReady(run.View, id, a.ID)
		switch {
		case err != nil:
			return f.fail(data, notCloned(id, err)), nil
		case !ready:
			return going(flow.Wait(stepCloned, time.Minute, data, record.Databases.Name)), nil
		}
	}
	return going(flow.Goto(stepQueue, data)), nil
}
