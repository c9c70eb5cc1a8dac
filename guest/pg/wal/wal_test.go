package wal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/guest/pgapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	seg1 = "000000010000000000000001"
	seg2 = "000000010000000000000002"
	seg3 = "000000010000000000000003"
)

// data is a data directory with WAL files.
func data(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"pg_wal", "pg_wal/archive_status"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, "pg_wal", name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func segment(b byte) []byte { return bytes.Repeat([]byte{b}, pgapi.SegmentBytes) }

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func ctx(t *testing.T) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

func offer2(t *testing.T, a *Archive, name string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- a.Offer(ctx(t), name) }()
	return done
}

func TestAFileIsArchivedOnceTheHostHasStoredIt(t *testing.T) {
	content := segment(7)
	dir := data(t, map[string][]byte{seg1: content})
	written := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(dir, "pg_wal", seg1), written, written); err != nil {
		t.Fatal(err)
	}
	a := NewArchive(dir, Slow)
	done := offer2(t, a, seg1)
	file, ok := a.Next(ctx(t))
	if want := (pgapi.WALFile{Name: seg1, Size: pgapi.SegmentBytes, SHA256: sum(content), WrittenAt: written}); !ok || file != want {
		t.Fatalf("%v, want %v", file, want)
	}
	f, _, err := a.Open(seg1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
		t.Errorf("other bytes, or %v", err)
	}
	f.Close()
	if err := a.Stored(seg1, sum(nil)); !errors.Is(err, ErrOtherBytes) {
		t.Errorf("other bytes: %v", err)
	}
	if err := a.Stored(seg2, sum(content)); !errors.Is(err, ErrNotOffered) {
		t.Errorf("another file: %v", err)
	}
	select {
	case err := <-done:
		t.Fatalf("PostgreSQL was let go on: %v", err)
	default:
	}
	if err := a.Stored(seg1, file.SHA256); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	// The answer was lost: both sides ask again.
	if err := a.Stored(seg1, file.SHA256); err != nil {
		t.Errorf("stored again: %v", err)
	}
	if err := a.Stored(seg1, sum(nil)); !errors.Is(err, ErrOtherBytes) {
		t.Errorf("stored again with other bytes: %v", err)
	}
	if err := <-offer2(t, a, seg1); err != nil {
		t.Errorf("offered again: %v", err)
	}
	if st := a.Status(); st.LastArchived != seg1 {
		t.Errorf("%+v", st)
	}
}

func TestAFileWhoseCommandEndedMayStillBeStored(t *testing.T) {
	a := NewArchive(data(t, map[string][]byte{seg1: segment(1)}), Slow)
	c, cancel := context.WithCancel(ctx(t))
	done := make(chan error, 1)
	go func() { done <- a.Offer(c, seg1) }()
	file, _ := a.Next(ctx(t))
	cancel()
	if err := <-done; err == nil {
		t.Fatal("a command that ended was told that all is well")
	}
	if err := a.Stored(seg1, file.SHA256); err != nil {
		t.Fatal(err)
	}
	if err := <-offer2(t, a, seg1); err != nil {
		t.Errorf("offered again: %v", err)
	}
}

func TestFilesThatAreNotArchived(t *testing.T) {
	dir := data(t, map[string][]byte{seg1: []byte("short"), seg3: append(segment(1), 1)})
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "pg_wal", "00000002.history")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "pg_wal", "00000003.history"), 0o755); err != nil {
		t.Fatal(err)
	}
	a := NewArchive(dir, Slow)
	for _, name := range []string{seg1, seg2, seg3, "00000002.history", "00000003.history", "../PG_VERSION", "x"} {
		if err := a.Offer(ctx(t), name); err == nil {
			t.Errorf("%s was archived", name)
		}
	}
}

func TestWhatWaitsIsLetGoWhenPostgreSQLStops(t *testing.T) {
	a := NewArchive(data(t, map[string][]byte{seg1: segment(1)}), Slow)
	done := offer2(t, a, seg1)
	a.Next(ctx(t))
	a.Stopping(true)
	if err := <-done; !errors.Is(err, ErrStopping) {
		t.Error(err)
	}
	a.Stopping(false)
	if file, ok := a.Next(ctx(t)); !ok || file.Name != seg1 {
		t.Errorf("%v", file)
	}
}

