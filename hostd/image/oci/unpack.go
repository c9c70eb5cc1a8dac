package oci

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Errors about an image's content. Each names the entry.
var (
	ErrTooLarge = errors.New("image is too large")
	ErrHostile  = errors.New("image refused")
)

const (
	maxPath      = 4096
	maxName      = 255
	maxLinks     = 40 // of one path, as in the kernel
	maxXattr     = 4 << 10
	maxID        = 1<<31 - 1
	zstdMemory   = 128 << 20 // the largest window that is decoded
	whiteout     = ".wh."
	whiteoutMeta = ".wh..wh."
	opaque       = ".wh..wh..opq"

	// capability is the only extended attribute that programs need: with it, all
	// users can use ping.
	capability = "security.capability"
)

// unpacker writes layers, lowest first, into one directory. Every access goes
// through root, which never leaves the directory, whatever links it contains.
// resolve follows links first, so that the image's own, which are often absolute,
// have the meaning that they have in a guest.
type unpacker struct {
	root  *os.Root
	left  Limits
	limit Limits
	layer func(io.Reader) error
	made  map[pathKey]bool // paths of the current layer and their parents
	// cleared are directories with nothing of lower layers. An image may say of a
	// directory with half a million files as often that it is one.
	cleared map[pathKey]bool

	written int64 // bytes of files, and a block of an entry
	unasked int64 // of them, for which Limits.Room was not asked
}

const (
	entryBytes = 4096     // the least that an entry takes
	roomStep   = 64 << 20 // Limits.Room is asked again after so many bytes
)

// take counts bytes that are written next, and asks for their room now and then: what
// an image takes is known only at its end, and by then the disk may be full.
func (u *unpacker) take(bytes int64) error {
	u.written += bytes
	u.unasked += bytes
	if u.limit.Room == nil || u.unasked < roomStep {
		return nil
	}
	u.unasked = 0
	return u.limit.Room(bytes + u.written)
}

// pathKey is a digest of a path. An image may have a million paths of 4 KiB each.
type pathKey [16]byte

func keyOf(p string) pathKey {
	sum := sha256.Sum256([]byte(p))
	return pathKey(sum[:16])
}

func newUnpacker(dir string, limits Limits) (*unpacker, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	u := &unpacker{root: root, left: limits, limit: limits}
	u.layer = u.unpack
	return u, nil
}

// decompress recognizes gzip and zstd by their first bytes, because media types may
// be wrong.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		return gzip.NewReader(b)
	case string(magic) == "\x28\xb5\x2f\xfd":
		d, err := zstd.NewReader(b, zstd.WithDecoderMaxMemory(zstdMemory), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

func (u *unpacker) unpack(r io.Reader) error {
	u.made, u.cleared = map[pathKey]bool{}, map[pathKey]bool{}
	// The rest counts too, because headers alone could fill memory or take for ever.
	entries := tar.NewReader(&budget{r: r, left: u.left.Bytes + int64(u.left.Entries)*1024 + 1<<20, limit: u.limit.Bytes})
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if u.left.Entries--; u.left.Entries < 0 {
			return fmt.Errorf("%w: more than %d entries", ErrTooLarge, u.limit.Entries)
		}
		if err := u.take(entryBytes); err != nil {
			return err
		}
		if err := u.entry(h, entries); err != nil {
			return fmt.Errorf("%q: %w", shown(h.Name), err)
		}
	}
}

