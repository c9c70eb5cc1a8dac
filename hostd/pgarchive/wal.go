package pgarchive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
)

// walHeader is the header of a WAL file's object.
type walHeader struct {
	Size       int64     `json:"size"` // of the file
	SHA256     string    `json:"sha256"`
	WrittenAt  time.Time `json:"written_at"` // by the guest's clock
	ArchivedAt time.Time `json:"archived_at"`
}

// maxWALObject bounds the object of a WAL file.
const maxWALObject = maxHead + (pgapi.SegmentBytes/chunkBytes+1)*(4+maxFrame+tagBytes)

// Stored is what PutWAL did.
type Stored struct {
	Bytes  int64 // that it put into the bucket; 0: the file was there
	Mended error // what was there, and is kept aside now: ErrDamaged; nil: nothing was damaged
}

// PutWAL stores a WAL file. It is durable when PutWAL returns. The same bytes again
// are no error; others are ErrOtherBytes. What is there and damaged is replaced. What
// r has must be the bytes that f says.
func (a *Archive) PutWAL(ctx context.Context, f pgapi.WALFile, r io.Reader) (Stored, error) {
	stored, err := a.putWAL(ctx, f, r)
	if err != nil {
		err = fmt.Errorf("archive WAL file %.64q of %s: %w", f.Name, a.name, err)
	}
	return stored, err
}

