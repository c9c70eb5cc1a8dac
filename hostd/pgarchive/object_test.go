package pgarchive

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden objects of the format written today")

// A damaged object is refused by its name, wherever it is damaged.
func TestDamagedObjectsAreNamed(t *testing.T) {
	flip := func(at func(raw []byte) int) func([]byte) []byte {
		return func(raw []byte) []byte {
			raw[at(raw)] ^= 0x10
			return raw
		}
	}
	// frame is where the n-th frame of an object begins.
	frame := func(raw []byte, n int) int {
		at := preambleSize
		for range n {
			at += 4 + int(uint32(raw[at+1])<<16|uint32(raw[at+2])<<8|uint32(raw[at+3]))
		}
		return at
	}
	objectsOf := map[string]string{
		"wal":      walDir + seg(1),
		"part":     partObject("a", 1),
		"manifest": backupsDir + "a",
	}
	changes := map[string]func([]byte) []byte{
		"the magic":           flip(func([]byte) int { return 0 }),
		"the format":          flip(func([]byte) int { return len(magic) }),
		"the codec":           flip(func([]byte) int { return len(magic) + 1 }),
		"the salt":            flip(func([]byte) int { return len(magic) + 2 }),
		"the header's size":   flip(func([]byte) int { return preambleSize + 3 }),
		"the header":          flip(func([]byte) int { return preambleSize + 4 }),
		"the last flag":       func(raw []byte) []byte { raw[preambleSize] ^= 0x80; return raw },
		"the last byte":       flip(func(raw []byte) int { return len(raw) - 1 }),
		"cut by one byte":     func(raw []byte) []byte { return raw[:len(raw)-1] },
		"cut to a half":       func(raw []byte) []byte { return raw[:len(raw)/2] },
		"cut to its preamble": func(raw []byte) []byte { return raw[:preambleSize] },
		"empty":               func([]byte) []byte { return nil },
		"longer":              func(raw []byte) []byte { return append(raw, 0) },
		"something else":      func([]byte) []byte { return bytes.Repeat([]byte("x"), 1000) },
		"huge":                func(raw []byte) []byte { return append(raw, make([]byte, 2*maxWALObject)...) },
		"missing":             nil,
	}
	chunks := map[string]func([]byte) []byte{
		"a chunk":         flip(func(raw []byte) int { return frame(raw, 3) + 4 + 10 }),
		"without a chunk": func(raw []byte) []byte { return append(raw[:frame(raw, 2):frame(raw, 2)], raw[frame(raw, 3):]...) },
		"cut at a chunk":  func(raw []byte) []byte { return raw[:frame(raw, 3)] },
		"a chunk twice":   func(raw []byte) []byte { return append(raw[:frame(raw, 3):frame(raw, 3)], raw[frame(raw, 2):]...) },
		"a false end":     func(raw []byte) []byte { at := frame(raw, 2); raw[at] |= 0x80; return raw[:frame(raw, 3)] },
		"chunks exchanged": func(raw []byte) []byte {
			x, y, z := frame(raw, 1), frame(raw, 2), frame(raw, 3)
			return bytes.Join([][]byte{raw[:x], raw[y:z], raw[x:y], raw[z:]}, nil)
		},
	}
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	putWAL(t, a, seg(1), segment(1))
	stub(t, a, 2, epoch)
	stream := long()
	backup(t, a, "a", 1, 2, epoch, stream)
	for kind, object := range objectsOf {
		path := filepath.Join(dir, root, first, object)
		stored, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]func([]byte) []byte{}
		for name, c := range changes {
			all[name] = c
		}
		if kind != "manifest" {
			for name, c := range chunks {
				all[name] = c
			}
		}
		for name, c := range all {
			t.Run(kind+"/"+name, func(t *testing.T) {
				defer func() {
					if err := os.WriteFile(path, stored, 0o600); err != nil {
						t.Fatal(err)
					}
				}()
				if c == nil {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else {
					change(t, path, c)
				}
				if kind == "wal" {
					_, _, err := a.WAL(t.Context(), seg(1))
					damaged(t, err, object)
					return
				}
				var got bytes.Buffer
				err := a.Backup(t.Context(), "a", &got)
				if kind == "manifest" && c == nil {
					if !errors.Is(err, ErrNothing) {
						t.Error(err)
					}
					return
				}
				damaged(t, err, object)
				if !bytes.HasPrefix(stream, got.Bytes()) {
					t.Error("something that was never stored was given out")
				}
				if kind == "manifest" {
					_, err := a.Choose(t.Context(), nil)
					damaged(t, err, object)
				}
			})
		}
	}
}