// budget fails if a stream is too long.
type budget struct {
	r           io.Reader
	left, limit int64
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: unpacked it has more than %d bytes", ErrTooLarge, b.limit)
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func shown(name string) string { return name[:min(len(name), 200)] }

// entry creates one entry of a layer.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := cleanPath(h.Name)
	if err != nil || name == "." {
		return err
	}
	dir, base := path.Split(name)
	if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {
		// A guest's /dev is its kernel's. Elsewhere are those of a chroot, which a guest
		// can make by itself; on the host they would be devices of the host.
		return nil
	}
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return fmt.Errorf("%w: its owner is %d:%d", ErrHostile, h.Uid, h.Gid)
	}
	if dir, err = u.resolve(dir, true); err != nil {
		return err
	}
	if strings.HasPrefix(base, whiteout) {
		return u.whiteout(dir, base)
	}
	full := path.Join(dir, base)
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(full, h)
	case tar.TypeReg:
		err = u.file(full, h, content)
	case tar.TypeSymlink:
		err = u.symlink(full, h)
	case tar.TypeLink:
		err = u.hardLink(full, h)
	case tar.TypeFifo:
		err = u.pipe(full, h)
	default:
		return fmt.Errorf("%w: it is neither file, directory, link, pipe nor device (type %q)", ErrHostile, h.Typeflag)
	}
	if err != nil {
		return err
	}
	for p := full; p != "." && !u.made[keyOf(p)]; p = path.Dir(p) {
		u.made[keyOf(p)] = true
	}
	return nil
}

// cleanPath returns the path relative to the image's root.
func cleanPath(name string) (string, error) {
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: its path has more than %d characters or a NUL", ErrHostile, maxPath)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: its path leads out of the image", ErrHostile)
		}
		if len(part) > maxName {
			return "", fmt.Errorf("%w: a part of its path has more than %d characters", ErrHostile, maxName)
		}
	}
	return path.Clean(strings.TrimLeft(path.Clean("/"+name), "/")), nil
}

// resolve follows the links in a directory's path as a guest would, whose root this
// is. With create, it creates missing directories.
func (u *unpacker) resolve(dir string, create bool) (string, error) {
	at, rest := ".", strings.Split(strings.Trim(dir, "/"), "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..": // from a link's target
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		if len(next) > maxPath {
			return "", fmt.Errorf("%w: with the links in it its path has more than %d characters", ErrHostile, maxPath)
		}
		st, err := u.root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && create:
			if u.left.Entries--; u.left.Entries < 0 {
				return "", fmt.Errorf("%w: more than %d entries", ErrTooLarge, u.limit.Entries)
			}
			if err := u.take(entryBytes); err != nil {
				return "", err
			}
			if err := u.root.Mkdir(next, 0o755); err != nil {
				return "", err
			}
		case err != nil:
			return "", err
		case st.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return "", fmt.Errorf("%w: too many links in its path", ErrHostile)
			}
			target, err := u.root.Readlink(next)
			if err != nil {
				return "", err
			}
			if path.IsAbs(target) {
				at = "."
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		case !st.IsDir():
			return "", fmt.Errorf("%w: %q, in its path, is no directory", ErrHostile, shown(next))
		}
		at = next
	}
	return at, nil
}

// whiteout removes what lower layers have. What this layer has stays, whatever the
// order of entries.
func (u *unpacker) whiteout(dir, base string) error {
	if base == opaque {
		return u.clear(dir)
	}
	if strings.HasPrefix(base, whiteoutMeta) {
		return nil // aufs's own metadata
	}
	name := strings.TrimPrefix(base, whiteout)
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("%w: it removes no file of its directory", ErrHostile)
	}
	full := path.Join(dir, name)
	if !u.made[keyOf(full)] {
		return u.root.RemoveAll(full)
	}
	if st, err := u.root.Lstat(full); err == nil && st.IsDir() {
		return u.clear(full)
	}
	return nil
}