func (a *Archive) putWAL(ctx context.Context, f pgapi.WALFile, r io.Reader) (stored Stored, err error) {
	if err := checkWAL(f); err != nil {
		return stored, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := a.unfenced(ctx); err != nil {
		return stored, err
	}
	object := walDir + f.Name
	switch there, has := a.hasWAL(ctx, object, f); {
	case errors.Is(has, ErrDamaged):
		stored.Mended = has
		stored.Bytes, err = a.mendWAL(ctx, f, r, has)
	case has != nil:
		err = has
	case there: // by a writer that may have died before its name was durable
		err = a.store.bucket.Sync(a.prefix() + walDir)
	default:
		stored.Bytes, err = a.addWAL(ctx, f, r)
	}
	if err == nil {
		err = a.unfenced(ctx)
	}
	if err != nil {
		return Stored{}, err
	}
	return stored, nil
}

// addWAL stores a file where none is.
func (a *Archive) addWAL(ctx context.Context, f pgapi.WALFile, r io.Reader) (int64, error) {
	object := walDir + f.Name
	raw, err := a.sealWAL(object, f, r)
	if err != nil {
		return 0, err
	}
	err = a.create(ctx, a.prefix()+object, raw)
	if !errors.Is(err, bucket.ErrExists) {
		return int64(len(raw)), err
	}
	there, err := a.hasWAL(ctx, object, f) // by another writer, just now
	switch {
	case err != nil:
		return 0, err
	case !there:
		return 0, errors.New("it was written and removed by others")
	}
	return 0, a.store.bucket.Sync(a.prefix() + walDir)
}

func checkWAL(f pgapi.WALFile) error {
	w, err := pgapi.ParseWALName(f.Name)
	if err != nil {
		return err
	}
	whole := w.Kind == pgapi.WALSegment || w.Kind == pgapi.WALPartial
	if f.Size < 0 || f.Size > pgapi.SegmentBytes || whole && f.Size != pgapi.SegmentBytes {
		return fmt.Errorf("it has %d bytes", f.Size)
	}
	if len(f.SHA256) != 2*sha256.Size || strings.Trim(f.SHA256, "0123456789abcdef") != "" {
		return errors.New("it has no SHA-256")
	}
	return nil
}

// hasWAL says whether a file is there with the same bytes, all of them: its guest has
// no others once it hears that it is.
func (a *Archive) hasWAL(ctx context.Context, object string, f pgapi.WALFile) (bool, error) {
	raw, err := bucket.Read(ctx, a.store.bucket, a.prefix()+object, maxWALObject)
	if errors.Is(err, bucket.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	content, sum, err := a.openWAL(object, raw)
	switch {
	case err != nil:
		return false, err
	case int64(len(content)) != f.Size || sum != f.SHA256:
		return false, fmt.Errorf("%w: %d bytes with the SHA-256 %s, not %d with %s", ErrOtherBytes, len(content), sum, f.Size, f.SHA256)
	}
	return true, nil
}

func (a *Archive) walHeader(ctx context.Context, object string) (h walHeader, err error) {
	raw, err := bucket.Read(ctx, a.store.bucket, a.prefix()+object, maxHead)
	if err == nil {
		_, err = a.open(object, raw, &h)
	}
	return h, err
}

func (a *Archive) sealWAL(object string, f pgapi.WALFile, r io.Reader) ([]byte, error) {
	h := walHeader{Size: f.Size, SHA256: f.SHA256, WrittenAt: f.WrittenAt.UTC(), ArchivedAt: a.store.now().UTC()}
	s, err := a.seal(object, h, f.Size == 0)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	r = io.TeeReader(r, sum)
	chunk := make([]byte, chunkBytes)
	for rest := f.Size; rest > 0; rest -= int64(len(chunk)) {
		chunk = chunk[:min(rest, chunkBytes)]
		if _, err := io.ReadFull(r, chunk); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = fmt.Errorf("%w: %w", ErrCut, err)
			}
			return nil, err
		}
		s.chunk(chunk, rest <= chunkBytes)
	}
	switch n, err := io.CopyN(io.Discard, r, 1); {
	case n > 0:
		return nil, fmt.Errorf("%w: more than %d came", ErrCut, f.Size)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.SHA256 {
		return nil, fmt.Errorf("%w: their SHA-256 is %s, not %s", ErrCut, got, f.SHA256)
	}
	return s.raw, nil
}

// WAL returns a WAL file and its SHA-256. ErrNotArchived means that the archive ends
// before it: where something of its timeline comes after it, it is missing.
func (a *Archive) WAL(ctx context.Context, name string) (content []byte, sum string, err error) {
	if content, sum, err = a.wal(ctx, name); err != nil {
		return nil, "", fmt.Errorf("WAL file %.64q of archive %s: %w", name, a.name, err)
	}
	return content, sum, nil
}

func (a *Archive) wal(ctx context.Context, name string) ([]byte, string, error) {
	w, err := pgapi.ParseWALName(name)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	object := walDir + name
	for again := false; ; again = true {
		raw, err := bucket.Read(ctx, a.store.bucket, a.prefix()+object, maxWALObject)
		if err == nil {
			return a.openWAL(object, raw)
		}
		if !errors.Is(err, bucket.ErrNotFound) {
			return nil, "", err
		}
		later, err := a.continues(ctx, w, name)
		switch {
		case err != nil:
			return nil, "", err
		case !later:
			return nil, "", ErrNotArchived
		case again: // and not archived between the two looks
			return nil, "", &DamagedError{Object: a.prefix() + object, Cause: errMissing}
		}
	}
}

func (a *Archive) openWAL(object string, raw []byte) ([]byte, string, error) {
	var h walHeader
	o, err := a.open(object, raw, &h)
	if err != nil {
		return nil, "", err
	}
	if h.Size < 0 || h.Size > pgapi.SegmentBytes {
		return nil, "", o.damaged(fmt.Errorf("it says that it has %d bytes", h.Size))
	}
	content := make([]byte, 0, h.Size)
	for {
		chunk, err := o.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, "", err
		}
		content = append(content, chunk...)
	}
	if got := sha256.Sum256(content); int64(len(content)) != h.Size || hex.EncodeToString(got[:]) != h.SHA256 {
		return nil, "", o.damaged(fmt.Errorf("it has %d bytes with the SHA-256 %x, not %d with %s", len(content), got, h.Size, h.SHA256))
	}
	return content, h.SHA256, nil
}

// continues says whether the archive has something that makes no sense without a
// file that it does not have: of a segment, one that comes after it on its timeline;
// of a history file, segments of its timeline, but for the first, which has none.
func (a *Archive) continues(ctx context.Context, w pgapi.WALName, name string) (bool, error) {
	after := a.prefix() + walDir + name
	switch {
	case w.Kind == pgapi.WALSegment:
	case w.Kind == pgapi.WALHistory && w.Timeline > 1:
		after = after[:len(after)-len(".history")]
	default:
		return false, nil
	}
	found, past := false, errors.New("this one answers")
	err := a.store.bucket.List(ctx, a.prefix()+walDir, after, func(o bucket.Object) error {
		next, err := pgapi.ParseWALName(o.Key[strings.LastIndexByte(o.Key, '/')+1:])
		if err != nil || next.Timeline == w.Timeline && next.Kind != pgapi.WALSegment {
			return nil
		}
		found = next.Timeline == w.Timeline
		return past
	})
	if err != nil && !errors.Is(err, past) {
		return false, err
	}
	return found, nil
}
