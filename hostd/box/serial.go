package box

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A serial log longer than serialMax keeps its last serialKeep bytes: the guest
// decides what it writes, and must not fill the host's memory.
const (
	serialMax  = 1 << 20
	serialKeep = 256 << 10
)

// trimSerialLogs keeps every box's serial log short.
func (h *Host) trimSerialLogs() {
	for _, b := range h.List() {
		if err := trimLog(h.paths.Serial(b.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.log.Warn("serial log could not be trimmed", "sandbox_id", b.ID, "error", err)
		}
	}
}

// trimLog gives the space of a long log back from its beginning. The VMM goes
// on writing where it is, so the file gets a hole rather than shorter.
//
// The directory belongs to the VMM's user: what lies under the name may be
// anything, and is looked at only once it is open.
func trimLog(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Blocks*512 <= serialMax {
		return nil
	}
	return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, st.Size-serialKeep)
}
