package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/build"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/snapshot"
	"github.com/berth-cloud/berth/timescale"
)

const (
	// sweepInterval is how often a host removes from the snapshot store what no
	// snapshot has; a part of it is by chance, so that hosts take turns.
	sweepInterval = time.Hour
)

// storeTimeout bounds one upload.
var storeTimeout = timescale.Limit(30 * time.Minute)

// labelTemplate is the label of a stored capture that names its template.
const labelTemplate = "template"

// StoredConfig is what Stored works with.
type StoredConfig struct {
	Snapshots *snapshot.Store
	Builds    *build.Stored
	Images    *image.Store
	Engine    string
	// Room is how many bytes of the data directory may be filled.
	Room func() (int64, error)
	Log  *slog.Logger
}

// Stored is the captures in the snapshot store: they go there with the template
// build that they were made from, and come back on any host.
type Stored struct {
	cfg      StoredConfig
	captures captures

	work *background.Group // uploads

	mu      sync.Mutex
	uploads map[string]*storing // under way, by capture
}

// captures is what Stored needs of Local.
type captures interface {
	Open(id string) (info hostapi.Capture, dir string, release func(), err error)
	MarkStored(id string, stored bool) error
	// MakeRoom runs check, and again if it could do something for the bytes that
	// are missing.
	MakeRoom(check func() (missing int64, err error)) error
}

// storing is one upload. info and err are set when done is closed.
type storing struct {
	done   chan struct{}
	cancel context.CancelCauseFunc
	info   hostapi.Capture
	err    error
}

var errDeletedMeanwhile = errors.New("the snapshot was deleted while it was stored")

// NewStored returns a host's access to the captures in a store. Serve is called
// before it is used.
func NewStored(cfg StoredConfig) *Stored {
	return &Stored{cfg: cfg, uploads: map[string]*storing{}, work: background.New()}
}

// Serve sets the captures of this host.
func (s *Stored) Serve(local *Local) { s.captures = local }

// Close ends what is under way.
func (s *Stored) Close() { s.work.Close(hosterr.ErrDraining) }

// Upload uploads a capture and waits until it is complete in the store.
// Whoever asks meanwhile waits for the same upload, which goes on when ctx ends.
func (s *Stored) Upload(ctx context.Context, id string) (hostapi.Capture, error) {
	up, err := s.begin(ctx, id)
	if err != nil {
		return hostapi.Capture{}, err
	}
	select {
	case <-up.done:
		return up.info, up.err
	case <-ctx.Done():
		return hostapi.Capture{}, context.Cause(ctx)
	}
}

// begin joins the upload of a capture, or starts it, which goes on when ctx ends.
func (s *Stored) begin(ctx context.Context, id string) (*storing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if up := s.uploads[id]; up != nil {
		return up, nil
	}
	tctx, cancelTimeout := context.WithTimeout(s.work.Detach(ctx), storeTimeout)
	uctx, cancel := context.WithCancelCause(tctx)
	up := &storing{done: make(chan struct{}), cancel: cancel}
	begun := s.work.Go(func() {
		defer cancelTimeout()
		defer cancel(nil)
		up.info, up.err = s.upload(uctx, id)
		s.mu.Lock()
		delete(s.uploads, id)
		s.mu.Unlock()
		close(up.done)
	})
	if !begun {
		cancel(nil)
		cancelTimeout()
		return nil, hosterr.ErrDraining
	}
	s.uploads[id] = up
	return up, nil
}

func (s *Stored) upload(ctx context.Context, id string) (hostapi.Capture, error) {
	info, dir, release, err := s.captures.Open(id)
	if err != nil {
		return hostapi.Capture{}, err
	}
	defer release()
	src, err := s.source(&info, dir)
	if err != nil {
		return hostapi.Capture{}, fmt.Errorf("store capture %s: %w", id, err)
	}
	src.Distrust = true
	m, stats, err := s.cfg.Snapshots.Upload(ctx, id, src)
	if err != nil {
		return hostapi.Capture{}, refusal(err)
	}
	if err := s.captures.MarkStored(id, true); err != nil {
		if errors.Is(err, hosterr.ErrNoSnapshot) { // it was deleted since
			err = errors.Join(err, s.cfg.Snapshots.Delete(ctx, id))
		}
		return hostapi.Capture{}, err
	}
	info.Stored, info.Manifest = true, m.Digest
	s.cfg.Log.InfoContext(ctx, "capture is stored", "capture_id", id, "chunks", stats.Chunks, "new_chunks", stats.NewChunks, "new_bytes", stats.NewBytes,
		"took_ms", stats.Took.Milliseconds())
	return info, nil
}

// source lists what a capture is made of: its own files, and those of the build.
func (s *Stored) source(info *hostapi.Capture, dir string) (snapshot.Source, error) {
	src := snapshot.Source{Meta: snapshot.Meta{
		Engine: info.Engine, Labels: map[string]string{build.LabelBuild: info.BuildID, labelTemplate: info.Template},
	}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return src, err
	}
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			src.Files = append(src.Files, snapshot.LocalFile{Name: e.Name(), Path: filepath.Join(dir, e.Name())})
		}
	}
	return src, s.cfg.Builds.AddFiles(&src, info.BuildID)
}

