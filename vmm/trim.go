package vmm

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// A log that takes more than LogMax bytes is cut to its last logKeep: a guest
// decides how much is written, and must not fill the disk of the runtime
// directories.
const (
	LogMax  = 1 << 20
	logKeep = 256 << 10
)

// trimLog gives the space of a log that takes more than LogMax back, but for
// the end that starts at keep, or is logKeep long where keep is negative. The
// VMM goes on writing where it is, so the file gets a hole rather than shorter.
//
// The directory belongs to the VMM's user: what lies under the name may be
// anything, and is looked at only once it is open.
func trimLog(path string, keep int64) error {
	f, err := openPlain(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if keep < 0 {
		keep = st.Size - logKeep
	}
	if st.Blocks*512 <= LogMax || keep <= 0 {
		return nil
	}
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, keep)
}

// LogEnd returns the end of a log, at most n bytes of it, as text; nothing where
// it cannot be read. The directory belongs to the VMM's user, who may have put
// anything in the log's place.
func LogEnd(path string, n int64) string {
	f, err := openPlain(path, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	buf := make([]byte, min(st.Size(), n))
	got, _ := f.ReadAt(buf, st.Size()-int64(len(buf))) // what was read before an error counts
	return strings.ToValidUTF8(strings.TrimSpace(string(buf[:got])), "?")
}
