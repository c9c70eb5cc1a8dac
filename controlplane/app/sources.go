package app

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// maxSource limits the size of an uploaded source, in bytes.
const maxSource = 512 << 20

// keptUploads is how many of an app's latest uploads are kept. Older ones are kept only
// while they are in use.
const keptUploads = 5

var errSourceTooLarge = &apierror.Error{Code: apierror.ETooLarge, Message: "request too large", Detail: "a source has at most 512 MiB"}

// maxDropped limits the uploads of an app that wait for a host that is away, and maxUndeleted
// those that a host deletes soon.
const (
	maxDropped   = 20
	maxUndeleted = 100
)

// upload finds a source of an app, or returns why it is missing.
func upload(r raftstore.Reader, a *record.App, id string) (u record.AppUpload, missing string) {
	for _, u := range a.Uploads {
		switch {
		case u.ID != id || u.Dropped:
		case placeOf(u).lost(r):
			return record.AppUpload{}, "the host that kept its source was removed, and no other has it: upload it again"
		default:
			return u, ""
		}
	}
	return record.AppUpload{}, "no such source, or it is too old"
}

func lastUpload(r raftstore.Reader, a *record.App) (record.AppUpload, bool) {
	for _, u := range slices.Backward(a.Uploads) {
		if !u.Dropped && !placeOf(u).lost(r) {
			return u, true
		}
	}
	return record.AppUpload{}, false
}

// PutSource stores a tar.gz of an app's source. Its content is checked in the guest that
// unpacks it.
func (s *Apps) PutSource(ctx context.Context, c core.Caller, id string, tarball io.Reader) (api.SourceUpload, error) {
	view, _, err := s.find(ctx, c, id)
	if err != nil {
		return api.SourceUpload{}, err
	}
	if err := s.core.MayUse(view, c); err != nil {
		return api.SourceUpload{}, err
	}
	leave, err := s.uploads.Enter(c.WorkspaceID)
	if err != nil {
		return api.SourceUpload{}, err
	}
	defer leave()
	u := record.AppUpload{ID: sourcePrefix + core.RandomText(idRandom)}
	defer s.streams.begin(u.ID)()
	if err := s.announce(ctx, c, id, u); err != nil {
		return api.SourceUpload{}, err
	}
	hctx := hosts.WithRequestID(ctx, c.RequestID)
	limited := &limitedReader{r: tarball, left: maxSource}
	at, size, err := s.flows.putBlob(hctx, u.ID, limited)
	u.HostID, u.Local, u.SizeBytes = at.host, at.local, size
	if err == nil && u.SizeBytes == 0 {
		err = apierror.Invalid("invalid source", "want a tar.gz as the body")
	}
	if err == nil {
		err = s.core.Update(ctx, func(tx *raftstore.Tx) error {
			a, err := s.owned(tx, c, id)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(a.Uploads, func(other record.AppUpload) bool { return other.ID == u.ID }) {
				return errUploadDropped
			}
			a = a.Clone()
			u.CreatedAt = tx.Now()
			a.Uploads = append(slices.DeleteFunc(a.Uploads, func(other record.AppUpload) bool { return other.ID == u.ID }), u)
			dropUploads(tx, a)
			raftstore.Put(tx, record.Apps, a)
			return nil
		})
	}
	if err != nil {
		s.forgetSource(hctx, at, u.ID)
		return api.SourceUpload{}, sourceError(limited, err)
	}
	return api.SourceUpload{SourceID: u.ID, SizeBytes: u.SizeBytes}, nil
}

var errUploadDropped = apierror.Unavailable("leadership has changed during the upload", nil)

