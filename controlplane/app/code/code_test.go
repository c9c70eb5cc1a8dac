package code

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// packed makes a tar.gz.
func packed(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// check reads a tar.gz to its end through a Checked.
func check(runtime string, r io.Reader) ([]byte, error) {
	c := Check(runtime, r)
	defer c.Close()
	return io.ReadAll(c)
}

func file(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3, Mode: 0o644}
}

func TestWhatIsCodePassesAsItIs(t *testing.T) {
	for name, c := range map[string]struct {
		runtime string
		headers []tar.Header
	}{
		"python":         {"python", []tar.Header{file("handler.py"), file("lib/a.py")}},
		"dots":           {"python", []tar.Header{{Typeflag: tar.TypeDir, Name: "./"}, file("./handler.py")}},
		"git archive":    {"node", []tar.Header{{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": "x"}}, file("handler.mjs")}},
		"node":           {"node", []tar.Header{file("handler.js"), {Typeflag: tar.TypeDir, Name: "lib/"}, file("lib/b.js")}},
		"the same twice": {"node", []tar.Header{file("handler.cjs"), file("handler.cjs")}},
	} {
		raw := append(packed(t, c.headers...), "rest"...)
		got, err := check(c.runtime, iotest.OneByteReader(bytes.NewReader(raw)))
		if err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(raw), err)
		}
	}
}

func TestWhatIsNoCode(t *testing.T) {
	many := []tar.Header{file("handler.py")}
	for i := range MaxFiles {
		many = append(many, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint("f", i)})
	}
	whole := packed(t, file("handler.py"), tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: 1 << 20})
	for name, c := range map[string]struct {
		raw  []byte
		text string
		is   error
	}{
		"nothing":     {nil, "want a tar.gz", ErrRefused},
		"text":        {[]byte("def handler(): pass"), "want a tar.gz", ErrRefused},
		"no tar":      {gzipped("text that is no archive" + strings.Repeat("x", 600)), "want a tar.gz", ErrRefused},
		"half":        {whole[:len(whole)/2], "want a tar.gz", ErrRefused},
		"no handler":  {packed(t, file("main.py")), "there is no handler.py at its top", ErrRefused},
		"deeper":      {packed(t, file("src/handler.py")), "there is no handler.py", ErrRefused},
		"a directory": {packed(t, tar.Header{Typeflag: tar.TypeDir, Name: "handler.py"}), "there is no handler.py", ErrRefused},
		"up":          {packed(t, file("../handler.py")), "relative", ErrRefused},
		"up within":   {packed(t, file("a/../handler.py")), "relative", ErrRefused},
		"absolute":    {packed(t, file("/handler.py")), "relative", ErrRefused},
		"backslash":   {packed(t, file(`a\b`)), "character", ErrRefused},
		"long":        {packed(t, file(strings.Repeat("n", maxName+1))), "at most 512 bytes", ErrRefused},
		"symlink":     {packed(t, file("handler.py"), tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc/passwd"}), `"l" is a link`, ErrRefused},
		"hard link":   {packed(t, tar.Header{Typeflag: tar.TypeLink, Name: "l", Linkname: "x"}), "is a link", ErrRefused},
		"device":      {packed(t, tar.Header{Typeflag: tar.TypeChar, Name: "d"}), "no file", ErrRefused},
		"too many":    {packed(t, many...), "at most 10000 files", ErrTooLarge},
		"bomb":        {packed(t, file("handler.py"), tar.Header{Typeflag: tar.TypeReg, Name: "b", Size: MaxUnpacked}), "at most 250 MiB", ErrTooLarge},
		"both":        {packed(t, file("a"), file("a/b")), "both", ErrRefused},
		"both, later": {packed(t, file("a/b"), file("a")), "both", ErrRefused},
	} {
		_, err := check("python", bytes.NewReader(c.raw))
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
	if _, err := check("python", io.LimitReader(zeros{}, MaxPacked+1)); !errors.Is(err, ErrRefused) {
		t.Errorf("zeros: %v", err)
	}
	long := io.MultiReader(bytes.NewReader(packed(t, file("handler.py"))), io.LimitReader(zeros{}, MaxPacked))
	if _, err := check("python", long); !errors.Is(err, ErrTooLarge) {
		t.Errorf("long: %v", err)
	}
	broken := errors.New("the client left")
	if _, err := check("python", io.MultiReader(bytes.NewReader(whole[:20]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a break: %v", err)
	}
}

func gzipped(s string) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	return out.Bytes()
}

// An archive that has headers without end is not read to its end.
func TestAnArchiveOfHeaders(t *testing.T) {
	var global, handler, out bytes.Buffer
	w := tar.NewWriter(&global)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": strings.Repeat("x", 1<<20-100)}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	w = tar.NewWriter(&handler)
	if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "handler.py"}), w.Close()); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	for range maxArchive/global.Len() + 1 {
		if _, err := zip.Write(global.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := zip.Write(handler.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := check("python", &out); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

func TestPack(t *testing.T) {
	raw, err := Pack("node", map[string]string{"handler.mjs": "export default () => 1", "lib//x.mjs": "", "./y.txt": "é"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := check("node", bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		text, _ := io.ReadAll(r)
		got = append(got, h.Name+"="+string(text))
	}
	if strings.Join(got, " ") != "y.txt=é handler.mjs=export default () => 1 lib/x.mjs=" {
		t.Errorf("packed %q", got)
	}
	for _, files := range []map[string]string{
		nil, {"main.mjs": ""}, {"handler.mjs": "", "../x": ""}, {"handler.mjs": "", "/x": ""}, {"handler.mjs": "", "a": "", "a/b": ""},
		{"handler.mjs": "", "": ""}, {"handler.mjs": "", "d/": ""}, {"handler.mjs": "", "a\x00": ""},
	} {
		if _, err := Pack("node", files); !errors.Is(err, ErrRefused) {
			t.Errorf("%q: %v", files, err)
		}
	}
}

// FuzzCheck: whatever is sent is refused, or passes unchanged.
func FuzzCheck(f *testing.F) {
	f.Add(packed(f, file("handler.py")))
	f.Add([]byte("text"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := check("python", bytes.NewReader(raw))
		if err == nil && !bytes.Equal(got, raw) {
			t.Error("it was changed")
		}
		if err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%v", err)
		}
	})
}
