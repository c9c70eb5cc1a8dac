package database

import (
	"context"
	"crypto/subtle"
	"errors"
	"net/url"
	"strings"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A preview of an app gets clones of the databases that the app's variables name. Such a
// clone is an ordinary database whose row names the preview. It is created only while the
// preview exists, and a loop deletes it when the preview is gone. So the rows alone tell
// any leader what to do.

// Named finds the database of a workspace that a connection URL names by its host. The
// URL must have the password of the database's built-in role, or name another role. So a
// user who may only write an app's variables cannot get data by naming a database.
func (s *Databases) Named(r raftstore.Reader, workspaceID, value string) (id string, ok bool) {
	u, _, ok := connection(value)
	if !ok || s.cfg.Domain == "" {
		return "", false
	}
	id, ok = strings.CutSuffix(strings.ToLower(u.Hostname()), "."+strings.ToLower(s.cfg.Domain))
	if !ok {
		return "", false
	}
	d, err := Owned(r, core.Caller{WorkspaceID: workspaceID}, id)
	if err != nil || d.Credentials == nil {
		return "", false
	}
	user, given := login(u)
	if user != d.Username { // the user's own role, with the same password in the clone
		return id, user != ""
	}
	password, _, err := s.flows.open(d.ID, d.Credentials)
	return id, err == nil && subtle.ConstantTimeCompare([]byte(password), []byte(given)) == 1
}

// Mentioned reports whether a value contains the host name of a database, any and in any
// form.
func (s *Databases) Mentioned(value string) bool {
	return s.cfg.Domain != "" && strings.Contains(strings.ToLower(value), "."+strings.ToLower(s.cfg.Domain))
}

// login returns the user and the password of a connection URL.
func login(u *url.URL) (user, password string) {
	query := u.Query()
	user, password = query.Get("user"), query.Get("password")
	if u.User != nil {
		user = u.User.Username()
		if given, ok := u.User.Password(); ok {
			password = given
		}
	}
	return user, password
}

// maxURL is the maximum length of a connection URL, in bytes. A variable may be much
// longer.
const maxURL = 4096

// connection parses a PostgreSQL URL: postgres:// or postgresql://, optionally with
// +driver in the scheme, or with JDBC's prefix.
func connection(value string) (u *url.URL, jdbc, ok bool) {
	value, jdbc = strings.CutPrefix(value, "jdbc:")
	if len(value) > maxURL || !strings.HasPrefix(value, "postgres") {
		return nil, false, false
	}
	u, err := url.Parse(value)
	if err != nil || u.Host == "" {
		return nil, false, false
	}
	name, _, _ := strings.Cut(u.Scheme, "+")
	return u, jdbc, name == "postgres" || name == "postgresql"
}

// errCloneThere means that the preview already has its clone.
var errCloneThere = errors.New("the preview has its clone")

// CloneForPreview begins a clone of a database's latest state for an app preview, unless
// the preview has one. It replaces a clone that failed before it was ever ready.
func (s *Databases) CloneForPreview(ctx context.Context, c core.Caller, id, previewID, label string) error {
	clone, ok := previewClone(s.core.Store.View(), id, previewID)
	switch {
	case ok && !neverMade(clone):
		return nil
	case ok: // delete it first, because it counts against the limit
		err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
			d, ok := raftstore.Get(tx, record.Databases, clone.ID)
			if !ok || !neverMade(d) {
				return nil
			}
			_, err := beginDelete(tx, flow.NewID(), d, c.RequestID)
			return err
		})
		if err != nil {
			return err
		}
	}
	label = string([]rune(label)[:min(len([]rune(label)), maxLabel)])
	_, err := s.clone(ctx, c, id, api.CloneDatabase{Label: label}, previewID, core.Idempotency{}, "")
	if errors.Is(err, errCloneThere) {
		return nil
	}
	return err
}

