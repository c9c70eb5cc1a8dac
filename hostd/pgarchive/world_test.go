package pgarchive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/bucket/s3test"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

const (
	db     = "0b0e7a52-6a0c-4b5e-9d3c-2f8f6f1a7c11"
	first  = db + "/1"
	second = db + "/2"
)

var (
	key      = bytes.Repeat([]byte{7}, keyBytes)
	otherKey = bytes.Repeat([]byte{8}, keyBytes)
	epoch    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

func at(minutes int) time.Time { return epoch.Add(time.Duration(minutes) * time.Minute) }

// openBucket opens the bucket of a URL.
func openBucket(t testing.TB, raw string) bucket.Bucket {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.Open(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// directory is a bucket with its directory.
func directory(t testing.TB) (bucket.Bucket, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bucket")
	return openBucket(t, "file://"+dir), dir
}

// each runs a test with a directory and with S3.
func each(t *testing.T, test func(t *testing.T, s *Store, dir string)) {
	t.Run("directory", func(t *testing.T) {
		b, dir := directory(t)
		test(t, New(b), dir)
	})
	t.Run("s3", func(t *testing.T) {
		for name, value := range s3test.Credentials() {
			t.Setenv(name, value)
		}
		server := s3test.New(t)
		test(t, New(openBucket(t, s3test.URL(server.Addr))), server.Dir)
	})
}

func open(t testing.TB, s *Store, name string, key []byte) *Archive {
	t.Helper()
	a, err := s.Open(hostapi.Archive{Name: name, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// segment is the content of a segment: text, random bytes, and zeros to its end.
func segment(seed uint64) []byte {
	content := make([]byte, pgapi.SegmentBytes)
	n := copy(content, bytes.Repeat(fmt.Appendf(nil, "the plain text of %d. ", seed), 100_000))
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(content[n : n+3<<20]) // it never fails
	return content
}

func walFile(name string, content []byte) pgapi.WALFile {
	sum := sha256.Sum256(content)
	return pgapi.WALFile{Name: name, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), WrittenAt: epoch}
}

func putWAL(t testing.TB, a *Archive, name string, content []byte) {
	t.Helper()
	if _, err := a.PutWAL(t.Context(), walFile(name, content), bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

func seg(n uint64) string { return pgapi.SegmentName(1, n) }

func lsn(segment uint64, offset uint32) string {
	at := segment*pgapi.SegmentBytes + uint64(offset)
	return fmt.Sprintf("%X/%X", at>>32, uint32(at))
}

// stub stores a segment's object with a header alone, for tests that do not read it.
func stub(t testing.TB, a *Archive, n uint64, written time.Time) {
	t.Helper()
	object := walDir + seg(n)
	s, err := a.seal(object, walHeader{Size: pgapi.SegmentBytes, WrittenAt: written, ArchivedAt: written.Add(time.Second)}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.create(context.Background(), a.prefix()+object, s.raw); err != nil {
		t.Fatal(err)
	}
}

// backup stores a base backup that spans segments and was finished at a moment.
func backup(t testing.TB, a *Archive, id string, start, stop uint64, finished time.Time, content []byte) hostapi.BaseBackup {
	t.Helper()
	now := a.store.now
	a.store.now = func() time.Time { return finished }
	defer func() { a.store.now = now }()
	b, err := a.PutBackup(context.Background(), id, finished.Add(-time.Minute), func(w io.Writer) (pgapi.BackupInfo, error) {
		_, err := w.Write(content)
		return pgapi.BackupInfo{StartLSN: lsn(start, 0x28), StopLSN: lsn(stop, 0x100), Timeline: 1, Files: 1, DataBytes: int64(len(content))}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// damaged fails the test unless err names the object of an archive.
func damaged(t testing.TB, err error, object string) {
	t.Helper()
	var d *DamagedError
	if !errors.Is(err, ErrDamaged) || !errors.As(err, &d) || !strings.HasSuffix(d.Object, "/"+object) || !strings.HasPrefix(d.Object, root) {
		t.Errorf("%v; want damage of %s", err, object)
	}
}

func objects(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(dir, path)
			all = append(all, rel)
		}
		return err
	}); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return all
}

// memory is a bucket in memory, for tests with many archives.
type memory struct {
	bucket.Bucket // nil: what a test does not need
	mu            sync.Mutex
	objects       map[string][]byte
	budget        int // removals until all calls fail; below 0: any number
}

var errCrashed = errors.New("the writer crashed")

func newMemory() *memory { return &memory{objects: map[string][]byte{}, budget: -1} }

func (m *memory) Passing(error) bool { return false }
func (m *memory) Sync(...string) error {
	return nil
}

func (m *memory) Create(_ context.Context, key string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; ok {
		return bucket.ErrExists
	}
	m.objects[key] = bytes.Clone(content)
	return nil
}

func (m *memory) Get(_ context.Context, key string) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, ok := m.objects[key]
	if !ok {
		return nil, 0, bucket.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(content)), int64(len(content)), nil
}

func (m *memory) Stat(_ context.Context, key string) (bucket.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	content, ok := m.objects[key]
	if !ok {
		return bucket.Object{}, bucket.ErrNotFound
	}
	return bucket.Object{Key: key, Size: int64(len(content))}, nil
}

func (m *memory) Remove(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.budget == 0 {
		return errCrashed
	}
	m.budget--
	delete(m.objects, key)
	return nil
}

func (m *memory) Walk(_ context.Context, prefix string, visit func(bucket.Object) error) error {
	m.mu.Lock()
	var all []bucket.Object
	for key, content := range m.objects {
		if strings.HasPrefix(key, prefix) {
			all = append(all, bucket.Object{Key: key, Size: int64(len(content)), Written: epoch})
		}
	}
	m.mu.Unlock()
	for _, o := range all {
		if err := visit(o); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) RemoveAll(ctx context.Context, prefix string) error {
	var keys []string
	if err := m.Walk(ctx, prefix, func(o bucket.Object) error { keys = append(keys, o.Key); return nil }); err != nil {
		return err
	}
	slices.Sort(keys)
	return bucket.RemoveEach(ctx, m, keys)
}

func (m *memory) Put(_ context.Context, key string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[key] = bytes.Clone(content)
	return nil
}

func (m *memory) List(_ context.Context, prefix, after string, visit func(bucket.Object) error) error {
	m.mu.Lock()
	keys := slices.Sorted(maps.Keys(m.objects))
	m.mu.Unlock()
	for _, key := range keys {
		name, below := strings.CutPrefix(key, prefix)
		if !below || strings.Contains(name, "/") || key <= after {
			continue
		}
		if err := visit(bucket.Object{Key: key, Written: epoch}); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) Sweep(context.Context, string, time.Time) error { return nil }
