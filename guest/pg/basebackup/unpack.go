package basebackup

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/berth-cloud/berth/guest/pgapi"
)

// Errors of a stream, which name the entry.
var (
	ErrUnsafe  = errors.New("no base backup has such an entry")
	ErrDamaged = errors.New("the base backup is damaged")
)

// Bounds of a stream.
const (
	maxEntries = 2_000_000
	maxPath    = 512
)

// majorVersion is what PG_VERSION says.
const majorVersion = "16"

// Unpack puts a stream of Stream into an empty directory and checks every file
// against the manifest. Files belong to the user and the group.
func Unpack(ctx context.Context, r io.Reader, dir string, uid, gid int) (pgapi.RestoreBase, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return pgapi.RestoreBase{}, err
	}
	defer root.Close()
	return read(ctx, r, &place{root, uid, gid})
}

type reader struct {
	to       *place
	seen     map[string]manifestEntry
	manifest []byte
	version  string
	systemID string
}

func read(ctx context.Context, r io.Reader, to *place) (pgapi.RestoreBase, error) {
	rd := reader{to: to, seen: map[string]manifestEntry{}}
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return pgapi.RestoreBase{}, context.Cause(ctx)
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return pgapi.RestoreBase{}, fmt.Errorf("%w: the stream ends in the middle: %w", ErrDamaged, err)
		}
		if n == maxEntries {
			return pgapi.RestoreBase{}, fmt.Errorf("%w: more than %d of them", ErrUnsafe, maxEntries)
		}
		if rd.manifest != nil {
			return pgapi.RestoreBase{}, fmt.Errorf("%w: %.100q after the manifest", ErrUnsafe, h.Name)
		}
		if err := rd.entry(h, tr); err != nil {
			return pgapi.RestoreBase{}, err
		}
	}
	return rd.finish()
}

// safe returns the path of an entry below the data directory.
func safe(name string) (string, error) {
	clean := path.Clean(strings.TrimSuffix(name, "/"))
	if len(name) > maxPath || !fs.ValidPath(clean) || strings.ContainsAny(name, "\x00\\") || strings.HasPrefix(name, "/") {
		return "", fmt.Errorf("%w: %.100q", ErrUnsafe, name)
	}
	for _, part := range strings.Split(strings.TrimSuffix(name, "/"), "/") {
		if part == ".." || part == "" {
			return "", fmt.Errorf("%w: %.100q", ErrUnsafe, name)
		}
	}
	if strings.HasPrefix(clean, "pg_tblspc/") {
		return "", fmt.Errorf("%w: %.100q: a tablespace", ErrUnsafe, name)
	}
	return clean, nil
}

func (rd *reader) entry(h *tar.Header, r io.Reader) error {
	name, err := safe(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil
		}
		return rd.to.mkdir(name)
	case tar.TypeReg:
	default:
		return fmt.Errorf("%w: %.100q is of type %q", ErrUnsafe, h.Name, h.Typeflag)
	}
	if name == manifestFile {
		if h.Size > maxManifest {
			return fmt.Errorf("%w: the manifest has %d bytes", ErrUnsafe, h.Size)
		}
		rd.manifest, err = io.ReadAll(r)
		if err == nil && rd.manifest == nil {
			rd.manifest = []byte{}
		}
		return torn(err, name)
	}
	if _, twice := rd.seen[name]; twice {
		return fmt.Errorf("%w: %.100q twice", ErrUnsafe, h.Name)
	}
	if name == "tablespace_map" && h.Size > 0 {
		return fmt.Errorf("%w: %q: tablespaces", ErrUnsafe, name)
	}
	return rd.file(name, r)
}

func (rd *reader) file(name string, r io.Reader) error {
	w, err := rd.to.create(name)
	if err != nil {
		return err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	var head bytes.Buffer
	n, err := io.Copy(io.MultiWriter(onlyErrors{w}, sum, &limited{&head, 64}), r)
	if err = errors.Join(err, w.Close()); err != nil {
		if errors.As(err, new(*writeError)) {
			return fmt.Errorf("write %s: %w", name, err)
		}
		return torn(err, name)
	}
	var crc [4]byte
	binary.LittleEndian.PutUint32(crc[:], sum.Sum32())
	rd.seen[name] = manifestEntry{n, hex.EncodeToString(crc[:])}
	switch name {
	case "PG_VERSION":
		rd.version = strings.TrimSpace(head.String())
	case "global/pg_control":
		if head.Len() >= 8 {
			rd.systemID = fmt.Sprint(binary.LittleEndian.Uint64(head.Bytes()))
		}
	}
	return nil
}

// torn says that a stream ended within a file.
func torn(err error, name string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: it ends in %s: %w", ErrDamaged, name, err)
}

func (rd *reader) finish() (pgapi.RestoreBase, error) {
	if rd.manifest == nil {
		return pgapi.RestoreBase{}, fmt.Errorf("%w: it has no %s", ErrDamaged, manifestFile)
	}
	m, err := parseManifest(rd.manifest)
	if err != nil {
		return pgapi.RestoreBase{}, err
	}
	base := pgapi.RestoreBase{Files: len(m.files), SystemID: rd.systemID}
	for name, want := range m.files {
		got, ok := rd.seen[name]
		switch {
		case !ok:
			return base, fmt.Errorf("%w: %s is missing", ErrDamaged, name)
		case got.size != want.size:
			return base, fmt.Errorf("%w: %s has %d bytes: want %d", ErrDamaged, name, got.size, want.size)
		case got.crc != want.crc:
			return base, fmt.Errorf("%w: %s has another checksum", ErrDamaged, name)
		}
		base.DataBytes += want.size
	}
	for name := range rd.seen {
		if _, ok := m.files[name]; !ok {
			return base, fmt.Errorf("%w: %s is not in the manifest", ErrDamaged, name)
		}
	}
	for _, name := range []string{"backup_label", "global/pg_control"} {
		if _, ok := rd.seen[name]; !ok {
			return base, fmt.Errorf("%w: %s is missing", ErrDamaged, name)
		}
	}
	if rd.version != majorVersion {
		return base, fmt.Errorf("%w: it is of PostgreSQL %.10q, not %s", ErrDamaged, rd.version, majorVersion)
	}
	return base, nil
}

// place is a directory on disk.
type place struct {
	root     *os.Root
	uid, gid int
}

func (p *place) mkdir(name string) error {
	if err := p.root.MkdirAll(name, 0o700); err != nil {
		return err
	}
	return p.root.Lchown(name, p.uid, p.gid)
}

func (p *place) create(name string) (io.WriteCloser, error) {
	f, err := p.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Chown(p.uid, p.gid); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// writeError tells what failed to be written from what failed to be read.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

type onlyErrors struct{ io.Writer }

func (w onlyErrors) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = &writeError{err}
	}
	return n, err
}

// limited keeps the first bytes and drops the others.
type limited struct {
	to   *bytes.Buffer
	keep int
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.keep - l.to.Len(); room > 0 {
		l.to.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
