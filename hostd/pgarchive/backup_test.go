package pgarchive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
)

// long is a stream of more than two parts, with an end in the middle of a chunk.
func long() []byte {
	var all []byte
	for i := range uint64(3) {
		all = append(all, segment(i)...)
	}
	return all[:2*partChunks*chunkBytes+5*chunkBytes+777]
}

// info is that of a base backup in segments 2 and 3.
func info() pgapi.BackupInfo {
	return pgapi.BackupInfo{StartLSN: lsn(2, 0x28), StopLSN: lsn(3, 0x100), Timeline: 1, Files: 900, DataBytes: 30 << 20}
}

func from(r io.Reader) func(io.Writer) (pgapi.BackupInfo, error) {
	return func(w io.Writer) (pgapi.BackupInfo, error) {
		_, err := io.Copy(w, r)
		return info(), err
	}
}

func TestABaseBackupComesBackAsItWas(t *testing.T) {
	each(t, func(t *testing.T, s *Store, dir string) {
		a := open(t, s, first, key)
		for name, content := range map[string][]byte{
			"long": long(), "one-byte": {1}, "a-chunk": make([]byte, chunkBytes),
			"a-part": make([]byte, partChunks*chunkBytes), "a-part-and-one": make([]byte, partChunks*chunkBytes+1),
		} {
			before := time.Now()
			// In pieces of odd lengths.
			b, err := a.PutBackup(t.Context(), name, before, from(iotest.HalfReader(bytes.NewReader(content))))
			if err != nil {
				t.Fatal(err)
			}
			if b.ID != name || !b.StartedAt.Equal(before) || b.FinishedAt.Before(before) || b.StartLSN != lsn(2, 0x28) || b.StopLSN != lsn(3, 0x100) || b.SizeBytes == 0 || b.DataBytes != info().DataBytes {
				t.Errorf("%+v", b)
			}
			var got bytes.Buffer
			if err := open(t, s, first, key).Backup(t.Context(), name, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
				t.Errorf("%s: %d bytes, %v", name, got.Len(), err)
			}
			parts := objects(t, filepath.Join(dir, root, first, partsDir, name))
			if want := (len(content)-1)/(partChunks*chunkBytes) + 1; len(parts) != want {
				t.Errorf("%s is in %v, want %d", name, parts, want)
			}
		}
		if _, err := a.PutBackup(t.Context(), "long", time.Now(), from(strings.NewReader("x"))); !errors.Is(err, ErrExists) {
			t.Errorf("the same id again: %v", err)
		}
		if err := a.Backup(t.Context(), "long", io.Discard); err != nil {
			t.Errorf("after the same id again: %v", err)
		}
		if err := a.Backup(t.Context(), "none", io.Discard); !errors.Is(err, ErrNothing) {
			t.Errorf("none: %v", err)
		}
		broken := errors.New("the guest went away")
		if err := a.Backup(t.Context(), "long", writer(func([]byte) (int, error) { return 0, broken })); !errors.Is(err, broken) {
			t.Errorf("to nobody: %v", err)
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestABaseBackupThatFailsIsNone(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	broken := errors.New("the guest went away")
	gone, cancel := context.WithCancel(t.Context())
	for name, c := range map[string]struct {
		ctx    context.Context
		id     string
		stream func(io.Writer) (pgapi.BackupInfo, error)
		want   error
	}{
		"cut off":        {nil, "x", from(io.MultiReader(bytes.NewReader(long()), iotest.ErrReader(broken))), broken},
		"nothing":        {nil, "x", from(strings.NewReader("")), ErrCut},
		"no id":          {nil, "", from(strings.NewReader("x")), ErrInvalid},
		"a way out":      {nil, "../x", from(strings.NewReader("x")), ErrInvalid},
		"a slash":        {nil, "a/b", from(strings.NewReader("x")), ErrInvalid},
		"no position":    {nil, "x", func(w io.Writer) (pgapi.BackupInfo, error) { i := info(); i.StopLSN = ""; return i, put(w) }, nil},
		"it ends before": {nil, "x", func(w io.Writer) (pgapi.BackupInfo, error) { i := info(); i.StopLSN = "0/1"; return i, put(w) }, nil},
		"a long position": {nil, "x", func(w io.Writer) (pgapi.BackupInfo, error) {
			i := info()
			i.StartLSN = strings.Repeat("0", maxHeader) + i.StartLSN
			return i, put(w)
		}, nil},
		"no timeline":       {nil, "x", func(w io.Writer) (pgapi.BackupInfo, error) { i := info(); i.Timeline = 0; return i, put(w) }, nil},
		"the caller is off": {gone, "x", func(w io.Writer) (pgapi.BackupInfo, error) { cancel(); return info(), put(w) }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			_, err := a.PutBackup(ctx, c.id, time.Now(), c.stream)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}
			if left := objects(t, dir); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func put(w io.Writer) error {
	_, err := w.Write([]byte("x"))
	return err
}

// A machine that slept for a day finds its parts taken for a dead writer's.
func TestABaseBackupThatTookTooLongIsNone(t *testing.T) {
	b, dir := directory(t)
	s := New(b)
	a := open(t, s, first, key)
	now := epoch
	s.now = func() time.Time { now = now.Add(orphanAge * 2 / 3); return now }
	if _, err := a.PutBackup(t.Context(), "x", epoch, from(strings.NewReader("x"))); err == nil {
		t.Error("it was taken")
	}
	if left := objects(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// interrupted is a bucket whose writer dies before its n-th write.
type interrupted struct {
	bucket.Bucket
	left int
}

func (b *interrupted) Create(ctx context.Context, key string, content []byte) error {
	if b.left--; b.left < 0 {
		return errCrashed
	}
	return b.Bucket.Create(ctx, key, content)
}

func (b *interrupted) RemoveAll(ctx context.Context, prefix string) error {
	if b.left < 0 {
		return errCrashed
	}
	return b.Bucket.RemoveAll(ctx, prefix)
}

func TestABaseBackupIsThereOnceItIsWhole(t *testing.T) {
	dirBucket, dir := directory(t)
	for writes := range 4 { // three parts and a manifest
		a := open(t, New(&interrupted{dirBucket, writes}), first, key)
		id := string(rune('a' + writes))
		if _, err := a.PutBackup(t.Context(), id, time.Now(), from(bytes.NewReader(long()))); !errors.Is(err, errCrashed) {
			t.Fatal(err)
		}
		if err := a.Backup(t.Context(), id, io.Discard); !errors.Is(err, ErrNothing) {
			t.Errorf("after %d writes: %v", writes, err)
		}
	}
	s := New(dirBucket)
	a := open(t, s, first, key)
	if got, err := a.Info(t.Context()); err != nil || len(got.BaseBackups) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	// What they left goes once it is old, and what is being made stays.
	if _, err := a.Prune(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if n := len(objects(t, dir)); n != 0+1+2+3 {
		t.Errorf("%d objects are left", n)
	}
	half := filepath.Join(dir, root, first, walDir, "."+seg(1)+"-1")
	if err := os.MkdirAll(filepath.Dir(half), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Info(t.Context()); err != nil || got.LastLSN != "" {
		t.Errorf("of what a dead writer left: %+v, %v", got, err)
	}
	s.now = func() time.Time { return time.Now().Add(orphanAge + time.Hour) }
	got, err := a.Prune(t.Context(), time.Now())
	if left := objects(t, dir); err != nil || len(left) > 0 || got.SizeBytes != 0 {
		t.Errorf("left: %v, %+v, %v", left, got, err)
	}
}
