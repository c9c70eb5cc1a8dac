package hostd

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
	// preloadInterval is how late a template that became ready is stored,
	// lookInterval how late it is noticed that one is in the store no more.
	preloadInterval = 10 * time.Second
	lookInterval    = 5 * time.Minute
)

// storeTimeout bounds one upload.
var storeTimeout = timescale.Limit(30 * time.Minute)

// Labels of a stored capture.
const (
	labelBuild    = "build_id"
	labelTemplate = "template"
)

// stored is the snapshot store as this host uses it: captures go there with the
// template build that they were made from, and come back on any host.
type stored struct {
	store    *snapshot.Store
	images   *image.Store
	captures captures
	engine   string
	// room is how many bytes of the data directory may be filled.
	room func() (int64, error)
	log  *slog.Logger

	life    context.Context
	end     context.CancelCauseFunc
	workers sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	uploads map[string]*storing // under way, by capture
	builds  map[string]bool     // builds that are in the store, of the templates that are ready
}

// captures is what stored needs of the boxes.
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

// openStored opens the store that the configuration names, nil if it names none.
// captures are set before it is used.
func openStored(ctx context.Context, cfg Config, images *image.Store, engine string, log *slog.Logger) (*stored, error) {
	if cfg.SnapshotStore == "" {
		return nil, nil //nolint:nilnil // no store is no error
	}
	store, err := snapshot.Open(ctx, cfg.SnapshotStore, snapshot.Options{})
	if err != nil {
		return nil, fmt.Errorf("BERTH_SNAPSHOT_STORE: %w", err)
	}
	s := &stored{store: store, images: images, engine: engine, log: log, uploads: map[string]*storing{}, builds: map[string]bool{}}
	s.room = func() (int64, error) {
		free, err := freeBytes(cfg.DataDir)
		return free - int64(cfg.DiskHeadroomMB)<<20, err
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	return s, nil
}

// close ends what is under way.
func (s *stored) close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end(hosterr.ErrDraining)
	s.workers.Wait()
	return s.store.Close()
}

// StoreCapture uploads a capture and waits until it is complete in the store.
// Whoever asks meanwhile waits for the same upload, which goes on when ctx ends.
func (s *stored) StoreCapture(ctx context.Context, id string) (hostapi.Capture, error) {
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
func (s *stored) begin(ctx context.Context, id string) (*storing, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, hosterr.ErrDraining
	}
	if up := s.uploads[id]; up != nil {
		return up, nil
	}
	tctx, cancelTimeout := context.WithTimeout(hostapi.WithRequestID(s.life, hostapi.RequestID(ctx)), storeTimeout)
	uctx, cancel := context.WithCancelCause(tctx)
	up := &storing{done: make(chan struct{}), cancel: cancel}
	s.uploads[id] = up
	s.workers.Go(func() {
		defer cancelTimeout()
		defer cancel(nil)
		up.info, up.err = s.upload(uctx, id)
		s.mu.Lock()
		delete(s.uploads, id)
		s.mu.Unlock()
		close(up.done)
	})
	return up, nil
}

func (s *stored) upload(ctx context.Context, id string) (hostapi.Capture, error) {
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
	m, stats, err := s.store.Upload(ctx, id, src)
	if err != nil {
		return hostapi.Capture{}, refusal(err)
	}
	if err := s.captures.MarkStored(id, true); err != nil {
		if errors.Is(err, hosterr.ErrNoSnapshot) { // it was deleted since
			err = errors.Join(err, s.store.Delete(ctx, id))
		}
		return hostapi.Capture{}, err
	}
	info.Stored, info.Manifest = true, m.Digest
	s.log.InfoContext(ctx, "capture is stored", "capture_id", id, "chunks", stats.Chunks, "new_chunks", stats.NewChunks, "new_bytes", stats.NewBytes,
		"took_ms", stats.Took.Milliseconds())
	return info, nil
}

