// Package pgtest starts real PostgreSQL 16 servers for tests.
package pgtest

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/guest/pg/postgres"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/tier"
	"github.com/berth-cloud/berth/timescale"
)

// Bin is the directory with the binaries that scripts/install-deps fetched, at a
// place where any user may run them. Tests that need them end here without them.
func Bin(t testing.TB) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(file) { // -trimpath
		out, err := exec.Command("go", "env", "GOMOD").Output() // a test runs in its package
		if err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(filepath.Dir(string(out)), "guest", "pg", "pgtest", "pgtest.go")
	}
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	from := filepath.Join(root, ".tools", "postgres-16")
	if _, err := os.Stat(filepath.Join(from, "bin", "postgres")); err != nil {
		tier.Missing(t, "PostgreSQL 16")
	}
	if os.Geteuid() != 0 || open(from) {
		return filepath.Join(from, "bin")
	}
	// A clone in root's home, which nobody else may enter.
	to, err := copied(from)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(to, "bin")
}

// open says whether any user may reach a directory.
func open(path string) bool {
	for ; ; path = filepath.Dir(path) {
		st, err := os.Stat(path)
		if err != nil || st.Mode()&0o001 == 0 {
			return false
		}
		if path == "/" {
			return true
		}
	}
}

// place is what a package's tests share: the programs, and fresh data.
var place struct {
	sync.Mutex
	dir  string
	data string
}

func copied(from string) (string, error) {
	place.Lock()
	defer place.Unlock()
	if place.dir != "" {
		return place.dir, nil
	}
	dir, err := os.MkdirTemp("", "berth-postgres-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	if out, err := exec.Command("cp", "-a", from+"/.", dir).CombinedOutput(); err != nil {
		return "", &fs.PathError{Op: "copy " + string(out), Path: from, Err: err}
	}
	place.dir = dir
	return dir, nil
}

// Main runs a package's tests and removes what they share.
func Main(m *testing.M) int {
	code := m.Run()
	for _, dir := range []string{place.dir, place.data} {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
	return code
}

// Init does as postgres.Init, by a copy of what that made for the first test.
func Init(t testing.TB, c postgres.Config) {
	t.Helper()
	place.Lock()
	defer place.Unlock()
	if place.data == "" {
		made, err := os.MkdirTemp("", "berth-data-")
		if err != nil {
			t.Fatal(err)
		}
		place.data = made
		if err := os.Chmod(made, 0o755); err != nil {
			t.Fatal(err)
		}
		first := c
		first.Dir = made
		if err := postgres.Init(Context(t), first); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(place.data, "data"), c.Data()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Config is of a server that belongs to one test, has no data yet, and an address and
// user that tests may use.
func Config(t testing.TB) postgres.Config {
	t.Helper()
	c := postgres.Config{
		Bin: Bin(t), Dir: dir(t), Run: dir(t), Port: freePort(t),
		Listen: netip.MustParseAddr("127.0.0.1"), Gateway: netip.MustParseAddr("127.0.0.2"),
		Program: "/bin/true", Output: io.Discard, Log: slog.New(slog.DiscardHandler),
	}
	if os.Geteuid() == 0 {
		c.User = "nobody"
		cred, err := c.Credential()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(c.Run, int(cred.Uid), int(cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// Context ends when a test has taken far too long.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timescale.Limit(3*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// dir is a directory that any user may enter, with a name that is short enough for
// a socket in it.
func dir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func freePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// Run starts a server with fresh data and keeps it until the test ends.
func Run(t testing.TB, c postgres.Config) *postgres.Server {
	t.Helper()
	ctx := Context(t)
	Init(t, c)
	s := postgres.New(c, Settings(), nil)
	Keep(t, s.Run)
	s.Start(postgres.Mode{}, false)
	if err := s.AwaitServing(ctx); err != nil {
		v, _ := s.View()
		t.Fatalf("%v\n%s", err, v.LogTail)
	}
	return s
}

// Keep runs something until the test ends.
func Keep(t testing.TB, run func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Repeat does something again and again until the test ends. It pauses when there was
// nothing to do: a guest that has stopped refuses at once.
func Repeat(t testing.TB, do func(ctx context.Context) (done bool)) {
	t.Helper()
	Keep(t, func(ctx context.Context) error {
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			if !do(ctx) {
				<-tick.C
			}
		}
		return nil
	})
}

// Settings are small, so that a test's server starts soon.
func Settings() pgapi.Settings {
	return pgapi.Settings{MemoryMB: 256, CPUs: 2, ArchiveIntervalSeconds: 60}
}

// pollInterval leaves the processors to who is waited for.
const pollInterval = 10 * time.Millisecond

// Await waits until ok, for as long as Context lasts.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx := Context(t)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within the test's time", what)
		}
	}
}
