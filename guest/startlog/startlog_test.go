package startlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/tier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var noon = time.Date(2026, 11, 20, 12, 0, 0, 123_456_789, time.UTC)

// newLog returns the writer of a log in a new directory.
func newLog(t *testing.T, limit int64) (*Writer, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berth", "start.log")
	return &Writer{path: path, max: limit, now: func() time.Time { return noon }}, path
}

func pipe(t *testing.T, w *Writer, stream string) *os.File {
	t.Helper()
	f, err := w.Pipe(stream)
	must(t, err)
	return f
}

// run runs a command with its output written down.
func run(t *testing.T, w *Writer, line string) {
	t.Helper()
	stdout, stderr := pipe(t, w, guestapi.StreamStdout), pipe(t, w, guestapi.StreamStderr)
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	must(t, cmd.Start())
	stdout.Close()
	stderr.Close()
	must(t, cmd.Wait())
}

// read returns the lines as "stream text", and + for a piece.
func read(t *testing.T, path, stream string, tail int) []string {
	t.Helper()
	var got []string
	must(t, Read(t.Context(), path, Query{Stream: stream, Tail: tail}, func(l guestapi.LogLine) error {
		got = append(got, short(l))
		return nil
	}, func() error { return nil }))
	return got
}

func short(l guestapi.LogLine) string {
	s := l.Stream + " " + l.Line
	if l.Partial {
		s += "+"
	}
	return s
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

func TestBothStreamsAreKept(t *testing.T) {
	w, path := newLog(t, maxFile)
	stdout, stderr := pipe(t, w, guestapi.StreamStdout), pipe(t, w, guestapi.StreamStderr)
	var want []string
	say := func(to *os.File, text, line string) {
		t.Helper()
		_, err := to.WriteString(text)
		must(t, err)
		want = append(want, line)
		await(t, line, func() bool { return len(read(t, path, "both", 100)) == len(want) })
	}
	for i := 1; i <= 8; i++ {
		say(stdout, fmt.Sprintf("out %d\n", i), fmt.Sprintf("stdout out %d", i))
		say(stderr, fmt.Sprintf("err %d\n", i), fmt.Sprintf("stderr err %d", i))
	}
	stderr.Close()
	_, err := stdout.WriteString("gr\xc3\xbcn \xff no end")
	must(t, err)
	stdout.Close()
	want = append(want, "stdout grün \uFFFD no end")
	await(t, "the last line", func() bool { return len(read(t, path, "both", 100)) == len(want) })
	if diff := cmp.Diff(want, read(t, path, "both", 100)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"stderr err 7", "stderr err 8"}, read(t, path, "stderr", 2)); diff != "" {
		t.Error(diff)
	}
	if got := read(t, path, "both", 0); got != nil {
		t.Errorf("none were asked for: %q", got)
	}
	raw, err := os.ReadFile(path)
	must(t, err)
	if !strings.HasPrefix(string(raw), "2026-11-20T12:00:00.123456Z stdout F out 1\n") {
		t.Errorf("the file begins %.60q", raw)
	}
}

// writes is a pipe from which each read takes one write.
type writes struct{ left []string }

func (w *writes) Read(b []byte) (int, error) {
	if len(w.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, w.left[0])
	if w.left[0] = w.left[0][n:]; w.left[0] == "" {
		w.left = w.left[1:]
	}
	return n, nil
}