// announce names an upload in the app's row before a host gets any of it, as one to delete:
// if this leader dies, the next one deletes it.
func (s *Apps) announce(ctx context.Context, c core.Caller, id string, u record.AppUpload) error {
	return s.core.Update(ctx, func(tx *raftstore.Tx) error {
		a, err := s.owned(tx, c, id)
		if err != nil {
			return err
		}
		if n := undeleted(tx, a); n >= maxUndeleted {
			return &apierror.Error{
				Code: apierror.ERateLimited, Message: "too many old sources", Detail: "hosts have yet to delete those that were replaced",
				Fields: map[string]any{"max": maxUndeleted, "active": n},
			}
		}
		a = a.Clone()
		u.CreatedAt, u.Dropped = tx.Now(), true
		a.Uploads = append(a.Uploads, u)
		boundDropped(tx, a)
		raftstore.Put(tx, record.Apps, a)
		return nil
	})
}

// streams is the set of uploads that this replica is passing on to hosts.
type streams struct {
	mu  sync.Mutex
	ids map[string]bool
}

// begin adds an upload to the set until end is called.
func (s *streams) begin(id string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids[id] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ids, id)
	}
}

func (s *streams) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[id]
}

// forgetSource deletes the blob of a failed upload, unless it is in use all the same. If
// that fails, a loop deletes the blob, as long as the app exists.
func (s *Apps) forgetSource(ctx context.Context, at blobPlace, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), blobTime)
	defer cancel()
	view, err := s.core.Current(ctx)
	if err != nil {
		return // the next leader knows whether it is in use
	}
	for _, a := range raftstore.All(view, record.Apps) {
		if slices.ContainsFunc(a.Uploads, func(u record.AppUpload) bool { return u.ID == id && !u.Dropped }) {
			return
		}
	}
	if err := s.flows.deleteBlob(ctx, at, id); err != nil {
		s.core.Logger.WarnContext(ctx, "source of a failed upload is left on its host", "source_id", id, "error", err)
	}
}

func sourceError(body *limitedReader, err error) error {
	switch {
	case errors.Is(err, errSourceTooLarge), body.left < 0:
		return errSourceTooLarge
	case errors.Is(err, errNoBlobs), hostapi.HasCode(err, hostapi.CodeNoDisk):
		return apierror.Unreachable("no host can keep the source", err)
	case body.err != nil:
		var own *apierror.Error
		if errors.As(body.err, &own) {
			return own
		}
		return apierror.Invalid("invalid source", "the body ended before its end")
	}
	return core.HostError(err)
}

// dropUploads marks the uploads of an app that are no longer used. A loop deletes them.
func dropUploads(r raftstore.Reader, a *record.App) {
	used := map[string]bool{}
	for _, d := range deploymentsOf(r, a.ID) {
		if !d.Status.Ended() || d.ID == a.DeploymentID || d.Status == record.DeploymentLive && d.SnapshotID != "" { // it may be rolled back to
			used[d.SourceID] = true
		}
	}
	kept := 0
	for i := len(a.Uploads) - 1; i >= 0; i-- {
		u := &a.Uploads[i]
		switch {
		case u.Dropped:
		case kept < keptUploads && !placeOf(*u).lost(r):
			kept++
		case !used[u.ID]:
			u.Dropped = true
		}
	}
	boundDropped(r, a)
}

// undeleted returns how many uploads of an app hosts have yet to delete that are not away.
func undeleted(r raftstore.Reader, a *record.App) (n int) {
	for _, u := range a.Uploads {
		if u.Dropped && !placeOf(u).away(r) {
			n++
		}
	}
	return n
}

// boundDropped forgets the oldest uploads that wait for a host that is away, beyond
// maxDropped. A host that is away for a long time keeps their files.
func boundDropped(r raftstore.Reader, a *record.App) {
	dropped := 0
	for i := len(a.Uploads) - 1; i >= 0; i-- {
		if u := a.Uploads[i]; !u.Dropped || !placeOf(u).away(r) {
			continue
		}
		if dropped++; dropped > maxDropped {
			a.Uploads = slices.Delete(a.Uploads, i, i+1)
		}
	}
}

// limitedReader returns errSourceTooLarge if r has more than left bytes. It remembers the
// error of r.
type limitedReader struct {
	r    io.Reader
	left int64
	err  error
}

// Read implements io.Reader.
func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, errSourceTooLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
	}
	return n, err
}
