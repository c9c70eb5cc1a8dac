package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/berth-cloud/berth/tier"
)

// entry is one entry of a layer, a file unless it says otherwise.
type entry struct {
	name, body, link string
	kind             byte
	mode             int64
	uid, gid         int
	major, minor     int64
	pax              map[string]string
}

func layerOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{
			Name: e.name, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.body)), Mode: e.mode, Uid: e.uid, Gid: e.gid,
			Devmajor: e.major, Devminor: e.minor, PAXRecords: e.pax,
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: h.Typeflag, PAXRecords: h.PAXRecords}
		} else if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

var small = Limits{Bytes: 1 << 20, Entries: 1000}

// unpackAll unpacks layers into a directory that lies beside a secret.
func unpackAll(t testing.TB, limits Limits, layers ...[]byte) (string, error) {
	t.Helper()
	above := t.TempDir()
	if err := os.WriteFile(filepath.Join(above, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(above, "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	u, err := newUnpacker(dir, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer u.root.Close()
	for _, l := range layers {
		if err := u.layer(bytes.NewReader(l)); err != nil {
			return dir, err
		}
	}
	return dir, u.finish()
}

// needRoot skips the test if files cannot be given to other users.
func needRoot(t testing.TB) {
	t.Helper()
	tier.Root(t)
}

// tree is the content of a directory: path → file content, or a description of other
// types.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		if _, std := standard[name]; std && d.IsDir() {
			return nil
		}
		switch {
		case d.IsDir():
			out[name] = "/"
		case d.Type()&os.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			out[name] = "-> " + target
		case d.Type()&os.ModeNamedPipe != 0:
			info, err := d.Info()
			if err != nil {
				return err
			}
			out[name] = info.Mode().String()
		default:
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out[name] = string(raw)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayersAreLaidOverEachOther(t *testing.T) {
	needRoot(t)
	dir := func(name string) entry { return entry{name: name, kind: tar.TypeDir, mode: 0o755} }
	link := func(name, to string) entry { return entry{name: name, kind: tar.TypeSymlink, link: to} }
	for name, c := range map[string]struct {
		layers [][]entry
		want   map[string]string
	}{
		"a later file wins": {
			[][]entry{{{name: "a", body: "1"}}, {{name: "./a", body: "2"}}}, map[string]string{"a": "2"},
		},
		"a whiteout removes": {
			[][]entry{{{name: "d/a", body: "1"}, {name: "d/b", body: "1"}}, {{name: "d/.wh.a"}}}, map[string]string{"d": "/", "d/b": "1"},
		},
		"a whiteout removes a directory": {
			[][]entry{{{name: "d/e/a", body: "1"}, {name: "b", body: "1"}}, {{name: ".wh.d"}}}, map[string]string{"b": "1"},
		},
		"a whiteout of nothing": {[][]entry{{{name: ".wh.x"}, {name: "a"}}}, map[string]string{"a": ""}},
		"a whiteout leaves what its own layer has": {
			[][]entry{{{name: "d/old"}}, {{name: "d/new", body: "n"}, {name: ".wh.d"}}}, map[string]string{"d": "/", "d/new": "n"},
		},
		"an opaque directory": {
			[][]entry{{{name: "d/old"}, {name: "d/sub/old"}}, {{name: "d/sub/new"}, {name: "d/.wh..wh..opq"}, {name: "d/new"}}},
			map[string]string{"d": "/", "d/sub": "/", "d/sub/new": "", "d/new": ""},
		},
		"notes of aufs": {[][]entry{{{name: ".wh..wh.plnk/1"}, {name: ".wh..wh.aufs"}, {name: "a"}}}, map[string]string{"a": "", ".wh..wh.plnk": "/", ".wh..wh.plnk/1": ""}},
		"a file in the place of a directory": {
			[][]entry{{{name: "d/a"}}, {{name: "d", body: "file"}}}, map[string]string{"d": "file"},
		},
		"a directory in the place of a link": {
			[][]entry{{dir("x"), link("d", "x")}, {dir("d"), {name: "d/a"}}}, map[string]string{"x": "/", "d": "/", "d/a": ""},
		},
		"through a relative link": {
			[][]entry{{dir("usr/lib"), link("lib", "usr/lib")}, {{name: "lib/a", body: "1"}}},
			map[string]string{"usr": "/", "usr/lib": "/", "lib": "-> usr/lib", "usr/lib/a": "1"},
		},
		"through an absolute link": {
			[][]entry{{dir("run2"), dir("srv"), link("srv/run", "/run2")}, {{name: "srv/run/a", body: "1"}}},
			map[string]string{"run2": "/", "srv": "/", "srv/run": "-> /run2", "run2/a": "1"},
		},
		"through a link that leads above": {
			[][]entry{{link("up", "../../../../../.."), {name: "up/a", body: "1"}}}, map[string]string{"up": "-> ../../../../../..", "a": "1"},
		},
		"a hard link": {
			[][]entry{{{name: "bin/a", body: "1"}, {name: "bin/b", kind: tar.TypeLink, link: "bin/a"}}}, map[string]string{"bin": "/", "bin/a": "1", "bin/b": "1"},
		},
		"an absolute hard link is meant from the root": {
			[][]entry{{{name: "bin/a", body: "1"}}, {{name: "sbin/b", kind: tar.TypeLink, link: "/bin/a"}}}, map[string]string{"bin": "/", "bin/a": "1", "sbin": "/", "sbin/b": "1"},
		},
		"a pipe":              {[][]entry{{{name: "p", body: "file"}}, {{name: "p", kind: tar.TypeFifo, mode: 0o640}}}, map[string]string{"p": "prw-r-----"}},
		"devices of a chroot": {[][]entry{{{name: "jail/dev/sda", kind: tar.TypeBlock, major: 8}, {name: "jail/mem", kind: tar.TypeChar, major: 1, minor: 1}, {name: "a"}}}, map[string]string{"a": ""}},
		"a link to anywhere is only a link": {
			[][]entry{{link("etc2", "/etc"), link("shadow", "/etc/shadow"), link("out", "../secret")}},
			map[string]string{"etc2": "-> /etc", "shadow": "-> /etc/shadow", "out": "-> ../secret"},
		},
		"a link in the place of a link": {
			[][]entry{{link("a", "x"), link("a", "y")}}, map[string]string{"a": "-> y"},
		},
		"a file in the place of a link": {
			[][]entry{{link("a", "../secret")}, {{name: "a", body: "mine"}}}, map[string]string{"a": "mine"},
		},
		"devices that the guest's kernel has":     {[][]entry{{{name: "dev/null", kind: tar.TypeChar, major: 1, minor: 3}, {name: "a"}}}, map[string]string{"a": ""}},
		"a global header":                         {[][]entry{{{name: "g", kind: tar.TypeXGlobalHeader, pax: map[string]string{"comment": "c"}}, {name: "a"}}}, map[string]string{"a": ""}},
		"host keys are left out":                  {[][]entry{{{name: "etc/ssh/ssh_host_rsa_key"}, {name: "etc/ssh/ssh_host_rsa_key.pub"}, {name: "etc/ssh/sshd_config"}}}, map[string]string{"etc/ssh": "/", "etc/ssh/sshd_config": ""}},
		"an absolute name is meant from the root": {[][]entry{{{name: "/a", body: "1"}}}, map[string]string{"a": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, layerOf(t, l...))
			}
			dir, err := unpackAll(t, small, layers...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, tree(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestModesAndOwnersAreKept(t *testing.T) {
	needRoot(t)
	dir, err := unpackAll(t, small, layerOf(t,
		entry{name: "su", mode: 0o4755, body: "x"}, entry{name: "app", kind: tar.TypeDir, mode: 0o2750, uid: 1000, gid: 1000},
		entry{name: "t", kind: tar.TypeDir, mode: 0o1777},
	))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{
		"su": 0o755 | os.ModeSetuid, "app": 0o750 | os.ModeSetgid | os.ModeDir, "t": 0o777 | os.ModeSticky | os.ModeDir,
		"tmp": 0o777 | os.ModeSticky | os.ModeDir, "proc": 0o555 | os.ModeDir,
	} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, st.Mode(), err, want)
		}
	}
}

func TestHostileLayersAreRefusedByName(t *testing.T) {
	tier.Slow(t)
	needRoot(t)
	var many []entry
	for i := range 1200 {
		many = append(many, entry{name: fmt.Sprint(i)})
	}
	deep := strings.Repeat("d/", 1500) + "x"
	long := strings.Repeat(strings.Repeat("d", 250)+"/", 10)
	for name, c := range map[string]struct {
		entries []entry
		is      error
		says    string
	}{
		"a path that leads out":          {[]entry{{name: "../secret", body: "x"}}, ErrHostile, `"../secret"`},
		"one that does so in the middle": {[]entry{{name: "a/../../secret", body: "x"}}, ErrHostile, "leads out"},
		"an absolute one that does so":   {[]entry{{name: "/../secret", body: "x"}}, ErrHostile, "leads out"},
		"a hard link out":                {[]entry{{name: "h", kind: tar.TypeLink, link: "../secret"}}, ErrHostile, `"../secret"`},
		"an absolute hard link":          {[]entry{{name: "h", kind: tar.TypeLink, link: "/etc/shadow"}}, nil, "no such file"},
		"an absolute hard link out":      {[]entry{{name: "h", kind: tar.TypeLink, link: "/../secret"}}, ErrHostile, "leads out"},
		"a hard link through a link": {
			[]entry{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "h", kind: tar.TypeLink, link: "l/secret"}}, nil, "no such file",
		},
		"a hard link to a directory":  {[]entry{{name: "d", kind: tar.TypeDir}, {name: "h", kind: tar.TypeLink, link: "d"}}, ErrHostile, "directory"},
		"an unknown type":             {[]entry{{name: "v", kind: 'V'}}, ErrHostile, `"v"`},
		"a long name":                 {[]entry{{name: strings.Repeat("n", 256)}}, ErrHostile, "255"},
		"a long path":                 {[]entry{{name: strings.Repeat("d/", 2100) + "x"}}, ErrHostile, "4096"},
		"a whiteout of its directory": {[]entry{{name: "d/.wh..."}}, ErrHostile, "removes no file"},
		"a whiteout of nothing":       {[]entry{{name: "d/.wh."}}, ErrHostile, "removes no file"},
		"a file as a directory":       {[]entry{{name: "f"}, {name: "f/x"}}, ErrHostile, "no directory"},
		"a loop of links": {
			[]entry{{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "a"}, {name: "a/x"}}, ErrHostile, "too many links",
		},
		"a path that links make long": {
			[]entry{{name: long + "x"}, {name: "l", kind: tar.TypeSymlink, link: long}, {name: "l/" + long + "x"}}, ErrHostile, "with the links in it",
		},
		"a long link":       {[]entry{{name: "l", kind: tar.TypeSymlink, link: strings.Repeat("x", 5000)}}, ErrHostile, "4095"},
		"a huge file":       {[]entry{{name: "big", body: strings.Repeat("0", 2<<20)}}, ErrTooLarge, `"big"`},
		"files that add up": {[]entry{{name: "a", body: strings.Repeat("0", 600<<10)}, {name: "b", body: strings.Repeat("0", 600<<10)}}, ErrTooLarge, `"b"`},
		"many files":        {many, ErrTooLarge, "1000 entries"},
		"many directories":  {[]entry{{name: deep}}, ErrTooLarge, "1000 entries"},
		"a huge owner":      {[]entry{{name: "o", uid: 1 << 40}}, ErrHostile, "owner"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := unpackAll(t, small, layerOf(t, c.entries...))
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %s", err, c.says)
			}
			if raw, err := os.ReadFile(filepath.Join(dir, "../secret")); err != nil || string(raw) != "secret" {
				t.Errorf("the file beside is %q, %v", raw, err)
			}
			if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 2 {
				t.Errorf("beside the directory there is now %v", left)
			}
		})
	}
}

// The paths of a layer are remembered as digests, not as text.
func TestLongPathsTakeLittleMemory(t *testing.T) {
	needRoot(t)
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 15)
	var many []entry
	for i := range 300 {
		many = append(many, entry{name: deep + fmt.Sprint(i)})
	}
	layer := layerOf(t, many...)
	u, err := newUnpacker(t.TempDir(), Limits{Bytes: 8 << 20, Entries: 2000})
	if err != nil {
		t.Fatal(err)
	}
	defer u.root.Close()
	inUse := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse()
	if err := u.layer(bytes.NewReader(layer)); err != nil {
		t.Fatal(err)
	}
	if grown := inUse() - before; grown > 256<<10 {
		t.Errorf("%d bytes are held", grown)
	}
	if !u.made[keyOf(deep+"299")] {
		t.Error("the last path is forgotten")
	}
	runtime.KeepAlive(layer)
}

