package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Manifest describes a snapshot. It is stored after everything that it names, so
// that a snapshot is complete or absent.
type Manifest struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	Meta
	ChunkSize int          `json:"chunk_size"`
	Files     []File       `json:"files"`
	Shared    []SharedFile `json:"shared,omitempty"`

	// Digest is the SHA-256 of the manifest as stored, in hexadecimal. Who keeps it
	// elsewhere can detect that the manifest was replaced.
	Digest string `json:"-"`
}

// Meta describes what a snapshot depends on.
type Meta struct {
	Engine string            `json:"engine"` // with its version: another engine cannot read the state
	Kernel string            `json:"kernel,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // for people who inspect the store
}

// File is a file that only this snapshot has.
type File struct {
	Name string `json:"name"` // slash-separated, below the snapshot's directory
	Content
}

// SharedFile is a file that several snapshots have. It has a manifest of its own,
// named by its digest.
type SharedFile struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // as its owner computes it; a sparse file's may omit holes
	Size   int64  `json:"size"`
}

// Content is a file's size and its chunks that are not all zeros, ascending.
type Content struct {
	Size   int64   `json:"size"`
	Chunks []Chunk `json:"chunks"`
}

// Chunk is ChunkSize bytes of a file, or the rest at its end.
type Chunk struct {
	Index  int64  `json:"n"`
	SHA256 string `json:"sha256"` // of the uncompressed content
}

// sharedManifest is the object of a shared file.
type sharedManifest struct {
	SHA256    string `json:"sha256"`
	ChunkSize int    `json:"chunk_size"`
	Content
}

const (
	format        = 1
	manifestMagic = "berth-snapshot"
	sharedMagic   = "berth-shared"
	maxManifest   = 64 << 20 // a disk of 64 GiB without holes takes 6 MB
	maxFiles      = 1000
	maxSize       = 16 << 40
	maxName       = 200
	maxLabels     = 100
	maxIDLength   = 64
	digestLen     = 2 * sha256.Size
	minChunk      = 64 << 10
)

// encode adds a header to a document: its kind, its format, and its SHA-256.
func encode(magic string, doc any) ([]byte, error) {
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	return append(fmt.Appendf(nil, "%s %d %x\n", magic, format, sum), body...), nil
}

// decode checks the header and decodes the document. It refuses unknown fields: a
// later format has another number.
func decode(magic string, raw []byte, doc any) error {
	line, body, ok := bytes.Cut(raw, []byte("\n"))
	head := strings.Split(string(line[:min(len(line), 200)]), " ")
	if !ok || len(head) != 3 || head[0] != magic {
		return fmt.Errorf("%w: the manifest has no header", ErrDamaged)
	}
	if head[1] != strconv.Itoa(format) {
		return fmt.Errorf("%w: %q, and this Berth reads %d", ErrOtherFormat, head[1], format)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != head[2] {
		return fmt.Errorf("%w: the manifest's checksum is wrong", ErrDamaged)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(doc)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows it")
		}
	}
	if err != nil {
		return fmt.Errorf("%w: the manifest cannot be read: %w", ErrDamaged, err)
	}
	return nil
}

// parseManifest decodes and checks a manifest. It checks everything that Fetch
// relies on: names stay below the directory, and sizes and indexes are in range.
func parseManifest(raw []byte) (Manifest, error) {
	var m Manifest
	if err := decode(manifestMagic, raw, &m); err != nil {
		return Manifest{}, err
	}
	if err := m.check(); err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	m.Digest = digest(raw)
	return m, nil
}

func parseShared(raw []byte) (sharedManifest, error) {
	var m sharedManifest
	if err := decode(sharedMagic, raw, &m); err != nil {
		return m, err
	}
	err := checkChunkSize(m.ChunkSize)
	if err == nil && !isDigest(m.SHA256) {
		err = errors.New("it has no digest")
	}
	if err == nil {
		err = m.Content.check(m.ChunkSize)
	}
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return m, nil
}

func (m *Manifest) check() error {
	if err := validID(m.ID); err != nil {
		return err
	}
	if err := checkChunkSize(m.ChunkSize); err != nil {
		return err
	}
	if len(m.Labels) > maxLabels {
		return errors.New("too many labels")
	}
	names := make([]string, 0, len(m.Files)+len(m.Shared))
	for i := range m.Files {
		f := &m.Files[i]
		names = append(names, f.Name)
		if err := f.check(m.ChunkSize); err != nil {
			return fmt.Errorf("file %s: %w", f.Name, err)
		}
	}
	for _, f := range m.Shared {
		names = append(names, f.Name)
		if !isDigest(f.SHA256) || f.Size < 0 || f.Size > maxSize {
			return fmt.Errorf("file %s: size or digest is impossible", f.Name)
		}
	}
	return checkNames(names)
}

// checkNames refuses names that cannot all be files below one directory.
func checkNames(names []string) error {
	if len(names) == 0 || len(names) > maxFiles {
		return fmt.Errorf("%d files", len(names))
	}
	dirs, files := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		if !fs.ValidPath(name) || name == "." || len(name) > maxName || strings.ContainsAny(name, "\x00\\") {
			return fmt.Errorf("file name %q", name)
		}
		if files[name] {
			return fmt.Errorf("file %s is there twice", name)
		}
		files[name] = true
		for i, c := range name {
			if c == '/' {
				dirs[name[:i]] = true
			}
		}
	}
	for name := range files {
		if dirs[name] {
			return fmt.Errorf("%s is a file and a directory", name)
		}
	}
	return nil
}

// checkChunkSize accepts several sizes, so that a later version may change
// ChunkSize.
func checkChunkSize(n int) error {
	if n < minChunk || n > ChunkSize || n&(n-1) != 0 {
		return fmt.Errorf("chunks of %d bytes", n)
	}
	return nil
}

func (c *Content) check(chunkSize int) error {
	if c.Size < 0 || c.Size > maxSize {
		return fmt.Errorf("%d bytes", c.Size)
	}
	last, end := int64(-1), (c.Size+int64(chunkSize)-1)/int64(chunkSize)
	for _, k := range c.Chunks {
		if k.Index <= last || k.Index >= end {
			return fmt.Errorf("chunk %d is out of place", k.Index)
		}
		last = k.Index
		if !isDigest(k.SHA256) {
			return fmt.Errorf("chunk %d has no digest", k.Index)
		}
	}
	return nil
}

// Bytes returns an upper limit of the disk space for the snapshot's own files.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += int64(len(f.Chunks)) * int64(m.ChunkSize)
	}
	return n
}

// Manifest returns a snapshot's manifest, checked.
func (s *Store) Manifest(ctx context.Context, id string) (Manifest, error) {
	if err := validID(id); err != nil {
		return Manifest{}, err
	}
	raw, err := s.get(ctx, manifestsDir+id, maxManifest)
	if isNotFound(err) {
		return Manifest{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("read manifest of snapshot %s: %w", id, err)
	}
	m, err := parseManifest(raw)
	if err == nil && m.ID != id {
		err = fmt.Errorf("%w: the manifest is of %s", ErrDamaged, m.ID)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("snapshot %s: %w", id, err)
	}
	return m, nil
}

// shared returns a shared file's manifest, checked.
func (s *Store) shared(ctx context.Context, sha string, get func(context.Context, string, int64) ([]byte, error)) (sharedManifest, error) {
	raw, err := get(ctx, sharedDir+sha, maxManifest)
	if isNotFound(err) {
		return sharedManifest{}, fmt.Errorf("%w: shared file %s is missing", ErrIncomplete, sha)
	}
	if err != nil {
		return sharedManifest{}, fmt.Errorf("read manifest of shared file %s: %w", sha, err)
	}
	m, err := parseShared(raw)
	if err == nil && m.SHA256 != sha {
		err = fmt.Errorf("%w: the manifest is of %s", ErrDamaged, m.SHA256)
	}
	if err != nil {
		return m, fmt.Errorf("shared file %s: %w", sha, err)
	}
	return m, nil
}

// validID checks an id that becomes part of a key.
func validID(id string) error {
	ok := id != "" && len(id) <= maxIDLength && id[0] != '-'
	for i := range len(id) {
		c := id[i]
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if !ok {
		return fmt.Errorf("%w: id %q", ErrInvalid, id)
	}
	return nil
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func isDigest(s string) bool {
	return len(s) == digestLen && strings.Trim(s, "0123456789abcdef") == ""
}

func sortFiles(m *Manifest) {
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Shared, func(a, b SharedFile) int { return strings.Compare(a.Name, b.Name) })
}