// takePreview checks, in the transaction that creates a clone, that the preview exists
// and has no clone of the database yet.
func takePreview(tx *raftstore.Tx, workspaceID, id, previewID string) error {
	a, ok := raftstore.Get(tx, record.Apps, previewID)
	if !ok || a.Status == record.AppDeleting || a.WorkspaceID != workspaceID {
		return &apierror.Error{Code: apierror.ENotFound, Message: "the preview is gone"}
	}
	if _, ok := previewClone(tx, id, previewID); ok {
		return errCloneThere
	}
	return nil
}

// previewClone returns a preview's clone of a database.
func previewClone(r raftstore.Reader, id, previewID string) (*record.Database, bool) {
	for _, d := range raftstore.Find(r, record.Databases, "preview", previewID) {
		if d.ClonedFrom == id && d.Status != record.DatabaseDeleting {
			return d, true
		}
	}
	return nil, false
}

// neverMade reports whether a database failed before it was ever ready.
func neverMade(d *record.Database) bool {
	return d.Status == record.DatabaseFailed && d.Credentials == nil
}

var errNoClone = &apierror.Error{Code: apierror.EConflict, Message: "the clone of its database is gone", Detail: "deploy it again"}

// PreviewReady reports whether clients can connect to a preview's clone of a database,
// even if it sleeps. It fails if the clone is gone or could not be made.
func (s *Databases) PreviewReady(r raftstore.Reader, id, previewID string) (bool, error) {
	clone, ok := previewClone(r, id, previewID)
	switch {
	case !ok:
		return false, errNoClone
	case neverMade(clone):
		return false, &apierror.Error{Code: apierror.EConflict, Message: "it could not be made", Detail: clone.Error}
	}
	return clone.Credentials != nil, nil
}

// PreviewURL rewrites a connection URL of a database into one of a preview's clone. A
// role of the user's own keeps its password, which is the same in the clone.
func (s *Databases) PreviewURL(r raftstore.Reader, id, previewID, value string) (string, error) {
	clone, ok := previewClone(r, id, previewID)
	u, jdbc, isURL := connection(value)
	if !ok || !isURL || clone.Credentials == nil {
		return "", errNoClone
	}
	password, _, err := s.flows.open(clone.ID, clone.Credentials)
	if err != nil {
		return "", err
	}
	host := s.host(clone.ID)
	if port := u.Port(); port != "" {
		host += ":" + port
	}
	u.Host = host
	if user, _ := login(u); user == clone.Username {
		if u.User != nil {
			u.User = url.UserPassword(user, password)
		}
		if query := u.Query(); query.Has("password") {
			query.Set("password", password)
			u.RawQuery = query.Encode()
		}
	}
	if jdbc {
		return "jdbc:" + u.String(), nil
	}
	return u.String(), nil
}

// ended reports whether a database belongs to a preview that is gone.
func ended(r raftstore.Reader, d *record.Database) bool {
	if d.PreviewID == "" || d.Status == record.DatabaseDeleting {
		return false
	}
	a, ok := raftstore.Get(r, record.Apps, d.PreviewID)
	return !ok || a.Status == record.AppDeleting
}

// previews deletes the databases of previews that are gone. If such a database is being
// cloned, it waits for the clone, as a client's delete must.
func (k *keeper) previews(ctx context.Context) {
	for _, d := range raftstore.All(k.Store.View(), record.Databases) {
		if !ended(k.Store.View(), d) || clonedBy(k.Store.View(), d) != nil {
			continue
		}
		k.Logger.InfoContext(ctx, "database of a preview is deleted", "database_id", d.ID, "app_id", d.PreviewID)
		k.Update(ctx, loopPreviews, func(tx *raftstore.Tx) error {
			d, ok := raftstore.Get(tx, record.Databases, d.ID)
			if !ok || !ended(tx, d) || clonedBy(tx, d) != nil {
				return nil
			}
			_, err := beginDelete(tx, flow.NewID(), d, "")
			return err
		})
	}
}

// previewsChanged returns a channel that wakes the previews loop.
func (k *keeper) previewsChanged() <-chan struct{} {
	return k.Store.View().Changed(record.Apps.Name, record.Databases.Name)
}
