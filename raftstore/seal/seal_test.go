package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var _ Sealer = (*Keyring)(nil)

func newKeyring(t testing.TB) *Keyring {
	t.Helper()
	k, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealed(t testing.TB, k *Keyring, plaintext, context string) []byte {
	t.Helper()
	b, err := k.Seal([]byte(plaintext), []byte(context))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	k := newKeyring(t)
	rapid.Check(t, func(t *rapid.T) {
		plain, context := rapid.SliceOf(rapid.Byte()).Draw(t, "plain"), rapid.SliceOf(rapid.Byte()).Draw(t, "context")
		b, err := k.Seal(plain, context)
		if err != nil {
			t.Fatal(err)
		}
		got, err := k.Open(b, context)
		if err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%x: %v", got, err)
		}
		again, _ := k.Seal(plain, context)
		if bytes.Equal(b, again) {
			t.Fatal("sealed twice to the same bytes")
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	k := newKeyring(t)
	good := sealed(t, k, "secret", "databases/1/password")
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		want := ErrCorrupt
		if i >= 1 && i < headerSize {
			want = ErrUnknownKey
		}
		if got, err := k.Open(bad, []byte("databases/1/password")); !errors.Is(err, want) || got != nil {
			t.Errorf("byte %d changed: %q, %v", i, got, err)
		}
		if _, err := k.Open(good[:i], []byte("databases/1/password")); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	for _, context := range []string{"", "databases/2/password", "databases/1/password\x00"} {
		if _, err := k.Open(good, []byte(context)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("in context %q: %v", context, err)
		}
	}
	_, err := newKeyring(t).Open(good, []byte("databases/1/password"))
	if !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), k.Primary().String()) {
		t.Errorf("with another keyring: %v", err)
	}
	if strings.Contains(string(good), "secret") {
		t.Error("the plaintext shows")
	}
}

// A key whose id was given to another key does not open either.
func TestKeyIDIsAuthenticated(t *testing.T) {
	k := newKeyring(t)
	other, err := k.Add()
	if err != nil {
		t.Fatal(err)
	}
	b := sealed(t, k, "secret", "")
	binary.BigEndian.PutUint32(b[1:], uint32(other))
	if _, err := k.Open(b, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v", err)
	}
}

func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seal.key")
	k := newKeyring(t)
	first := k.Primary()
	old := sealed(t, k, "old", "c")
	second, err := k.Rotate()
	if err != nil {
		t.Fatal(err)
	}
	fresh := sealed(t, k, "new", "c")
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	if k, err = Load(path); err != nil {
		t.Fatal(err)
	}
	if k.Primary() != second || !slices.Equal(k.Keys(), []KeyID{first, second}) {
		t.Errorf("primary %s of %s", k.Primary(), k.Keys())
	}
	for want, b := range map[string][]byte{"old": old, "new": fresh} {
		if got, err := k.Open(b, []byte("c")); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", want, got, err)
		}
	}
	for b, want := range map[*[]byte]KeyID{&old: first, &fresh: second} {
		if id, err := KeyOf(*b); err != nil || id != want {
			t.Errorf("sealed with %s: %v", id, err)
		}
	}
	if err := k.Remove(second); err == nil {
		t.Error("the primary was removed")
	}
	if err := k.Remove(first); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(old, []byte("c")); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("with the key removed: %v", err)
	}
	if err := k.SetPrimary(first); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("a removed key as primary: %v", err)
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "seal.key")
	k := newKeyring(t)
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := k.Save(path); err != nil {
		t.Fatalf("over an older one: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	id := k.Primary().String()
	edit := func(old, new string) string {
		s := strings.ReplaceAll(string(good), old, new)
		if s == string(good) {
			t.Fatalf("%q is not in the file", old)
		}
		return s
	}
	for name, c := range map[string]struct{ content, want string }{
		"empty":           {"", "EOF"},
		"not JSON":        {"hello", "invalid character"},
		"two values":      {string(good) + "{}", "more than one JSON value"},
		"unknown field":   {edit(`"format"`, `"x": 1, "format"`), "unknown field"},
		"unknown format":  {edit(`"format": 1`, `"format": 2`), "unknown format 2"},
		"no such primary": {edit(`"primary": "`+id, `"primary": "12345678`), "not in the keyring"},
		"bad primary":     {edit(`"primary": "`+id, `"primary": "x`), "bad key id"},
		"bad id":          {edit(`"id": "`+id, `"id": "+1`), "bad key id"},
		"short secret":    {edit(`"secret": "`, `"secret": "AAAA", "secret": "AAAA`), "key " + id},
		"no keys":         {`{"format":1,"primary":"00000001","keys":[]}`, "not in the keyring"},
	} {
		t.Run(name, func(t *testing.T) {
			p := filepath.Join(t.TempDir(), "k")
			if err := os.WriteFile(p, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v", err)
			}
		})
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file others may read: %v", err)
	}
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := k.Save(filepath.Join(dir, "no", "dir")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestGolden opens what version 1 sealed, for ever.
func TestGolden(t *testing.T) {
	k, err := parse(read(t, "testdata/v1/keyring.json"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Open(read(t, "testdata/v1/sealed.bin"), []byte("golden/context"))
	if err != nil || string(got) != "the golden secret" {
		t.Errorf("%q, %v", got, err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzOpen(f *testing.F) {
	k, err := parse(read(f, "testdata/v1/keyring.json"))
	if err != nil {
		f.Fatal(err)
	}
	golden := read(f, "testdata/v1/sealed.bin")
	f.Add(golden, []byte("golden/context"))
	f.Add(golden[:overhead], []byte{})
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, sealed, context []byte) {
		plain, err := k.Open(sealed, context)
		switch {
		case err == nil && (!bytes.Equal(sealed, golden) || string(context) != "golden/context"):
			t.Fatalf("a forgery opened: %q", plain)
		case err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrUnknownKey):
			t.Fatalf("error %v", err)
		}
	})
}

func FuzzKeyring(f *testing.F) {
	f.Add(read(f, "testdata/v1/keyring.json"))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := parse(b)
		if err != nil {
			return
		}
		if got, err := k.Open(sealed(t, k, "x", "c"), []byte("c")); err != nil || string(got) != "x" {
			t.Fatalf("an accepted keyring does not work: %q, %v", got, err)
		}
	})
}

func TestAKeyringIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	k, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	read, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := read.Reload(path); changed || err != nil {
		t.Errorf("of the same file: changed %t, %v", changed, err)
	}
	if _, err := k.Add(); err != nil {
		t.Fatal(err)
	}
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	if changed, err := read.Reload(path); !changed || err != nil || len(read.Keys()) != 2 || read.Primary() != k.Primary() {
		t.Errorf("changed %t, %v, keys %v", changed, err, read.Keys())
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := read.Reload(path); changed || err == nil || len(read.Keys()) != 2 {
		t.Errorf("of a damaged file: changed %t, %v, keys %v", changed, err, read.Keys())
	}
}
