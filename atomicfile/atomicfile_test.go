package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func is(t *testing.T, path, want string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode() != mode {
		t.Errorf("%s has mode %v, %v; want %v", path, st.Mode(), err, mode)
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("beside it there is more: %v, %v", all, err)
	}
}

func TestAFileIsReplacedWithItsMode(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	for name, write := range map[string]func(string, []byte, fs.FileMode) error{"write": Write, "put": Put, "swap": Swap} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			for _, c := range []struct {
				data string
				mode fs.FileMode
			}{{"first", 0o644}, {"", 0o600}, {strings.Repeat("x", 1<<20), 0o444}, {"last", 0o644}} {
				if err := write(path, []byte(c.data), c.mode); err != nil {
					t.Fatal(err)
				}
				is(t, path, c.data, c.mode)
			}
		})
	}
}

// A link is replaced, and what it points to is left alone.
func TestALinkIsReplaced(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target")
	path := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.WriteFile(target, []byte("theirs"), 0o600), os.Symlink(target, path), Write(path, []byte("ours"), 0o600)); err != nil {
		t.Fatal(err)
	}
	is(t, path, "ours", 0o600)
	is(t, target, "theirs", 0o600)
}

func TestWhatFailsLeavesTheOldFileAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken off")
	for name, from := range map[string]func(string, fs.FileMode, func(io.Writer) error) error{"write": WriteFrom, "swap": SwapFrom} {
		err := from(path, 0o644, func(w io.Writer) error {
			_, err := io.WriteString(w, "half of the n")
			return errors.Join(err, broken)
		})
		if !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		is(t, path, "old", 0o600)
	}
	if err := Write(filepath.Join(path, "below a file"), nil, 0o600); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

// Whoever reads sees one of the whole contents, however many write.
func TestWritersAtTheSameTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var all sync.WaitGroup
	for _, letter := range []string{"a", "b", "c", "d"} {
		all.Go(func() {
			for range 50 {
				if err := Swap(path, []byte(strings.Repeat(letter, 10_000)), 0o600); err != nil {
					t.Error(err)
				}
				got, err := os.ReadFile(path)
				if err != nil || len(got) != 10_000 || strings.Trim(string(got), string(got[:1])) != "" {
					t.Errorf("read %d bytes, %v", len(got), err)
				}
			}
		})
	}
	all.Wait()
}

func TestSync(t *testing.T) {
	dir := t.TempDir()
	if err := Sync(dir); err != nil {
		t.Error(err)
	}
	if err := Sync(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no file: %v", err)
	}
}
