package pgarchive

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/bucket"
)

var errCut = errors.New("the connection was cut")

// lossy is a bucket that loses the answer to every other write.
type lossy struct {
	bucket.Bucket
	writes int
}

func (b *lossy) Passing(err error) bool { return errors.Is(err, errCut) }

func (b *lossy) Create(ctx context.Context, key string, content []byte) error {
	err := b.Bucket.Create(ctx, key, content)
	if b.writes++; err == nil && b.writes%2 == 1 {
		return errCut
	}
	return err
}

func TestAWriteWhoseAnswerIsLostIsDone(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(&lossy{Bucket: b}), first, key)
	putWAL(t, a, seg(1), segment(1))
	backup(t, a, "a", 1, 1, time.Now(), long())
	if err := a.Fence(t.Context()); err != nil {
		t.Fatal(err)
	}
	whole := open(t, New(b), first, key)
	if err := whole.Backup(t.Context(), "a", &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
	if n := len(objects(t, dir)); n != 1+3+1+1 {
		t.Errorf("%d objects", n)
	}
}

// blind is a bucket whose first listings lack an object that is there.
type blind struct {
	bucket.Bucket
	object string
	times  int
}

func (b *blind) Walk(ctx context.Context, prefix string, visit func(bucket.Object) error) error {
	b.times--
	return b.Bucket.Walk(ctx, prefix, func(o bucket.Object) error {
		if b.times >= 0 && strings.HasSuffix(o.Key, b.object) {
			return nil
		}
		return visit(o)
	})
}

// late is a bucket that gets two segments as it is asked for the first.
type late struct {
	bucket.Bucket
	archive func()
}

func (b *late) List(ctx context.Context, prefix, after string, visit func(bucket.Object) error) error {
	b.archive()
	return b.Bucket.List(ctx, prefix, after, visit)
}

func TestWhatIsArchivedMeanwhileIsNoGap(t *testing.T) {
	b, _ := directory(t)
	a := open(t, New(b), first, key)
	for n := range uint64(4) {
		stub(t, a, n+1, at(int(n)))
	}
	backup(t, a, "a", 1, 1, at(0), []byte("x"))
	seen := open(t, New(&blind{b, seg(3), 2}), first, key)
	if info, err := seen.Info(t.Context()); err != nil || info.LastLSN != "0/5000000" {
		t.Errorf("%+v, %v", info, err)
	}
	seen = open(t, New(&blind{b, seg(3), 2}), first, key)
	if _, err := seen.Choose(t.Context(), nil); err != nil {
		t.Error(err)
	}
	done := false
	asked := open(t, New(&late{b, func() {
		if !done {
			done = true
			putWAL(t, a, seg(5), segment(5))
			putWAL(t, a, seg(6), segment(6))
		}
	}}), first, key)
	if got, _, err := asked.WAL(t.Context(), seg(5)); err != nil || !bytes.Equal(got, segment(5)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// away is a bucket that does not answer.
type away struct{ bucket.Bucket }

func (away) Passing(error) bool                                                    { return false }
func (away) Stat(context.Context, string) (bucket.Object, error)                   { return bucket.Object{}, errCut }
func (away) Walk(context.Context, string, func(bucket.Object) error) error         { return errCut }
func (away) List(context.Context, string, string, func(bucket.Object) error) error { return errCut }
func (away) Create(context.Context, string, []byte) error                          { return errCut }
func (away) RemoveAll(context.Context, string) error                               { return errCut }

// A bucket that is away is not one that has lost something.
func TestABucketThatIsAwayIsNotDamaged(t *testing.T) {
	b, _ := directory(t)
	a := open(t, New(b), first, key)
	stub(t, a, 1, epoch)
	backup(t, a, "a", 1, 1, epoch, []byte("x"))
	gone := open(t, New(away{b}), first, key)
	for name, err := range map[string]error{
		"put":    errOf(gone.PutWAL(t.Context(), walFile(seg(2), segment(2)), bytes.NewReader(segment(2)))),
		"wal":    errOf2(gone.WAL(t.Context(), seg(2))),
		"backup": errOf(gone.PutBackup(t.Context(), "b", epoch, from(strings.NewReader("x")))),
		"info":   errOf(gone.Info(t.Context())),
		"choose": errOf(gone.Choose(t.Context(), nil)),
		"prune":  errOf(gone.Prune(t.Context(), epoch)),
		"fence":  gone.Fence(t.Context()),
		"fenced": errOf(gone.Fenced(t.Context())),
		"delete": New(away{b}).Delete(t.Context(), db),
	} {
		if !errors.Is(err, errCut) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrNothing) || errors.Is(err, ErrNotArchived) || errors.Is(err, ErrFenced) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

func errOf2[T, U any](_ T, _ U, err error) error { return err }