func TestNothingIsOfferedUntilARestoreIsDone(t *testing.T) {
	a := NewArchive(data(t, map[string][]byte{seg1: segment(1)}), Slow)
	a.Hold(true)
	done := offer2(t, a, seg1)
	short, cancel := context.WithTimeout(ctx(t), 20*time.Millisecond)
	defer cancel()
	if file, ok := a.Next(short); ok {
		t.Fatalf("%v was offered", file)
	}
	a.Hold(false)
	file, _ := a.Next(ctx(t))
	if err := a.Stored(file.Name, file.SHA256); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// need asks as recovery does and answers as a host that has some files.
func TestACopyArchivesNothingThatIsAnothers(t *testing.T) {
	content := map[string][]byte{seg1: segment(1), seg2: segment(2), seg3: segment(3), "00000002.history": []byte("x"), "00000003.history": []byte("y")}
	dir := data(t, content)
	status := func(name string) string { return filepath.Join(dir, "pg_wal", "archive_status", name) }
	mark := func(name string) {
		if err := os.WriteFile(status(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{seg1 + ".ready", seg2 + ".ready", "00000002.history.done", "00000003.history.ready"} {
		mark(name)
	}
	a := NewArchive(dir, Slow)
	waits := offer2(t, a, seg1)
	if _, ok := a.Next(ctx(t)); !ok {
		t.Fatal("nothing is offered")
	}
	if err := a.Adopt(); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Errorf("%s, which waited: %v", seg1, err)
	}
	if err := a.Offer(ctx(t), seg2); err != nil {
		t.Errorf("%s, which was to come: %v", seg2, err)
	}
	for _, name := range []string{"00000002.history", "00000003.history", seg3} {
		done := offer2(t, a, name)
		f, ok := a.Next(ctx(t))
		if !ok || f.Name != name {
			t.Fatalf("%v is offered, want %s", f, name)
		}
		if err := a.Stored(name, f.SHA256); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"00000002.history.ready", "00000003.history.ready"} {
		if _, err := os.Stat(status(name)); err != nil {
			t.Errorf("it is not archived anew: %v", err)
		}
	}
}

func need(t *testing.T, f *Fetch, has map[string][]byte, name string) ([]byte, bool, error) {
	t.Helper()
	type answer struct {
		bytes []byte
		found bool
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		bytes, found, err := f.Need(ctx(t), name)
		done <- answer{bytes, found, err}
	}()
	asked, ok := f.Next(ctx(t))
	if !ok || asked.Name != name {
		t.Fatalf("asked for %v", asked)
	}
	var err error
	if content, ok := has[name]; ok {
		err = f.Provide(name, content, sum(content))
	} else {
		err = f.Missing(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	a := <-done
	return a.bytes, a.found, a.err
}

func TestRecoveryEndsWellOnlyAtTheEndOfTheArchive(t *testing.T) {
	has := map[string][]byte{seg1: segment(1), seg2: segment(2), "00000002.history": []byte("1\t0/3000000\tx\n")}
	for name, c := range map[string]struct {
		asked []string
		ok    bool
	}{
		"nothing asked":               {nil, false},
		"the next is missing":         {[]string{"00000002.history", "00000003.history", seg1, seg2, seg3, seg2, "00000003.history"}, true},
		"a newer timeline is missing": {[]string{"000000020000000000000001", seg1, "000000020000000000000002", seg2}, false},
		"the next was not asked for":  {[]string{seg1, seg2, seg2, "00000003.history"}, false},
		"nothing was there":           {[]string{seg3}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFetch()
			for _, asked := range c.asked {
				content, found, err := need(t, f, has, asked)
				if err != nil || found != (has[asked] != nil) || !bytes.Equal(content, has[asked]) {
					t.Fatalf("%s: %t, %v", asked, found, err)
				}
			}
			if err := f.Ended(); (err == nil) != c.ok {
				t.Error(err)
			}
		})
	}
}

func TestAFileThatIsLostEndsTheRestore(t *testing.T) {
	f := NewFetch()
	done := make(chan error, 1)
	go func() { _, _, err := f.Need(ctx(t), seg1); done <- err }()
	f.Next(ctx(t))
	if err := f.Provide(seg1, segment(1), sum(nil)); !errors.Is(err, ErrOtherBytes) {
		t.Errorf("other bytes: %v", err)
	}
	if err := f.Provide(seg2, segment(1), sum(segment(1))); !errors.Is(err, ErrNotAsked) {
		t.Errorf("another file: %v", err)
	}
	if err := f.Fail(seg1, errors.New("checksum")); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), seg1) {
		t.Error(err)
	}
	if _, _, err := f.Need(ctx(t), seg2); err == nil {
		t.Error("the restore goes on")
	}
	if f.Ended() == nil {
		t.Error("the restore ended well")
	}
}

func TestASegmentThatIsCutShortEndsTheRestore(t *testing.T) {
	f := NewFetch()
	done := make(chan error, 1)
	go func() { _, _, err := f.Need(ctx(t), seg1); done <- err }()
	f.Next(ctx(t))
	if err := f.Provide(seg1, []byte("cut"), sum([]byte("cut"))); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), seg1) {
		t.Error(err)
	}
}

