package files

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"/", "/etc/passwd", "etc", "", "/a/../b", "/..", "/...", "/a/..b", "//a///b/./", "/\x00", "/\xff", "/" + strings.Repeat("a", 4095), "/.",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		path, err := Path(raw)
		if err != nil {
			var refused *Refusal
			if !errors.As(err, &refused) || refused.Status != 400 || refused.Text != TextInvalidPath || refused.Detail == "" {
				t.Errorf("%q: %v", raw, err)
			}
			return
		}
		if path[0] != '/' || filepath.Clean(path) != path || len(path) > 4095 || len(path) > len(raw) ||
			strings.ContainsRune(path, 0) || strings.Contains(path+"/", "/../") {
			t.Errorf("%q gives %q", raw, path)
		}
		if again, err := Path(path); err != nil || again != path {
			t.Errorf("%q gives %q, that gives %q, %v", raw, path, again, err)
		}
	})
}

func TestDirectoryThatIsTooLarge(t *testing.T) {
	const limit = 2000
	dir := t.TempDir()
	for i := range limit + 1 {
		if err := unix.Mknod(filepath.Join(dir, strconv.Itoa(i)), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := list(dir, limit); Refuse(err).Status != 413 || Refuse(err).Text != TextManyEntries {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "7")); err != nil {
		t.Fatal(err)
	}
	l, err := list(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if len(l.names) != limit {
		t.Errorf("%d names", len(l.names))
	}
}

func TestTreeThatIsDeeperThanAnyPath(t *testing.T) {
	dir := t.TempDir()
	home, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	fd := int(home.Fd())
	for range maxDepth + 10 {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if fd != int(home.Fd()) {
			unix.Close(fd)
		}
		fd = next
	}
	unix.Close(fd)
	if err := Remove(t.Context(), filepath.Join(dir, "d"), true); Refuse(err).Text != TextTooDeep {
		t.Errorf("got %v", err)
	}
}