func TestALaterFormatIsNamed(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	putWAL(t, a, "00000002.history", []byte("x"))
	change(t, filepath.Join(dir, root, first, walDir, "00000002.history"), func(raw []byte) []byte { raw[len(magic)] = format + 1; return raw })
	_, _, err := a.WAL(t.Context(), "00000002.history")
	damaged(t, err, walDir+"00000002.history")
	if !errors.Is(err, ErrOtherFormat) {
		t.Error(err)
	}
}

// Whoever has the bucket cannot put an object in the place of another.
func TestAnObjectOpensOnlyWhereItWasStored(t *testing.T) {
	b, dir := directory(t)
	s := New(b)
	one := open(t, s, first, key)
	same := open(t, s, second, key) // never so, but for this test
	putWAL(t, one, seg(1), segment(1))
	putWAL(t, one, seg(2), segment(2))
	putWAL(t, same, seg(1), segment(3))
	backup(t, one, "a", 1, 1, epoch, long())
	backup(t, one, "b", 1, 1, epoch, append([]byte("other"), long()...))
	copy := func(from, to string) {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(dir, root, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, root, to), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copy(second+"/"+walDir+seg(1), first+"/"+walDir+seg(1))
	_, _, err := one.WAL(t.Context(), seg(1))
	damaged(t, err, walDir+seg(1))
	copy(first+"/"+walDir+seg(2), first+"/"+walDir+seg(1))
	_, _, err = one.WAL(t.Context(), seg(1))
	damaged(t, err, walDir+seg(1))
	copy(first+"/"+partObject("b", 0), first+"/"+partObject("a", 0))
	err = one.Backup(t.Context(), "a", io.Discard)
	damaged(t, err, partObject("a", 0))
	copy(first+"/"+partObject("b", 2), first+"/"+partObject("b", 1))
	err = one.Backup(t.Context(), "b", io.Discard)
	damaged(t, err, partObject("b", 1))
	copy(first+"/"+backupsDir+"b", first+"/"+backupsDir+"a")
	_, err = one.Choose(t.Context(), nil)
	if err != nil {
		t.Errorf("the other one is whole: %v", err)
	}
	_, err = one.Info(t.Context())
	damaged(t, err, backupsDir+"a")
	// A file that is damaged is not taken for the one that is offered again.
	stored, err := one.PutWAL(t.Context(), walFile(seg(1), segment(1)), bytes.NewReader(segment(1)))
	if err != nil {
		t.Error(err)
	}
	damaged(t, stored.Mended, walDir+seg(1))

	wrong := open(t, s, second, otherKey)
	_, _, err = wrong.WAL(t.Context(), seg(1))
	damaged(t, err, walDir+seg(1))
}

// A part of another base backup of that id, which was given up.
func TestPartsThatDoNotBelongTogether(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	backup(t, a, "a", 1, 1, epoch, long())
	path := filepath.Join(dir, root, first, partObject("a", 1))
	part, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveAll(t.Context(), root+first+"/"); err != nil {
		t.Fatal(err)
	}
	other := long()
	other[partChunks*chunkBytes+5] ^= 1
	backup(t, a, "a", 1, 1, epoch, other)
	change(t, path, func([]byte) []byte { return part })
	err = a.Backup(t.Context(), "a", io.Discard)
	damaged(t, err, backupsDir+"a")
}

func TestTheBucketHasNoPlainText(t *testing.T) {
	b, dir := directory(t)
	a := open(t, New(b), first, key)
	random := segment(1)[4<<20 : 4<<20+64]
	if bytes.Count(segment(1), random) != 1 {
		t.Fatal("no random bytes")
	}
	putWAL(t, a, seg(1), segment(1))
	backup(t, a, "a", 1, 1, epoch, segment(1))
	f := walFile(seg(1), segment(1))
	for _, object := range objects(t, dir) {
		raw, err := os.ReadFile(filepath.Join(dir, object))
		if err != nil {
			t.Fatal(err)
		}
		for _, plain := range [][]byte{[]byte("plain text"), random, []byte(f.SHA256), []byte("sha256"), key} {
			if bytes.Contains(raw, plain) {
				t.Errorf("%s has %q", object, plain)
			}
		}
	}
}

// goldenHistory is in the golden archive, and in the corpus of the fuzz target.
var goldenHistory = []byte("1\t0/3000000\tno recovery target specified\n")

// What every later version reads: objects of format 1 in an archive with this key.
func TestGoldenObjects(t *testing.T) {
	golden := filepath.Join("testdata", "archive-1")
	stream := bytes.Repeat([]byte("a line of a base backup\n"), 60_000) // two chunks
	if *update {
		b := openBucket(t, "file://"+must(filepath.Abs(golden)))
		a := open(t, New(b), first, key)
		a.store.now = func() time.Time { return at(1) }
		putWAL(t, a, "00000002.history", goldenHistory)
		putWAL(t, a, seg(1), make([]byte, 16<<20))
		backup(t, a, "golden", 1, 1, at(2), stream)
	}
	a := open(t, New(openBucket(t, "file://"+must(filepath.Abs(golden)))), first, key)
	got, sum, err := a.WAL(t.Context(), "00000002.history")
	if err != nil || !bytes.Equal(got, goldenHistory) || sum != walFile("", goldenHistory).SHA256 {
		t.Errorf("%q, %s, %v", got, sum, err)
	}
	got, _, err = a.WAL(t.Context(), seg(1))
	if err != nil || !bytes.Equal(got, make([]byte, 16<<20)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	var base bytes.Buffer
	if err := a.Backup(t.Context(), "golden", &base); err != nil || !bytes.Equal(base.Bytes(), stream) {
		t.Errorf("%d bytes, %v", base.Len(), err)
	}
	info := a.must(t)
	if len(info.BaseBackups) != 1 || info.LastLSN != "0/2000000" || !info.FirstRestorable.Equal(at(2)) || !info.LastRestorable.Equal(at(2)) {
		t.Errorf("%+v", info)
	}
	if want := info.BaseBackups[0]; want.StartLSN != lsn(1, 0x28) || want.StopLSN != lsn(1, 0x100) || !want.StartedAt.Equal(at(1)) {
		t.Errorf("%+v", want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// FuzzObject has objects that are not what was stored: sealed with the right key, as
// what a bug could write, and as they come, as what a bucket could return.
func FuzzObject(f *testing.F) {
	a := open(f, New(newMemory()), first, key)
	object := walDir + "00000002.history"
	sealed := func(plain string) []byte {
		h := walFile("00000002.history", []byte(plain))
		s, err := a.sealWAL(object, h, strings.NewReader(plain))
		if err != nil {
			f.Fatal(err)
		}
		return s
	}
	f.Add([]byte(nil), false)
	f.Add(sealed(string(goldenHistory)), false)
	f.Add(sealed(""), false)
	f.Add([]byte(magic), false)
	f.Add([]byte(`{"size":3,"sha256":"x","written_at":"2026-03-01T12:00:00Z","archived_at":"2026-03-01T12:00:00Z"}`), true)
	f.Add([]byte(`{"size":-1}`), true)
	f.Add([]byte(`{"size":1e99}`), true)
	f.Fuzz(func(t *testing.T, raw []byte, inside bool) {
		if inside { // the header, and the same as if it were compressed
			s := &sealer{raw: append([]byte(magic), format, codecZstd)}
			s.raw = append(s.raw, make([]byte, saltBytes)...)
			var err error
			if s.frames, err = a.newFrames(object, s.raw); err != nil {
				t.Fatal(err)
			}
			s.frame(raw, false)
			s.frame(raw, true)
			raw = s.raw
		}
		content, _, err := a.openWAL(object, raw)
		if err == nil && (inside || !bytes.Equal(content, goldenHistory) && len(content) > 0) {
			t.Errorf("%q was taken", content)
		}
		if err != nil {
			damaged(t, err, object)
		}
		if _, err := a.open(object, raw, &manifest{}); err == nil && !inside {
			t.Error("it was taken for a manifest")
		}
	})
}
