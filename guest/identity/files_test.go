package identity

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

func hook(t *testing.T, root, name, body string, mode os.FileMode) {
	t.Helper()
	dir := root + guestapi.HookDir
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), mode); err != nil {
		t.Fatal(err)
	}
}

func TestHooksRunInOrder(t *testing.T) {
	g, _, root := testGuest(t)
	out := filepath.Join(t.TempDir(), "out")
	hook(t, root, "20-second", "echo second $BERTH_GENERATION $BERTH_HOSTNAME $A >> "+out, 0o755)
	hook(t, root, "10-first", "echo first >> "+out, 0o755)
	hook(t, root, "30-not-executable", "echo third >> "+out, 0o644)
	if _, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, out), "first\nsecond 7 box-1 1\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHookThatFailsFailsTheIdentity(t *testing.T) {
	g, _, root := testGuest(t)
	hook(t, root, "reseed", "echo no luck >&2; exit 3", 0o755)
	_, err := g.Apply(testIdentity(), time.Now(), netip.AddrPort{})
	if err == nil {
		t.Fatal("confirmed")
	}
	for _, want := range []string{"reseed", "exit code 3", "no luck"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestFileOnAFullDiskIsOverwrittenInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("something long"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := overwrite(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "short" || mode(t, path) != 0o600 {
		t.Errorf("got %q of mode %o", got, mode(t, path))
	}
}

func TestUnchangedFileIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("the file was replaced")
	}
}

func TestWriteFileFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	target, path := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := os.WriteFile(target, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := read(t, target); got != "precious" {
		t.Errorf("the link's target holds %q", got)
	}
	if err := os.Symlink(target, path+"2"); err != nil {
		t.Fatal(err)
	}
	if err := overwrite(path+"2", nil, 0o644); !errors.Is(err, unix.ELOOP) {
		t.Errorf("got %v", err)
	}
}

func FuzzHosts(f *testing.F) {
	for _, s := range []string{"", defaultHosts, "127.0.1.1 a\n127.0.1.10 b\n", "127.0.1.1", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, old string) {
		with := func(old string) string { return withoutOwn(old) + ownAddress + "\tname\n" }
		once := with(old)
		if !strings.HasSuffix(once, "127.0.1.1\tname\n") {
			t.Errorf("%q lacks the name", once)
		}
		if twice := with(once); twice != once {
			t.Errorf("again: %q, not %q", twice, once)
		}
	})
}