func TestLongLinesComeInPieces(t *testing.T) {
	for name, c := range map[string]struct {
		writes []string
		want   []string
	}{
		"a line of the limit":  {[]string{strings.Repeat("a", guestapi.MaxLine) + "\n"}, []string{fmt.Sprint(guestapi.MaxLine)}},
		"one byte more":        {[]string{strings.Repeat("a", guestapi.MaxLine+1) + "\n"}, []string{fmt.Sprint(guestapi.MaxLine, "+"), "1"}},
		"many times the limit": {[]string{strings.Repeat("a", 3*guestapi.MaxLine), "b\n"}, []string{"16384+", "16384+", "16384+", "1"}},
		"in small writes":      {[]string{"a", "b\nc", "\n", "\n", "d"}, []string{"2", "1", "0", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			toRecords(&writes{c.writes}, "stdout", func() time.Time { return noon }, func(records []byte) {
				for raw := range strings.Lines(string(records)) {
					line, ok := parseRecord([]byte(raw))
					if !ok {
						t.Fatalf("%.80q is no record", raw)
					}
					text := fmt.Sprint(len(line.Line))
					if line.Partial {
						text += "+"
					}
					got = append(got, text)
				}
			})
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLogIsBounded(t *testing.T) {
	const limit = 8 << 10
	w, path := newLog(t, limit)
	// Twice more than the limit: however few reads each takes, the second turns
	// the file over.
	for i := range 2 {
		run(t, w, fmt.Sprintf("i=0; while [ $i -lt 1000 ]; do echo line $((%d*1000+i)); i=$((i+1)); done", i))
		await(t, "all lines", func() bool {
			got := read(t, path, "stdout", 1)
			return len(got) == 1 && got[0] == fmt.Sprintf("stdout line %d", i*1000+999)
		})
		// Not before: lines of the other stream that are written later could push it out.
		run(t, w, fmt.Sprintf("echo end %d >&2", i))
		await(t, "the last line", func() bool {
			return slices.Equal(read(t, path, "stderr", 1), []string{fmt.Sprintf("stderr end %d", i)})
		})
	}
	for _, p := range []string{path, path + oldSuffix} {
		st, err := os.Stat(p)
		must(t, err)
		if st.Size() > limit+3*guestapi.MaxLine {
			t.Errorf("%s: %d bytes", p, st.Size())
		}
	}
	got := read(t, path, "stdout", 10)
	for i, line := range got {
		if want := fmt.Sprintf("stdout line %d", 1990+i); line != want {
			t.Errorf("got %q, want %q", line, want)
		}
	}
}

func TestFollowersMissNothing(t *testing.T) {
	const limit, total = 16 << 10, 3000
	w, path := newLog(t, limit)
	stdout := pipe(t, w, guestapi.StreamStdout)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var got []string
	started, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var once sync.Once
		done <- Read(ctx, path, Query{Stream: "both", Tail: 10, Follow: true}, func(l guestapi.LogLine) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, l.Line)
			return nil
		}, func() error { once.Do(func() { close(started) }); return nil })
	}()
	<-started // no file is there yet
	seen := func() int { mu.Lock(); defer mu.Unlock(); return len(got) }
	for i := range total {
		_, err := fmt.Fprintf(stdout, "line %d\n", i)
		must(t, err)
		// Two files are kept: a reader further behind than that has lost lines,
		// and rightly so.
		await(t, "the follower", func() bool { return seen() >= i-200 })
	}
	stdout.Close()
	await(t, "the last line", func() bool { return seen() == total })
	for i, line := range got {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d is %q", i, line)
		}
	}
	cancel()
	must(t, <-done)
}

func TestFollowerThatFailsEnds(t *testing.T) {
	w, path := newLog(t, maxFile)
	run(t, w, "echo one")
	await(t, "the line", func() bool { return len(read(t, path, "both", 1)) == 1 })
	failure := errors.New("caller gone")
	err := Read(t.Context(), path, Query{Stream: "both", Tail: 1, Follow: true}, func(guestapi.LogLine) error { return failure }, func() error { return nil })
	if !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}