func TestBombsEnd(t *testing.T) {
	zeros := func(w io.Writer) {
		if _, err := io.CopyN(w, zeroReader{}, 64<<20); err != nil {
			t.Fatal(err)
		}
	}
	var gz, zst bytes.Buffer
	w := gzip.NewWriter(&gz)
	zeros(w)
	w.Close()
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	zeros(z)
	z.Close()
	for name, raw := range map[string][]byte{"gzip": gz.Bytes(), "zstd": zst.Bytes()} {
		plain, err := decompress(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, &budget{r: plain, left: 1 << 20, limit: 1 << 20})
		if !errors.Is(err, ErrTooLarge) || n != 1<<20 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func FuzzUnpack(f *testing.F) {
	f.Add(layerOf(f, entry{name: "a/b", body: "x"}, entry{name: "a/.wh.b"}, entry{name: "l", kind: tar.TypeSymlink, link: "/a"}, entry{name: "l/c"}))
	f.Add(layerOf(f, entry{name: "../x"}))
	f.Add(layerOf(f, entry{name: "h", kind: tar.TypeLink, link: "../secret"}))
	f.Add([]byte("no archive"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir, _ := unpackAll(t, Limits{Bytes: 1 << 16, Entries: 50}, raw)
		if beside, err := os.ReadFile(filepath.Join(dir, "../secret")); err != nil || string(beside) != "secret" {
			t.Fatalf("the file beside is %q, %v", beside, err)
		}
		if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 2 {
			t.Fatalf("beside the directory there is now %v", left)
		}
	})
}

// What an image takes is known at its end: a small layer may unpack to much.
func TestRoomIsAskedForWhileAnImageIsUnpacked(t *testing.T) {
	noRoom := errors.New("no room")
	body := strings.Repeat("x", 24<<20)
	layer := layerOf(t, entry{name: "a", body: body}, entry{name: "b", body: body}, entry{name: "c", body: body}, entry{name: "d", body: body})
	var asked []int64
	limits := Limits{Bytes: 1 << 30, Entries: 1000, Room: func(bytes int64) error {
		asked = append(asked, bytes)
		return noRoom
	}}
	dir, err := unpackAll(t, limits, layer)
	if !errors.Is(err, noRoom) || len(asked) != 1 {
		t.Fatalf("asked for %v, got %v", asked, err)
	}
	// The third file, and a file system of all three.
	if least, most := int64(4*24<<20), int64(4*24<<20+1<<20); asked[0] < least || asked[0] > most {
		t.Errorf("asked for %d bytes, want %d to %d", asked[0], least, most)
	}
	if _, err := os.Stat(filepath.Join(dir, "c")); err == nil {
		t.Error("what has no room was written")
	}
	limits.Room = func(int64) error { return nil }
	if _, err := unpackAll(t, limits, layer); err != nil {
		t.Errorf("with room: %v", err)
	}
	// Empty files and directories take a block each.
	u, err := newUnpacker(t.TempDir(), Limits{Bytes: 1 << 20, Entries: 1000, Room: func(int64) error { return noRoom }})
	if err != nil {
		t.Fatal(err)
	}
	defer u.root.Close()
	u.unasked = roomStep - 4*entryBytes
	err = u.unpack(bytes.NewReader(layerOf(t, entry{name: "one"}, entry{name: "made/on/the/way"})))
	if !errors.Is(err, noRoom) {
		t.Errorf("many empty files: got %v", err)
	}
}

// doing is a reader that does something when it is read, and is empty.
type doing func()

func (d doing) Read([]byte) (int, error) { d(); return 0, io.EOF }

// An image that says again and again that a large directory is opaque would keep the host
// busy for days.
func TestADirectoryIsClearedOnceInALayer(t *testing.T) {
	dir := t.TempDir()
	u, err := newUnpacker(dir, small)
	if err != nil {
		t.Fatal(err)
	}
	defer u.root.Close()
	opaque := []entry{{name: "a/b/.wh..wh..opq"}, {name: "a/.wh..wh..opq"}, {name: "a/.wh.b"}, {name: ".wh..wh..opq"}}
	layer := layerOf(t, slices.Concat([]entry{{name: "a/b/own", uid: os.Getuid(), gid: os.Getgid()}}, opaque, opaque)...)
	const first = 5 * 512 // without the second time; each entry is a header alone
	look := doing(func() {
		if err := os.WriteFile(filepath.Join(dir, "a/b/probe"), nil, 0o600); err != nil {
			t.Error(err)
		}
	})
	if err := u.layer(bytes.NewReader(layerOf(t, entry{name: "a/b/lower", uid: os.Getuid(), gid: os.Getgid()}))); err != nil {
		t.Fatal(err)
	}
	if err := u.layer(io.MultiReader(bytes.NewReader(layer[:first]), look, bytes.NewReader(layer[first:]))); err != nil {
		t.Fatal(err)
	}
	got := tree(t, dir)
	if _, again := got["a/b/probe"]; !again {
		t.Error("it is looked through again")
	}
	if _, lower := got["a/b/lower"]; lower {
		t.Error("it is not cleared")
	}
}
