package pgarchive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/timescale"
)

// manifest is the header of the object that makes a base backup be there.
type manifest struct {
	ID          string    `json:"id"`
	StartedAt   time.Time `json:"started_at"`
	FinishedAt  time.Time `json:"finished_at"`
	StartLSN    string    `json:"start_lsn"`
	StopLSN     string    `json:"stop_lsn"`
	Timeline    uint32    `json:"timeline"`
	Files       int       `json:"files"`
	DataBytes   int64     `json:"data_bytes"`
	Parts       int       `json:"parts"`
	Size        int64     `json:"size"` // of the stream
	SHA256      string    `json:"sha256"`
	StoredBytes int64     `json:"stored_bytes"` // of the parts

	start, stop uint64 // the segments that those LSNs are in
}

// partHeader is the header of a part's object.
type partHeader struct {
	ArchivedAt time.Time `json:"archived_at"`
}

// A part has partChunks chunks; the last one has what is left.
const (
	partChunks = 16
	maxPart    = maxHead + partChunks*(4+maxFrame+tagBytes)
	maxParts   = 1 << 20
)

func partObject(id string, n int) string { return fmt.Sprintf("%s%s/%06d", partsDir, id, n) }

func (m *manifest) base() hostapi.BaseBackup {
	return hostapi.BaseBackup{
		ID: m.ID, StartedAt: m.StartedAt, FinishedAt: m.FinishedAt,
		StartLSN: m.StartLSN, StopLSN: m.StopLSN, SizeBytes: m.StoredBytes, DataBytes: m.DataBytes,
	}
}

// check reads what the manifest says of positions. Clients are told of the moment that it
// was finished in milliseconds, and may ask for that one: it is the next whole one.
func (m *manifest) check() error {
	m.FinishedAt = m.FinishedAt.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
	start, err1 := pgapi.ParseLSN(m.StartLSN)
	stop, err2 := pgapi.ParseLSN(m.StopLSN)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if start >= stop || m.Timeline == 0 || m.Parts < 1 || m.Parts > maxParts {
		return fmt.Errorf("a base backup from %s to %s on timeline %d in %d parts", m.StartLSN, m.StopLSN, m.Timeline, m.Parts)
	}
	// A backup that stops where a segment begins does not need that segment.
	m.start, m.stop = start/pgapi.SegmentBytes, (stop-1)/pgapi.SegmentBytes
	return nil
}

// cleanLimit is how long the parts of a base backup that failed may take to go.
var cleanLimit = timescale.Limit(time.Minute)

// PutBackup stores what stream writes as the base backup id, which was started at a
// moment. It is there once PutBackup has returned, and to be restored once the WAL up
// to its stop is archived. What is left when it fails, Prune removes.
func (a *Archive) PutBackup(ctx context.Context, id string, started time.Time, stream func(w io.Writer) (pgapi.BackupInfo, error)) (hostapi.BaseBackup, error) {
	m, err := a.putBackup(ctx, id, started, stream)
	if err != nil {
		return hostapi.BaseBackup{}, fmt.Errorf("archive base backup %.64q of %s: %w", id, a.name, err)
	}
	return m.base(), nil
}

func (a *Archive) putBackup(ctx context.Context, id string, started time.Time, stream func(w io.Writer) (pgapi.BackupInfo, error)) (*manifest, error) {
	if !backupID.MatchString(id) {
		return nil, fmt.Errorf("%w: an id of lower-case letters, digits and hyphens is wanted", ErrInvalid)
	}
	if err := a.unfenced(ctx); err != nil {
		return nil, err
	}
	if _, err := a.manifest(ctx, id); err == nil || !errors.Is(err, ErrNothing) {
		return nil, errors.Join(ErrExists, err)
	}
	m := &manifest{ID: id, StartedAt: started.UTC()}
	if err := a.putParts(ctx, m, stream); err != nil {
		if !errors.Is(err, bucket.ErrExists) { // parts of another writer
			cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
			defer cancel()
			err = errors.Join(err, a.store.bucket.RemoveAll(cleaning, a.prefix()+partsDir+id+"/"))
		}
		return nil, err
	}
	// From here on nothing is removed: a write that failed may have been done.
	s, err := a.seal(backupsDir+id, m, true)
	if err != nil {
		return nil, err
	}
	if err := a.create(ctx, a.prefix()+backupsDir+id, s.raw); err != nil {
		return nil, err
	}
	return m, a.unfenced(ctx)
}

// putParts stores the parts and completes the manifest.
func (a *Archive) putParts(ctx context.Context, m *manifest, stream func(w io.Writer) (pgapi.BackupInfo, error)) error {
	w := &partWriter{ctx: ctx, archive: a, m: m, sum: sha256.New(), chunk: make([]byte, 0, chunkBytes)}
	info, err := stream(w)
	if err == nil {
		err = w.close()
	}
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return err
	}
	m.FinishedAt = a.store.now().UTC()
	if m.FinishedAt.Sub(w.stored) > orphanAge/2 { // this machine slept: Prune may take them for a dead writer's
		return errors.New("its last part was written too long ago")
	}
	m.StartLSN, m.StopLSN, m.Timeline, m.Files, m.DataBytes = info.StartLSN, info.StopLSN, info.Timeline, info.Files, info.DataBytes
	m.SHA256 = hex.EncodeToString(w.sum.Sum(nil))
	return m.check()
}

