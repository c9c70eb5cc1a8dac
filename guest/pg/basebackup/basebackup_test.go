package basebackup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pgapi"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// entry is one of a tar stream.
type entry struct {
	tar.Header
	content []byte
}

func entries(t testing.TB, raw []byte) []entry {
	t.Helper()
	var out []entry
	for tr := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry{*h, content})
	}
}

func pack(t testing.TB, all []entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range all {
		h := e.Header
		h.Size = int64(len(e.content))
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestABackupIsCheckedFileByFile(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	ctx := pgtest.Context(t)
	conn, err := s.ConnectReplication(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var buf bytes.Buffer
	info, err := Stream(ctx, conn, pgapi.Backup{Label: "first"}, &buf)
	if err != nil {
		t.Fatal(err)
	}
	raw := buf.Bytes()
	all := entries(t, raw)
	if all[len(all)-1].Name != manifestFile || info.Timeline != 1 || info.StartLSN == "" || info.StopLSN == "" || info.Files < 900 || info.DataBytes < 10<<20 {
		t.Errorf("%+v; the last entry is %s", info, all[len(all)-1].Name)
	}
	for _, e := range all {
		if strings.HasPrefix(e.Name, "pg_wal/0") {
			t.Errorf("WAL: %s", e.Name)
		}
	}
	dir := t.TempDir()
	base, err := Unpack(ctx, bytes.NewReader(raw), dir, os.Getuid(), os.Getgid())
	if err != nil || base.Files != info.Files || base.DataBytes != info.DataBytes || base.SystemID == "" {
		t.Fatalf("%+v, %v", base, err)
	}
	for name, mode := range map[string]os.FileMode{"PG_VERSION": 0o600, "base": 0o700 | os.ModeDir, "pg_wal": 0o700 | os.ModeDir} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode() != mode {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "postmaster.pid")); err == nil {
		t.Error("a lock file of the source")
	}

	find := func(name string) int {
		for i, e := range all {
			if e.Name == name {
				return i
			}
		}
		t.Fatalf("no %s", name)
		return 0
	}
	change := func(f func(all []entry) []entry) []byte { return pack(t, f(append([]entry(nil), all...))) }
	flip := func(name string) func([]entry) []entry {
		return func(all []entry) []entry {
			i := find(name)
			all[i].content = append([]byte(nil), all[i].content...)
			all[i].content[len(all[i].content)/2] ^= 1
			return all
		}
	}
	for what, c := range map[string]struct {
		raw   []byte
		want  error
		names string
	}{
		"a bit of a file":        {change(flip("global/pg_control")), ErrDamaged, "global/pg_control"},
		"a bit of a table":       {change(flip("base/1/1259")), ErrDamaged, "base/1/1259"},
		"a bit of the manifest":  {change(flip(manifestFile)), ErrDamaged, manifestFile},
		"a file that is missing": {change(func(all []entry) []entry { i := find("base/1/1259"); return append(all[:i], all[i+1:]...) }), ErrDamaged, "base/1/1259"},
		"a file that is short": {change(func(all []entry) []entry {
			i := find("base/1/1259")
			all[i].content = all[i].content[:8192]
			return all
		}), ErrDamaged, "base/1/1259"},
		"a file more": {change(func(all []entry) []entry {
			return append([]entry{{tar.Header{Name: "more", Typeflag: tar.TypeReg}, nil}}, all...)
		}), ErrDamaged, "more"},
		"no manifest":        {change(func(all []entry) []entry { return all[:len(all)-1] }), ErrDamaged, manifestFile},
		"a stream that ends": {raw[:len(raw)/2], ErrDamaged, ""},
		"an empty stream":    {nil, ErrDamaged, manifestFile},
		"no tar":             {bytes.Repeat([]byte("x"), 4096), ErrDamaged, ""},
		"an entry after all": {change(func(all []entry) []entry { return append(all, all[0]) }), ErrUnsafe, all[0].Name},
		"a file twice":       {change(func(all []entry) []entry { return append([]entry{all[find("PG_VERSION")]}, all...) }), ErrUnsafe, "PG_VERSION"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := Unpack(ctx, bytes.NewReader(c.raw), t.TempDir(), os.Getuid(), os.Getgid())
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.names) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestABackupEndsWithItsCaller(t *testing.T) {
	s := pgtest.Run(t, pgtest.Config(t))
	conn, err := s.ConnectReplication(pgtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	ctx, cancel := context.WithCancel(pgtest.Context(t))
	var n int
	_, err = Stream(ctx, conn, pgapi.Backup{Label: "slow", MaxRateK: 32}, writerFunc(func(p []byte) (int, error) {
		n += len(p)
		cancel()
		return len(p), nil
	}))
	if !errors.Is(err, context.Canceled) || n == 0 {
		t.Errorf("%d bytes, %v", n, err)
	}
	watch, err := s.Connect(pgtest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close(context.Background())
	for senders := 1; senders > 0; {
		if err := watch.QueryRow(pgtest.Context(t), "SELECT count(*) FROM pg_stat_progress_basebackup").Scan(&senders); err != nil {
			t.Fatal(err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRequestsForABackup(t *testing.T) {
	for _, b := range []pgapi.Backup{{}, {Label: "a'b"}, {Label: "a b"}, {Label: strings.Repeat("a", 65)}, {Label: "a", MaxRateK: 1}, {Label: "a", MaxRateK: -5}, {Label: "a", MaxRateK: 1 << 21}} {
		if err := Check(b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

func TestEntriesThatNoBackupHas(t *testing.T) {
	for what, h := range map[string]tar.Header{
		"a way out":           {Name: "../x", Typeflag: tar.TypeReg},
		"a way out below":     {Name: "base/../../x", Typeflag: tar.TypeReg},
		"a hidden way out":    {Name: "base/..", Typeflag: tar.TypeDir},
		"an absolute path":    {Name: "/etc/passwd", Typeflag: tar.TypeReg},
		"no name":             {Name: "", Typeflag: tar.TypeReg},
		"a long name":         {Name: strings.Repeat("a/", 300) + "a", Typeflag: tar.TypeReg},
		"a symbolic link":     {Name: "x", Linkname: "/etc", Typeflag: tar.TypeSymlink},
		"a hard link":         {Name: "x", Linkname: "PG_VERSION", Typeflag: tar.TypeLink},
		"a device":            {Name: "x", Typeflag: tar.TypeChar},
		"a pipe":              {Name: "x", Typeflag: tar.TypeFifo},
		"a tablespace":        {Name: "pg_tblspc/16400", Linkname: "/x", Typeflag: tar.TypeSymlink},
		"a tablespace's file": {Name: "pg_tblspc/16400/x", Typeflag: tar.TypeReg},
	} {
		dir := t.TempDir()
		below := filepath.Join(dir, "data")
		if err := os.Mkdir(below, 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Unpack(context.Background(), bytes.NewReader(pack(t, []entry{{Header: h}})), below, os.Getuid(), os.Getgid())
		if !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s: %v", what, err)
		}
		if got, _ := os.ReadDir(dir); len(got) != 1 {
			t.Errorf("%s: %v", what, got)
		}
	}
	_, err := Unpack(t.Context(), bytes.NewReader(pack(t, []entry{{tar.Header{Name: "tablespace_map", Typeflag: tar.TypeReg}, []byte("1 /x")}})), t.TempDir(), os.Getuid(), os.Getgid())
	if !errors.Is(err, ErrUnsafe) {
		t.Errorf("a tablespace map: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack(f, []entry{{Header: tar.Header{Name: "../x", Typeflag: tar.TypeReg}}}))
	f.Add(pack(f, []entry{{tar.Header{Name: "base/1/x", Typeflag: tar.TypeReg}, []byte("a")}, {tar.Header{Name: manifestFile, Typeflag: tar.TypeReg}, []byte(`{"PostgreSQL-Backup-Manifest-Version": 1,` + "\n" + `"Files": [],` + "\n" + `"Manifest-Checksum": "x"}`)}}))
	f.Add(pack(f, []entry{{Header: tar.Header{Name: "pg_tblspc", Typeflag: tar.TypeDir}}, {Header: tar.Header{Name: "a", Linkname: "..", Typeflag: tar.TypeSymlink}}, {Header: tar.Header{Name: "a/x", Typeflag: tar.TypeReg}}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		below := filepath.Join(dir, "data")
		if err := os.Mkdir(below, 0o700); err != nil {
			t.Fatal(err)
		}
		_, _ = Unpack(context.Background(), bytes.NewReader(raw), below, os.Getuid(), os.Getgid())
		got, err := os.ReadDir(dir)
		if err != nil || len(got) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
		_ = filepath.WalkDir(below, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() && !e.Type().IsRegular() {
				t.Fatalf("%s is %v", path, e.Type())
			}
			return nil
		})
	})
}
