package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/hostd/bucket/s3test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const engine = "chvemu v1"

// open opens a store that is closed at the end of the test.
func open(t testing.TB, url string, opt Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), url, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// fileStore opens a store in a directory and returns both.
func fileStore(t testing.TB, opt Options) (*Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	return open(t, "file://"+dir, opt), dir
}

// capture is a source like a host's: RAM with holes and repeated pages, a sparse
// disk, small files, and a shared image.
type capture struct {
	dir string
	Source
}

func newCapture(t testing.TB, seed uint64) capture {
	t.Helper()
	c := capture{dir: t.TempDir(), Source: Source{Meta: Meta{Engine: engine, Kernel: "6.12", Labels: map[string]string{"template": "base"}}}}
	random := rand.New(rand.NewPCG(seed, 1))
	// A quarter is the same in every capture, like the memory of boxes of one
	// template.
	same := rand.New(rand.NewPCG(42, 1))
	ram := sparse(t, filepath.Join(c.dir, "memory-ranges"), 16*ChunkSize)
	scatter(t, ram, same, 0, 4*ChunkSize, 40)
	scatter(t, ram, random, 4*ChunkSize, 16*ChunkSize, 30)
	disk := sparse(t, filepath.Join(c.dir, "overlay.img"), 40*ChunkSize+3*page)
	scatter(t, disk, random, 0, 20*ChunkSize, 10)
	if _, err := disk.WriteAt([]byte("the last bytes"), 40*ChunkSize+3*page-14); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(c.dir, "config.json"), []byte(`{"cpus":1}`))
	write(t, filepath.Join(c.dir, "empty"), nil)
	for _, name := range []string{"memory-ranges", "overlay.img", "config.json", "empty"} {
		c.Files = append(c.Files, LocalFile{Name: name, Path: filepath.Join(c.dir, name)})
	}
	image := make([]byte, 3*ChunkSize+100)
	fill(same, image)
	write(t, filepath.Join(c.dir, "layer"), image)
	sum := sha256.Sum256(image)
	c.Shared = []LocalShared{{
		SharedFile: SharedFile{Name: "build/layers/0.ext4", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(image))},
		Path:       filepath.Join(c.dir, "layer"),
	}}
	return c
}

func sparse(t testing.TB, path string, size int64) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// scatter writes pages of random bytes between two offsets.
func scatter(t testing.TB, f *os.File, r *rand.Rand, from, to int64, pages int) {
	t.Helper()
	buf := make([]byte, page)
	for range pages {
		fill(r, buf)
		if _, err := f.WriteAt(buf, from+r.Int64N((to-from)/page)*page); err != nil {
			t.Fatal(err)
		}
	}
}

func fill(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// same fails the test unless the fetched directory equals what was captured.
func (c capture) same(t testing.TB, dir string) {
	t.Helper()
	files := append([]LocalFile(nil), c.Files...)
	for _, f := range c.Shared {
		files = append(files, LocalFile{Name: f.Name, Path: f.Path})
	}
	for _, f := range files {
		want, err := os.ReadFile(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, f.Name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s came back with %d bytes, %v; %d were stored", f.Name, len(got), err, len(want))
		}
		if a, b := blocks(t, filepath.Join(dir, f.Name)), blocks(t, f.Path); a > b+8 {
			t.Errorf("%s takes %d blocks of disk, and %d did where it was stored: holes were filled", f.Name, a, b)
		}
	}
}

func blocks(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks
}

// objects lists the files under a prefix of a store's directory.
func objects(t testing.TB, dir, prefix string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(filepath.Join(dir, prefix), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// leftovers fails the test if a failed fetch has left anything behind.
func leftovers(t testing.TB, parent string) {
	t.Helper()
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) > 0 {
		t.Errorf("a failed fetch left %v, %v", entries, err)
	}
}

// newS3 starts an S3 server, with this process's credentials set to its own.
func newS3(t testing.TB) *s3test.Server {
	t.Helper()
	for name, value := range s3test.Credentials() {
		t.Setenv(name, value)
	}
	return s3test.New(t)
}

// cutter is a proxy that cuts every connection while told to.
type cutter struct {
	net.Listener
	to    string
	after func() int64 // bytes of the answer that the next connection may carry; below 0: all
}

func newCutter(t testing.TB, to string, after func() int64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, to: to, after: after}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c.serve()
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
	})
	return c
}

func (c *cutter) serve() {
	for {
		in, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", c.to)
			if err != nil {
				return
			}
			defer out.Close()
			go func() {
				_, _ = io.Copy(out, in)
				out.Close()
			}()
			if n := c.after(); n >= 0 {
				_, _ = io.CopyN(in, out, n)
				_ = in.(*net.TCPConn).SetLinger(0)
				return
			}
			_, _ = io.Copy(in, out)
		}()
	}
}

func keep(t testing.TB, s *Store, id string, c capture) Stats {
	t.Helper()
	m, stats, err := s.Upload(t.Context(), id, c.Source)
	if err != nil {
		t.Fatal(err)
	}
	if m.ID != id || len(m.Files) != len(c.Files) {
		t.Fatalf("manifest = %+v", m)
	}
	return stats
}
