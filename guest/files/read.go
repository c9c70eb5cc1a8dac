package files

import (
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// MaxHead is how much of a file is read before its length is announced, in bytes:
// files of /proc and /sys have a wrong size, or none.
const MaxHead = 64 << 10

// File is a file to be read: all of it is in Head; or it is File, of Size bytes;
// or, where Size is negative, it is Head and then the rest of File.
type File struct {
	File     *os.File
	Head     []byte
	Size     int64
	Modified time.Time
	ETag     string
}

// Close closes the file.
func (f *File) Close() { _ = f.File.Close() }

// Open opens a regular file. Nothing else is ever opened: that may start a
// watchdog, or block until a pipe's other end is open.
func Open(path string) (*File, error) {
	handle, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(handle)
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, unix.EISDIR
	default:
		return nil, errNotRegular
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(handle), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	f := &File{
		Size: st.Size, Modified: time.Unix(st.Mtim.Unix()),
		ETag: `"` + strconv.FormatUint(st.Ino, 36) + "-" + strconv.FormatInt(st.Size, 36) + "-" + strconv.FormatInt(st.Mtim.Nano(), 36) + `"`,
	}
	if st.Size <= MaxHead {
		err = f.readHead(fd)
	} else {
		// O_NONBLOCK means nothing for a file on a disk, except to Go's poller.
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	f.File = os.NewFile(uintptr(fd), path)
	return f, nil
}

// readHead reads to the end, or as far as there is room.
func (f *File) readHead(fd int) error {
	buf := make([]byte, max(4<<10, f.Size+1))
	n := 0
	for {
		if n == len(buf) {
			if n >= MaxHead {
				f.Head, f.Size = buf, -1
				return nil
			}
			buf = append(buf, make([]byte, min(4*n, MaxHead)-n)...)
		}
		more, err := read(fd, buf[n:])
		if err != nil {
			return err
		}
		if more == 0 {
			f.Head, f.Size = buf[:n], int64(n)
			return nil
		}
		n += more
	}
}

// read treats EAGAIN as the end: the kernel's log returns it after the last line.
func read(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, nil
		default:
			return n, err
		}
	}
}

// Rest reads what follows Head.
func (f *File) Rest() io.Reader { return rest{f.File} }

type rest struct{ file *os.File }

func (r rest) Read(b []byte) (int, error) {
	raw, err := r.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := 0
	if e := raw.Control(func(fd uintptr) { n, err = read(int(fd), b) }); e != nil {
		return 0, e
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}