// Delete removes a stored capture, wherever it was made, and ends an
// upload of it that is under way here.
func (s *Stored) Delete(ctx context.Context, id string) error {
	s.mu.Lock()
	up := s.uploads[id]
	s.mu.Unlock()
	if up != nil {
		up.cancel(errDeletedMeanwhile)
		select {
		case <-up.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := s.cfg.Snapshots.Delete(ctx, id); err != nil {
		return refusal(err)
	}
	s.cfg.Builds.Forget(id)
	if err := s.captures.MarkStored(id, false); err != nil && !errors.Is(err, hosterr.ErrNoSnapshot) {
		return err
	}
	return nil
}

// List returns a page of what is in the owner's store.
func (s *Stored) List(ctx context.Context, owner, after string, limit int) (hostapi.StoredPage, error) {
	switch err := s.cfg.Snapshots.Claim(ctx, owner); {
	case errors.Is(err, snapshot.ErrForeign):
		return hostapi.StoredPage{}, &hostapi.Error{HTTPStatus: http.StatusConflict, Code: hostapi.CodeForeignStore, Message: err.Error()}
	case err != nil:
		return hostapi.StoredPage{}, refusal(err)
	}
	ids, more, err := s.cfg.Snapshots.Page(ctx, after, limit)
	if err != nil {
		return hostapi.StoredPage{}, refusal(err)
	}
	return hostapi.StoredPage{IDs: ids, More: more}, nil
}

// Fetch fills dir with the files of a stored capture and puts the build that it
// was made from among the templates' builds, if it is not there. The capture's
// manifest must have the digest, where there is one.
func (s *Stored) Fetch(ctx context.Context, id, digest, dir string) error {
	began := time.Now()
	aside := filepath.Join(dir, ".fetched")
	m, err := s.cfg.Snapshots.Fetch(ctx, id, aside, snapshot.FetchOptions{
		Engine: s.cfg.Engine,
		Digest: digest,
		Shared: func(snapshot.SharedFile) (string, bool) { return "", false },
		Admit:  s.Admit,
	})
	if err != nil {
		return refusal(err)
	}
	buildID, err := buildOf(aside, m.Labels[build.LabelBuild])
	if err != nil {
		return err
	}
	err = s.cfg.Images.Import(ctx, buildID, func(ctx context.Context, to string) error {
		if err := os.Rename(filepath.Join(aside, image.PartsDir), filepath.Join(to, image.PartsDir)); err != nil {
			return fmt.Errorf("%w: it has no template build: %w", image.ErrCorrupt, err)
		}
		return s.cfg.Snapshots.FetchShared(ctx, &m, to, nil)
	})
	if err != nil {
		return refusal(err)
	}
	for i := range m.Files {
		name := m.Files[i].Name
		if filepath.Dir(name) != "." {
			continue // of the build
		}
		if err := os.Rename(filepath.Join(aside, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	s.cfg.Log.InfoContext(ctx, "capture is fetched", "capture_id", id, "build_id", buildID, "took_ms", time.Since(began).Milliseconds())
	return os.RemoveAll(aside)
}

// buildOf reads which build a capture was made from. The label in the store's
// manifest, which people go by, must agree.
func buildOf(dir, label string) (string, error) {
	var info hostapi.Capture
	raw, err := os.ReadFile(filepath.Join(dir, "capture.json"))
	if err == nil {
		err = json.Unmarshal(raw, &info)
	}
	if err == nil && info.BuildID != label {
		err = fmt.Errorf("it was made from build %q, and is labelled %q", info.BuildID, label)
	}
	if err != nil {
		return "", fmt.Errorf("%w: capture.json: %w", hosterr.ErrBadSnapshot, err)
	}
	return info.BuildID, nil
}

// Admit refuses a capture that would fill the disk.
func (s *Stored) Admit(m *snapshot.Manifest) error {
	return s.captures.MakeRoom(func() (missing int64, err error) {
		room, err := s.cfg.Room()
		if err != nil {
			return 0, err
		}
		need := m.Bytes()
		if missing = need - room; missing > 0 {
			err = fmt.Errorf("%w: the snapshot takes %d MB, and there is room for %d", hosterr.ErrNoDisk, need>>20, max(room, 0)>>20)
		}
		return missing, err
	})
}

// refusal names an error of the stores as the host does.
func refusal(err error) error {
	if errors.Is(err, errDeletedMeanwhile) {
		return fmt.Errorf("%w: %w", hosterr.ErrNoSnapshot, err)
	}
	return build.Refusal(err)
}

// Run removes from the store what no snapshot has, until ctx ends.
func (s *Stored) Run(ctx context.Context) {
	for {
		timer := time.NewTimer(sweepInterval/2 + rand.N(sweepInterval)) //nolint:gosec // nobody gains by guessing it
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		done, err := s.cfg.Snapshots.Collect(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.cfg.Log.Error("what no snapshot has could not be removed from the store", "error", err)
			continue
		}
		s.cfg.Log.Info("snapshot store was swept", "trashed", done.Trashed, "restored", done.Restored, "removed", done.Removed, "bytes", done.Bytes)
	}
}