// source lists what a capture is made of: its own files, and those of the build.
func (s *stored) source(info *hostapi.Capture, dir string) (snapshot.Source, error) {
	src := snapshot.Source{Meta: snapshot.Meta{
		Engine: info.Engine, Labels: map[string]string{labelBuild: info.BuildID, labelTemplate: info.Template},
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
	return src, s.addBuild(&src, info.BuildID)
}

// preload stores the builds of templates: other hosts take them from there, and
// the first snapshot of each need not wait for some hundred megabytes.
func (s *stored) preload(ctx context.Context, ready func() []string, changed func()) {
	tick := time.NewTicker(preloadInterval)
	defer tick.Stop()
	for looked := time.Now(); ; {
		look := time.Since(looked) >= lookInterval
		if look {
			looked = time.Now()
		}
		s.preloadOnce(ctx, ready(), look, changed)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// preloadOnce stores those builds that are not known to be in the store, and
// forgets what it knows of others. With look, what was there is looked for again.
func (s *stored) preloadOnce(ctx context.Context, ready []string, look bool, changed func()) {
	s.keepBuilds(ready)
	for _, build := range ready {
		if look {
			s.lookFor(ctx, build)
		}
		if s.hasBuild(build) {
			continue
		}
		err := s.share(ctx, build)
		if err == nil {
			err = s.storeBuild(ctx, build)
		}
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("template build is not in the snapshot store yet", "build_id", build, "error", err)
			}
			continue
		}
		changed()
	}
}

func (s *stored) share(ctx context.Context, build string) error {
	parts, err := s.images.Parts(build)
	if err != nil {
		return err
	}
	var files []snapshot.LocalShared
	for _, p := range parts {
		if p.Key != "" {
			files = append(files, snapshot.LocalShared{SharedFile: snapshot.SharedFile{Name: p.Name, SHA256: p.Key, Size: p.Size}, Path: p.Path})
		}
	}
	stats, err := s.store.Share(ctx, files)
	if err != nil {
		return err
	}
	s.log.Info("template build is in the snapshot store", "build_id", build, "new_chunks", stats.NewChunks, "new_bytes", stats.NewBytes,
		"took_ms", stats.Took.Milliseconds())
	return nil
}

// DeleteStored removes a stored capture, wherever it was made, and ends an
// upload of it that is under way here.
func (s *stored) DeleteStored(ctx context.Context, id string) error {
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
	if err := s.store.Delete(ctx, id); err != nil {
		return refusal(err)
	}
	s.forgetBuild(id)
	if err := s.captures.MarkStored(id, false); err != nil && !errors.Is(err, hosterr.ErrNoSnapshot) {
		return err
	}
	return nil
}

// ListStored returns a page of what is in the owner's store.
func (s *stored) ListStored(ctx context.Context, owner, after string, limit int) (hostapi.StoredPage, error) {
	switch err := s.store.Claim(ctx, owner); {
	case errors.Is(err, snapshot.ErrForeign):
		return hostapi.StoredPage{}, &hostapi.Error{HTTPStatus: http.StatusConflict, Code: hostapi.CodeForeignStore, Message: err.Error()}
	case err != nil:
		return hostapi.StoredPage{}, refusal(err)
	}
	ids, more, err := s.store.Page(ctx, after, limit)
	if err != nil {
		return hostapi.StoredPage{}, refusal(err)
	}
	return hostapi.StoredPage{IDs: ids, More: more}, nil
}

// Fetch fills dir with the files of a stored capture and puts the build that it
// was made from among the templates' builds, if it is not there. The capture's
// manifest must have the digest, where there is one.
func (s *stored) Fetch(ctx context.Context, id, digest, dir string) error {
	began := time.Now()
	aside := filepath.Join(dir, ".fetched")
	m, err := s.store.Fetch(ctx, id, aside, snapshot.FetchOptions{
		Engine: s.engine,
		Digest: digest,
		Shared: func(snapshot.SharedFile) (string, bool) { return "", false },
		Admit:  s.admit,
	})
	if err != nil {
		return refusal(err)
	}
	build, err := buildOf(aside, m.Labels[labelBuild])
	if err != nil {
		return err
	}
	err = s.images.Import(ctx, build, func(ctx context.Context, to string) error {
		if err := os.Rename(filepath.Join(aside, image.PartsDir), filepath.Join(to, image.PartsDir)); err != nil {
			return fmt.Errorf("%w: it has no template build: %w", image.ErrCorrupt, err)
		}
		return s.store.FetchShared(ctx, &m, to, nil)
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
	s.log.InfoContext(ctx, "capture is fetched", "capture_id", id, "build_id", build, "took_ms", time.Since(began).Milliseconds())
	return os.RemoveAll(aside)
}

// buildOf reads which build a capture was made from. What the store's manifest
// says of it must agree: it is what a person goes by.
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

// admit refuses a capture that would fill the disk.
func (s *stored) admit(m *snapshot.Manifest) error {
	return s.captures.MakeRoom(func() (missing int64, err error) {
		room, err := s.room()
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

// refusal names an error of the store as boxes and the API do.
func refusal(err error) error {
	for is, as := range map[error]error{
		snapshot.ErrNotFound:    hosterr.ErrNoSnapshot,
		snapshot.ErrInvalid:     hosterr.ErrInvalid,
		snapshot.ErrIncomplete:  hosterr.ErrBadSnapshot,
		snapshot.ErrDamaged:     hosterr.ErrBadSnapshot,
		snapshot.ErrOtherFormat: hosterr.ErrBadSnapshot,
		snapshot.ErrOtherEngine: hosterr.ErrBadSnapshot,
		image.ErrCorrupt:        hosterr.ErrBadSnapshot,
		image.ErrOtherEngine:    hosterr.ErrBadSnapshot,
		image.ErrOtherGuest:     hosterr.ErrBadSnapshot,
		image.ErrNoTemplate:     hosterr.ErrBadSnapshot,
		errDeletedMeanwhile:     hosterr.ErrNoSnapshot,
	} {
		if errors.Is(err, is) {
			return fmt.Errorf("%w: %w", as, err)
		}
	}
	return err
}

// Run removes from the store what no snapshot has, until ctx ends.
func (s *stored) Run(ctx context.Context) {
	for {
		timer := time.NewTimer(sweepInterval/2 + rand.N(sweepInterval)) //nolint:gosec // nobody gains by guessing it
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		done, err := s.store.Collect(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.log.Error("what no snapshot has could not be removed from the store", "error", err)
			continue
		}
		s.log.Info("snapshot store was swept", "trashed", done.Trashed, "restored", done.Restored, "removed", done.Removed, "bytes", done.Bytes)
	}
}