// TestWhatAWorkloadDoesToTheLog has the files deleted, emptied, replaced and
// written by others.
func TestWhatAWorkloadDoesToTheLog(t *testing.T) {
	w, path := newLog(t, maxFile)
	say := func(line string) {
		t.Helper()
		run(t, w, "echo "+line)
		await(t, line, func() bool {
			got := read(t, path, "both", 1)
			return len(got) == 1 && got[0] == "stdout "+line
		})
	}
	say("first")
	must(t, os.RemoveAll(filepath.Dir(path)))
	if got := read(t, path, "both", 1); got != nil {
		t.Errorf("without a log: %q", got)
	}
	say("deleted")
	must(t, os.Truncate(path, 0))
	say("emptied")
	must(t, os.WriteFile(path, []byte("nonsense\n\x00\n2026-11-20T12:00:00.123456Z stdout F "+strings.Repeat("x", 1<<20)+"\n"), 0o644))
	say("overwritten")
	if got := read(t, path, "both", 100); len(got) != 1 {
		t.Errorf("%d lines", len(got))
	}
	must(t, os.Remove(path))
	must(t, unix.Mkfifo(path, 0o644))
	if got := read(t, path, "both", 1); got != nil {
		t.Errorf("of a pipe: %q", got)
	}
	run(t, w, "echo into nothing; head -c 200000 /dev/zero") // it must not wait
	await(t, "a directory", func() bool {                    // the writer may still make the file again
		_ = os.Remove(path)
		return os.Mkdir(path, 0o755) == nil
	})
	if got := read(t, path, "both", 1); got != nil {
		t.Errorf("of a directory: %q", got)
	}
	run(t, w, "echo into nothing; head -c 200000 /dev/zero")
	must(t, os.Remove(path))
	say("itself again")
}

func TestFullDiskLosesLinesOnly(t *testing.T) {
	tier.Root(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
	path := filepath.Join(dir, "start.log")
	w := NewWriter(path)
	run(t, w, "i=0; while [ $i -lt 3000 ]; do echo a line that fills the disk $i; i=$((i+1)); done")
	full := func() bool {
		var st unix.Statfs_t
		must(t, unix.Statfs(dir, &st))
		return st.Bfree == 0
	}
	await(t, "a full disk", full)
	// What was collected before may come only now: after the new line, or in its place.
	await(t, "the new line", func() bool {
		if slices.Contains(read(t, path, "both", 3000), "stdout there is room again") {
			return true
		}
		must(t, os.Truncate(path, 100)) // in the middle of a record
		run(t, w, "echo there is room again")
		return false
	})
}

func FuzzParseRecord(f *testing.F) {
	for _, seed := range []string{
		"2026-11-20T12:00:00.123456Z stdout F text", "2026-11-20T12:00:00.123456Z stderr P ", "2026-11-20T12:00:00.123456Z stdout F", "", " ", "  ",
		"2026-11-20T12:00:00.123456Z console F x", "2026-13-20T12:00:00.123456Z stdout F x", "2026-11-20T12:00:00.123456Z stdout X x",
		"2026-11-20T12:00:00.123456Z stdout F \xff",
	} {
		f.Add([]byte(seed + "\n"))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		line, ok := parseRecord(raw)
		if !ok {
			return
		}
		tag := byte(whole)
		if line.Partial {
			tag = partial
		}
		again := appendRecord(nil, line.Time, line.Stream, tag, raw[len(timeFormat)+len(line.Stream)+4:len(raw)-1])
		if string(again) != string(raw) && !strings.Contains(string(raw), ",") {
			t.Errorf("%q comes back as %q", raw, again)
		}
	})
}

func FuzzToRecords(f *testing.F) {
	f.Add([]byte("a\nb"), 1)
	f.Add([]byte(strings.Repeat("x", 40_000)+"\n\n"), 16384)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		piece = max(1, piece%70_000)
		var in writes
		for from := 0; from < len(data); from += piece {
			in.left = append(in.left, string(data[from:min(from+piece, len(data))]))
		}
		var text strings.Builder
		toRecords(&in, "stderr", func() time.Time { return noon }, func(records []byte) {
			for raw := range strings.Lines(string(records)) {
				line, ok := parseRecord([]byte(raw))
				if !ok {
					t.Fatalf("%.80q is no record", raw)
				}
				text.WriteString(raw[len(timeFormat)+len(" stderr F ") : len(raw)-1])
				if !line.Partial {
					text.WriteByte('\n')
				}
			}
		})
		want := string(data)
		if want != "" && !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		if got := text.String(); got != want && got+"\n" != want {
			t.Errorf("%d bytes became %d", len(want), len(got))
		}
	})
}
