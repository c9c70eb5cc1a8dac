package applog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string, most int64) *Log {
	t.Helper()
	l, err := Open(dir, most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func read(t *testing.T, l *Log, from int64) string {
	t.Helper()
	var out bytes.Buffer
	if err := l.Copy(t.Context(), &out, l.Start(from), false, func() {}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestALogIsReadByOffset(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := open(t, dir, 0)
	fmt.Fprint(l, "one\ntwo\nthree\n")
	if got := read(t, l, 4); got != "two\nthree\n" {
		t.Errorf("%q", got)
	}
	for n, want := range map[int]string{0: "one\ntwo\nthree\n", 1: "three\n", 2: "two\nthree\n", 9: "one\ntwo\nthree\n"} {
		if got := read(t, l, l.Tail(n)); got != want {
			t.Errorf("the last %d: %q", n, got)
		}
	}
	if got := read(t, l, 99); got != "" {
		t.Errorf("behind the end: %q", got)
	}
	_ = l.Close()
	l = open(t, dir, 0)
	fmt.Fprint(l, "four")
	if got := read(t, l, 14); got != "four" || l.End() != 18 {
		t.Errorf("%q, end %d", got, l.End())
	}
	if got := l.LastLines(2); !slices.Equal(got, []string{"three", "four"}) {
		t.Errorf("%q", got)
	}
}

func TestALogIsBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	const most = 4 << 10
	l := open(t, dir, most)
	var all bytes.Buffer
	for i := range 5000 {
		line := fmt.Sprintf("line %d\n", i)
		all.WriteString(line)
		fmt.Fprint(l, line)
	}
	_ = l.Close()
	l = open(t, dir, most)
	size := int64(0)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		st, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
	}
	if size > 2*most || size < most || l.End() != int64(all.Len()) {
		t.Errorf("%d bytes are kept, the end is %d of %d", size, l.End(), all.Len())
	}
	if got := read(t, l, 0); int64(len(got)) != size || !strings.HasSuffix(all.String(), got) {
		t.Errorf("%d bytes are read", len(got))
	}
	if got := l.LastLines(1); !slices.Equal(got, []string{"line 4999"}) {
		t.Errorf("%q", got)
	}
}

func TestAFollowerSeesWhatComes(t *testing.T) {
	l := open(t, t.TempDir(), 0)
	fmt.Fprint(l, "first\n")
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- l.Copy(t.Context(), w, 0, true, func() {})
		_ = w.Close()
	}()
	buf := make([]byte, 6)
	for _, want := range []string{"first\n", "second"} {
		if _, err := io.ReadFull(r, buf); err != nil || string(buf) != want {
			t.Fatalf("%q, %v", buf, err)
		}
		fmt.Fprint(l, "second")
	}
	l.Finish()
	_, _ = io.Copy(io.Discard, r)
	if err := <-done; err != nil {
		t.Error(err)
	}
	// One whose reader has gone ends with its context.
	l = open(t, t.TempDir(), 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := l.Copy(ctx, io.Discard, 0, true, func() {}); err != nil {
		t.Error(err)
	}
}

func TestAFullDiskLosesOutputAlone(t *testing.T) {
	l := open(t, t.TempDir(), 0)
	fmt.Fprint(l, "kept\n")
	good := l.f
	closed, err := os.Open(os.DevNull) // which takes no writes
	if err != nil {
		t.Fatal(err)
	}
	defer closed.Close()
	l.f = closed
	if n, err := fmt.Fprint(l, "lost\n"); n != 5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	l.f = good
	fmt.Fprint(l, "again\n")
	if got := read(t, l, 0); got != "kept\n\n[5 bytes were lost: the disk is full]\nagain\n" {
		t.Errorf("%q", got)
	}
}
