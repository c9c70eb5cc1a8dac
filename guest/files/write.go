package files

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// copyBuffer is what is held of a file on its way, in bytes.
const copyBuffer = 128 << 10

// maxLinks is how many links the kernel follows.
const maxLinks = 40

// Write atomically replaces the file at path by body. It makes parent directories, writes through links, and keeps the owner
// of the file that it replaces. size is the body's, or -1; a body that ends
// before it, or with an error, changes nothing. created says that no file was
// there.
func Write(path string, mode uint32, size int64, body io.Reader) (created bool, err error) {
	dirName, name, err := resolve(path)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(dirName, 0o755); err != nil {
		return false, err
	}
	dir, err := openDir(unix.AT_FDCWD, dirName, 0)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	var old unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), name, &old, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		created = true
	case err != nil:
		return false, err
	case old.Mode&unix.S_IFMT == unix.S_IFDIR:
		return false, unix.EISDIR
	case old.Mode&unix.S_IFMT != unix.S_IFREG && old.Mode&unix.S_IFMT != unix.S_IFLNK:
		return false, errNotRegular
	}
	t, err := newTemp(dir)
	if err != nil {
		return false, err
	}
	defer t.discard()
	if err := t.fill(size, body); err != nil {
		return false, err
	}
	if !created && old.Mode&unix.S_IFMT == unix.S_IFREG && (old.Uid != 0 || old.Gid != 0) {
		if err := t.file.Chown(int(old.Uid), int(old.Gid)); err != nil {
			return false, err
		}
	}
	// By the system call: FileMode has other bits for set-uid and its like.
	if err := unix.Fchmod(int(t.file.Fd()), mode); err != nil {
		return false, err
	}
	return created, t.commit(name)
}

// resolve follows the links at the end of path and returns the directory and
// the name of what they end at. Links on the way there are the kernel's.
func resolve(path string) (dir, name string, err error) {
	for range maxLinks {
		slash := strings.LastIndexByte(path, '/')
		dir, name = path[:slash+1], path[slash+1:]
		if name == "" || name == "." || name == ".." {
			return "", "", unix.EISDIR
		}
		target, err := os.Readlink(path)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return dir, name, nil
		case err != nil:
			return "", "", err
		case strings.HasPrefix(target, guestapi.RunDir+"/"):
			// The identity's files, in guestd's own directory. A file in the place of
			// the link is the workload's, and is written by the next identity, too.
			return dir, name, nil
		case target[0] == '/':
			path = target
		default:
			// Not cleaned: ".." after a link is the parent of the link's target.
			path = dir + target
		}
	}
	return "", "", unix.ELOOP
}

// temp is a file that has yet to get its name.
type temp struct {
	dir  *os.File
	file *os.File
	name string // empty: it has none, and goes with its last descriptor
}

// newTemp makes a file without a name, which disappears if the guest or its agent
// is killed, or one with a name where the file system has no such files.
func newTemp(dir *os.File) (*temp, error) {
	t := &temp{dir: dir}
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		t.name = tempName()
		fd, err = unix.Openat(int(dir.Fd()), t.name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	}
	if errors.Is(err, unix.ENOENT) {
		err = unix.EACCES // the directory is open: it is one of the kernel's own
	}
	if err != nil {
		return nil, err
	}
	t.file = os.NewFile(uintptr(fd), t.name)
	return t, nil
}

func tempName() string { return ".berth-" + rand.Text() }

// fill reserves the space for the body, then writes it: a file that does not fit is
// refused before it is sent.
func (t *temp) fill(size int64, body io.Reader) error {
	if size > 0 {
		err := unix.Fallocate(int(t.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EFBIG) || errors.Is(err, unix.EDQUOT) {
			return err
		}
	}
	buf := getBuffer()
	defer putBuffer(buf)
	var total int64
	for {
		n, err := body.Read(buf)
		if _, err := t.file.Write(buf[:n]); err != nil {
			return err
		}
		total += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(errInterrupted, err)
		}
	}
	if size >= 0 && total != size {
		return errInterrupted
	}
	return t.file.Sync()
}

// commit gives the file its name.
func (t *temp) commit(name string) error {
	dir := int(t.dir.Fd())
	if t.name == "" {
		linked := tempName()
		if err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(t.file.Fd())), dir, linked, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
		t.name = linked
	}
	if err := unix.Renameat(dir, t.name, dir, name); err != nil {
		return err
	}
	t.name = ""
	return t.dir.Sync()
}

// discard removes what was not committed.
func (t *temp) discard() {
	if t.name != "" {
		_ = unix.Unlinkat(int(t.dir.Fd()), t.name, 0)
	}
	_ = t.file.Close()
}

// buffers are reused: the agent's garbage is rarely collected.
var buffers = make(chan []byte, 4)

func getBuffer() []byte {
	select {
	case b := <-buffers:
		return b
	default:
		return make([]byte, copyBuffer)
	}
}

func putBuffer(b []byte) {
	select {
	case buffers <- b:
	default:
	}
}