// partWriter cuts a stream into parts.
type partWriter struct {
	ctx     context.Context // that of the one call that it lives in
	archive *Archive
	m       *manifest
	sum     hash.Hash
	chunk   []byte // is sealed when more comes: the last one of a part is sealed as that
	part    *sealer
	chunks  int       // in part
	stored  time.Time // the last part
	err     error
}

func (w *partWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 && w.err == nil {
		if len(w.chunk) == chunkBytes {
			w.err = w.seal(w.chunks == partChunks-1)
		}
		k := min(len(p), chunkBytes-len(w.chunk))
		w.chunk = append(w.chunk, p[:k]...)
		p = p[k:]
	}
	return n - len(p), w.err
}

// seal puts the chunk into the part, and stores the part if that is its last.
func (w *partWriter) seal(last bool) error {
	object := partObject(w.m.ID, w.m.Parts)
	if w.part == nil {
		if w.m.Parts == maxParts {
			return fmt.Errorf("it has more than %d parts", maxParts)
		}
		part, err := w.archive.seal(object, partHeader{ArchivedAt: w.archive.store.now().UTC()}, false)
		if err != nil {
			return err
		}
		w.part, w.chunks = part, 0
	}
	w.part.chunk(w.chunk, last)
	w.sum.Write(w.chunk)
	w.chunks++
	w.m.Size += int64(len(w.chunk))
	w.chunk = w.chunk[:0]
	if !last {
		return nil
	}
	raw := w.part.raw
	w.part, w.chunks = nil, 0
	w.stored = w.archive.store.now()
	w.m.Parts++
	w.m.StoredBytes += int64(len(raw))
	return w.archive.create(w.ctx, w.archive.prefix()+object, raw)
}

func (w *partWriter) close() error {
	if w.err == nil && len(w.chunk) == 0 {
		return fmt.Errorf("%w: nothing came", ErrCut)
	}
	if w.err == nil {
		w.err = w.seal(true)
	}
	return w.err
}

// manifest reads a base backup's manifest. ErrNothing: there is none of that id.
func (a *Archive) manifest(ctx context.Context, id string) (*manifest, error) {
	object := backupsDir + id
	raw, err := bucket.Read(ctx, a.store.bucket, a.prefix()+object, maxHead)
	if errors.Is(err, bucket.ErrNotFound) {
		return nil, fmt.Errorf("%w: there is no base backup %s", ErrNothing, id)
	}
	if err != nil {
		return nil, err
	}
	m := &manifest{}
	o, err := a.open(object, raw, m)
	if err != nil {
		return nil, err
	}
	if !o.ended || len(o.rest) > 0 {
		return nil, o.damaged(errors.New("something follows its end"))
	}
	if err := m.check(); err != nil {
		return nil, o.damaged(err)
	}
	if m.ID != id {
		return nil, o.damaged(fmt.Errorf("it is of base backup %s", m.ID))
	}
	return m, nil
}

// Backup writes a base backup to w. Each chunk is verified before it is written;
// whether the whole is, the error tells.
func (a *Archive) Backup(ctx context.Context, id string, w io.Writer) error {
	if err := a.backup(ctx, id, w); err != nil {
		return fmt.Errorf("base backup %.64q of archive %s: %w", id, a.name, err)
	}
	return nil
}

func (a *Archive) backup(ctx context.Context, id string, w io.Writer) error {
	if !backupID.MatchString(id) {
		return fmt.Errorf("%w: no base backup has that id", ErrInvalid)
	}
	m, err := a.manifest(ctx, id)
	if err != nil {
		return err
	}
	sum := sha256.New()
	var size int64
	for n := range m.Parts {
		k, err := a.copyPart(ctx, partObject(id, n), io.MultiWriter(sum, w))
		if err != nil {
			return err
		}
		size += k
	}
	if got := hex.EncodeToString(sum.Sum(nil)); size != m.Size || got != m.SHA256 {
		return &DamagedError{Object: a.prefix() + backupsDir + id, Cause: fmt.Errorf(
			"its parts have %d bytes with the SHA-256 %s, not %d with %s", size, got, m.Size, m.SHA256)}
	}
	return nil
}

func (a *Archive) copyPart(ctx context.Context, object string, w io.Writer) (int64, error) {
	raw, err := bucket.Read(ctx, a.store.bucket, a.prefix()+object, maxPart)
	if errors.Is(err, bucket.ErrNotFound) {
		return 0, &DamagedError{Object: a.prefix() + object, Cause: errMissing}
	}
	if err != nil {
		return 0, err
	}
	o, err := a.open(object, raw, &partHeader{})
	if err != nil {
		return 0, err
	}
	var size int64
	for {
		chunk, err := o.next()
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, err
		}
		if _, err := w.Write(chunk); err != nil {
			return size, err
		}
		size += int64(len(chunk))
	}
}
