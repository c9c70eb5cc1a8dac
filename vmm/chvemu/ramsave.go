package chvemu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RAM that is not a shared file lives in QEMU's memory alone: the pages the guest
// wrote since it was mapped, over the file it was mapped from. It is saved by
// taking a clone of that file and writing those pages over it. The kernel tells
// which they are (/proc/<pid>/pagemap, see Documentation/admin-guide/mm/pagemap),
// so neither what was never touched nor what is still the file's is looked at:
// reading it would fill the page cache with the holes of the file.

const pageSize = 4096

// Bits of a pagemap entry.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// mapping is a part of a file in the address space of a process.
type mapping struct {
	addr, offset, length uint64
}

// saveRAM writes the RAM of a paused machine to an image of its size. The file
// it was mapped from is nil for anonymous memory.
func saveRAM(pid int, size uint64, from, image *os.File) error {
	dir, err := procDir(pid)
	if err != nil {
		return err
	}
	maps, err := os.Open(dir + "/maps")
	if err != nil {
		return err
	}
	defer maps.Close()
	raw, err := io.ReadAll(maps)
	if err != nil {
		return err
	}
	parts, err := findRAM(string(raw), size)
	if err != nil {
		return err
	}
	if err := image.Truncate(int64(size)); err != nil {
		return err
	}
	if from != nil {
		if err := cloneSparse(image, from, int64(size)); err != nil {
			return err
		}
	}
	pagemap, err := os.Open(dir + "/pagemap")
	if err != nil {
		return err
	}
	defer pagemap.Close()
	c := &pageCopier{pid: pid, image: image, buf: make([]byte, copyWindow)}
	for _, p := range parts {
		if err := c.mapping(pagemap, p); err != nil {
			return err
		}
	}
	return c.flush()
}

// procDir is a process's directory in /proc, which may have been mounted in
// another PID namespace and then has other numbers than this process's system
// calls. The kernel tells the number there with a descriptor of the process.
func procDir(pid int) (string, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(info)) {
		if n, ok := strings.CutPrefix(line, "Pid:"); ok {
			return "/proc/" + strings.TrimSpace(n), nil
		}
	}
	return "", fmt.Errorf("the kernel does not tell the number of process %d", pid)
}

// findRAM finds the private, writable mappings that together are one file of
// exactly size bytes. Nothing else of QEMU's is: the writable parts of libraries
// are small and do not begin at their file's beginning.
func findRAM(maps string, size uint64) ([]mapping, error) {
	files := map[string][]mapping{}
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		// address perms offset dev inode [path]
		if len(f) < 5 || f[1] != "rw-p" || f[4] == "0" {
			continue
		}
		from, to, ok := strings.Cut(f[0], "-")
		if !ok {
			continue
		}
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		offset, err3 := strconv.ParseUint(f[2], 16, 64)
		if errors.Join(err1, err2, err3) != nil || end <= start {
			continue
		}
		key := f[3] + " " + f[4]
		files[key] = append(files[key], mapping{addr: start, offset: offset, length: end - start})
	}
	var found []mapping
	for _, parts := range files {
		if !covers(parts, size) {
			continue
		}
		if found != nil {
			return nil, errors.New("more than one mapping in QEMU could be the guest's RAM")
		}
		found = parts
	}
	if found == nil {
		return nil, errors.New("no mapping in QEMU is the guest's RAM")
	}
	return found, nil
}

// covers says whether mappings, in the order of their addresses, are a file from
// its beginning to size without a gap.
func covers(parts []mapping, size uint64) bool {
	var at uint64
	for _, p := range parts {
		if p.offset != at || p.length > size-at {
			return false
		}
		at += p.length
	}
	return at == size
}

const (
	// copyWindow is how much is read from QEMU at a time.
	copyWindow = 4 << 20
	// maxRuns is how many stretches one call reads (IOV_MAX is 1024).
	maxRuns = 512
)

// pageCopier copies pages of another process to a file, many at a time.
type pageCopier struct {
	pid   int
	image *os.File
	buf   []byte

	runs   []unix.RemoteIovec
	places []int64 // in the image, of each run
	total  int
}

// mapping copies the pages of one mapping that the process has for itself.
func (c *pageCopier) mapping(pagemap io.ReaderAt, p mapping) error {
	entries := make([]byte, 64<<10)
	for done := uint64(0); done < p.length; {
		n := min(uint64(len(entries)), (p.length-done)/pageSize*8)
		if n == 0 {
			return fmt.Errorf("mapping of %d bytes is no number of pages", p.length)
		}
		if _, err := pagemap.ReadAt(entries[:n], int64((p.addr+done)/pageSize*8)); err != nil {
			return fmt.Errorf("read page map of QEMU: %w", err)
		}
		for i := uint64(0); i < n; i += 8 {
			e := binary.LittleEndian.Uint64(entries[i:])
			if e&pageSwapped == 0 && (e&pagePresent == 0 || e&pageOfFile != 0) {
				continue
			}
			at := done + i/8*pageSize
			if err := c.page(p.addr+at, int64(p.offset+at)); err != nil {
				return err
			}
		}
		done += n / 8 * pageSize
	}
	return nil
}

// page adds a page to what is copied next.
func (c *pageCopier) page(addr uint64, place int64) error {
	if last := len(c.runs) - 1; last >= 0 && c.total < len(c.buf) &&
		uint64(c.runs[last].Base)+uint64(c.runs[last].Len) == addr && c.places[last]+int64(c.runs[last].Len) == place {
		c.runs[last].Len += pageSize
		c.total += pageSize
		return nil
	}
	if c.total == len(c.buf) || len(c.runs) == maxRuns {
		if err := c.flush(); err != nil {
			return err
		}
	}
	c.runs = append(c.runs, unix.RemoteIovec{Base: uintptr(addr), Len: pageSize})
	c.places = append(c.places, place)
	c.total += pageSize
	return nil
}

// flush copies what was added.
func (c *pageCopier) flush() error {
	if c.total == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &c.buf[0]}}
	local[0].SetLen(c.total)
	n, err := unix.ProcessVMReadv(c.pid, local, c.runs, 0)
	if err != nil {
		return fmt.Errorf("read memory of QEMU: %w", err)
	}
	if n != c.total {
		return fmt.Errorf("read %d of %d bytes of QEMU's memory", n, c.total)
	}
	at := 0
	for i, r := range c.runs {
		if err := c.write(c.buf[at:at+r.Len], c.places[i]); err != nil {
			return err
		}
		at += r.Len
	}
	c.runs, c.places, c.total = c.runs[:0], c.places[:0], 0
	return nil
}

var zeroPage [pageSize]byte

// write puts pages into the image, those of zeroes as holes.
func (c *pageCopier) write(data []byte, place int64) error {
	for start := 0; start < len(data); {
		zero := isZero(data[start : start+pageSize])
		end := start + pageSize
		for end < len(data) && isZero(data[end:end+pageSize]) == zero {
			end += pageSize
		}
		var err error
		if zero {
			err = punch(c.image, place+int64(start), int64(end-start))
		} else {
			_, err = c.image.WriteAt(data[start:end], place+int64(start))
		}
		if err != nil {
			return fmt.Errorf("write RAM image: %w", err)
		}
		start = end
	}
	return nil
}

func isZero(page []byte) bool { return bytes.Equal(page, zeroPage[:]) }