// clear removes from a directory what this layer does not have.
func (u *unpacker) clear(dir string) error {
	key := keyOf(dir)
	if u.cleared[key] {
		return nil
	}
	u.cleared[key] = true // what comes there from now on is of this layer
	entries, err := fs.ReadDir(u.root.FS(), dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		full := path.Join(dir, e.Name())
		switch {
		case !u.made[keyOf(full)]:
			err = u.root.RemoveAll(full)
		case e.IsDir():
			err = u.clear(full)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) directory(full string, h *tar.Header) error {
	st, err := u.root.Lstat(full)
	if err == nil && !st.IsDir() {
		err = errors.Join(u.root.Remove(full), fs.ErrNotExist)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = u.root.Mkdir(full, 0o755)
	}
	if err != nil {
		return err
	}
	return u.attributes(full, h)
}

func (u *unpacker) file(full string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.left.Bytes {
		return fmt.Errorf("%w: unpacked it has more than %d bytes", ErrTooLarge, u.limit.Bytes)
	}
	u.left.Bytes -= h.Size
	if err := u.take(h.Size); err != nil {
		return err
	}
	if err := u.root.RemoveAll(full); err != nil {
		return err
	}
	f, err := u.root.OpenFile(full, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, content)
	if err == nil && n != h.Size {
		err = io.ErrUnexpectedEOF
	}
	if value := h.PAXRecords["SCHILY.xattr."+capability]; err == nil && value != "" {
		if len(value) > maxXattr {
			err = fmt.Errorf("%w: its %s has %d bytes", ErrHostile, capability, len(value))
		} else if err = f.Chown(h.Uid, h.Gid); err == nil { // changing the owner later would remove it
			err = unix.Fsetxattr(int(f.Fd()), capability, []byte(value), 0)
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if h.PAXRecords["SCHILY.xattr."+capability] != "" {
		return u.root.Chmod(full, h.FileInfo().Mode())
	}
	return u.attributes(full, h)
}

// attributes sets the owner, mode and time of a file or directory. It sets the owner
// first, because changing it clears the set-user-id bit.
func (u *unpacker) attributes(full string, h *tar.Header) error {
	if err := u.root.Lchown(full, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := u.root.Chmod(full, h.FileInfo().Mode()); err != nil {
		return err
	}
	if t := h.ModTime; t.Year() > 1900 && t.Year() < 2400 {
		return u.root.Chtimes(full, time.Time{}, t)
	}
	return nil
}

// symlink creates a link with any target. Links are followed by resolve and in the
// guest, where an absolute target starts at the guest's root.
func (u *unpacker) symlink(full string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) >= maxPath || strings.ContainsRune(h.Linkname, 0) {
		return fmt.Errorf("%w: its target has 0 or more than %d characters, or a NUL", ErrHostile, maxPath-1)
	}
	if err := u.root.RemoveAll(full); err != nil {
		return err
	}
	if err := u.root.Symlink(h.Linkname, full); err != nil {
		return err
	}
	return u.root.Lchown(full, h.Uid, h.Gid)
}

// pipe creates a named pipe, such as those of a mail server's queue. Nobody opens it here.
func (u *unpacker) pipe(full string, h *tar.Header) error {
	if err := u.root.RemoveAll(full); err != nil {
		return err
	}
	dir, err := u.root.Open(path.Dir(full))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Mknodat(int(dir.Fd()), path.Base(full), unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	return u.attributes(full, h)
}

// hardLink creates a link to a file of this layer or a lower one. A target that is
// absolute starts at the image's root: kaniko writes all of them so.
func (u *unpacker) hardLink(full string, h *tar.Header) error {
	target, err := cleanPath(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", shown(h.Linkname), err)
	}
	dir, base := path.Split(target)
	if dir, err = u.resolve(dir, false); err != nil {
		return fmt.Errorf("hard link to %q: %w", shown(h.Linkname), err)
	}
	from := path.Join(dir, base)
	st, err := u.root.Lstat(from)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", shown(h.Linkname), err)
	}
	if st.IsDir() {
		return fmt.Errorf("%w: it is a hard link to a directory", ErrHostile)
	}
	if from == full {
		return nil
	}
	if err := u.root.RemoveAll(full); err != nil {
		return err
	}
	return u.root.Link(from, full)
}

// standard are the directories that a guest mounts on or that programs expect.
var standard = map[string]fs.FileMode{
	"dev": 0o755, "etc": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "sys": 0o555, "tmp": 0o777 | fs.ModeSticky, "var": 0o755,
}

// finish completes the root file system: it adds the directories that every guest
// has, and removes SSH host keys, which all guests would share.
func (u *unpacker) finish() error {
	for dir, mode := range standard {
		if _, err := u.root.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := u.root.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := u.root.Chmod(dir, mode); err != nil {
			return err
		}
	}
	ssh, err := u.resolve("etc/ssh", false)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	keys, err := fs.ReadDir(u.root.FS(), ssh)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if strings.HasPrefix(k.Name(), "ssh_host_") && strings.Contains(k.Name(), "_key") {
			if err := u.root.RemoveAll(path.Join(ssh, k.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