func TestCommands(t *testing.T) {
	dir := data(t, map[string][]byte{seg1: segment(1)})
	a, f := NewArchive(dir, Slow), NewFetch()
	socket := filepath.Join(t.TempDir(), "s")
	c, cancel := context.WithCancel(ctx(t))
	served := make(chan error, 1)
	commands := &Commands{Archive: a, Fetch: func() *Fetch { return f }, UID: uint32(os.Getuid()), Log: slog.New(slog.DiscardHandler)}
	go func() { served <- commands.Serve(c, socket) }()
	for { // the socket's name is there before anybody listens
		conn, err := net.Dial("unix", socket)
		if err == nil {
			conn.Close()
			break
		}
	}
	run := func(mode string, args ...string) <-chan int {
		code := make(chan int, 1)
		go func() { code <- RunCommand(mode, socket, args, io.Discard) }()
		return code
	}
	archived := run("archive", "pg_wal/"+seg1, seg1)
	file, _ := a.Next(ctx(t))
	if err := a.Stored(file.Name, file.SHA256); err != nil {
		t.Fatal(err)
	}
	if code := <-archived; code != exitDone {
		t.Errorf("archive: %d", code)
	}
	if code := <-run("archive", "pg_wal/"+seg2, seg2); code != exitRefused {
		t.Errorf("archive of what is not there: %d", code)
	}
	to := filepath.Join(t.TempDir(), "RECOVERYXLOG")
	restored := run("restore", seg1, to)
	f.Next(ctx(t))
	if err := f.Provide(seg1, segment(9), sum(segment(9))); err != nil {
		t.Fatal(err)
	}
	if code := <-restored; code != exitDone {
		t.Errorf("restore: %d", code)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, segment(9)) {
		t.Errorf("other bytes, or %v", err)
	}
	restored = run("restore", seg2, to)
	f.Next(ctx(t))
	if err := f.Missing(seg2); err != nil {
		t.Fatal(err)
	}
	if code := <-restored; code != exitRefused {
		t.Errorf("restore of what is not there: %d", code)
	}
	// PostgreSQL must not take any of these for the end of the archive.
	restored = run("restore", seg3, to)
	f.Next(ctx(t))
	if err := f.Fail(seg3, errors.New("lost")); err != nil {
		t.Fatal(err)
	}
	if code := <-restored; code != exitGiveUp {
		t.Errorf("restore of what is damaged: %d", code)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	for mode, args := range map[string][]string{"restore": {seg1, to}, "archive": {"x", seg1}, "other": {"a", "b"}} {
		if code := <-run(mode, args...); code != exitGiveUp {
			t.Errorf("%s without guestpg: %d", mode, code)
		}
	}
}
