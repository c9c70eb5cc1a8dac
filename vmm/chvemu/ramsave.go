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
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		return err
	}
	defer mem.Close()
	for _, p := range parts {
		if err := copyOwn(image, pagemap, mem, p); err != nil {
			return err
		}
	}
	return nil
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

// copyWindow is how much of a mapping is looked at, at a time.
const copyWindow = 4 << 20

// copyOwn copies the pages of a mapping that the process has for itself.
func copyOwn(image *os.File, pagemap, mem io.ReaderAt, p mapping) error {
	entries, buf := make([]byte, copyWindow/pageSize*8), make([]byte, copyWindow)
	for done := uint64(0); done < p.length; done += copyWindow {
		window := min(copyWindow, p.length-done)
		if _, err := pagemap.ReadAt(entries[:window/pageSize*8], int64((p.addr+done)/pageSize*8)); err != nil {
			return fmt.Errorf("read page map of QEMU: %w", err)
		}
		for from := uint64(0); from < window; {
			to := from
			for to < window && isOwn(entries[to/pageSize*8:]) {
				to += pageSize
			}
			if to == from {
				from += pageSize
				continue
			}
			pages := buf[:to-from]
			if _, err := mem.ReadAt(pages, int64(p.addr+done+from)); err != nil {
				return fmt.Errorf("read memory of QEMU: %w", err)
			}
			if err := writePages(image, pages, int64(p.offset+done+from)); err != nil {
				return fmt.Errorf("write RAM image: %w", err)
			}
			from = to
		}
	}
	return nil
}

// isOwn says whether the page of a pagemap entry is the process's, and not the
// file's.
func isOwn(entry []byte) bool {
	e := binary.LittleEndian.Uint64(entry)
	return e&pageSwapped != 0 || e&pagePresent != 0 && e&pageOfFile == 0
}

var zeroPage [pageSize]byte

// writePages puts pages into the image, those of zeroes as holes.
func writePages(image *os.File, data []byte, place int64) error {
	for start := 0; start < len(data); {
		zero := isZero(data[start : start+pageSize])
		end := start + pageSize
		for end < len(data) && isZero(data[end:end+pageSize]) == zero {
			end += pageSize
		}
		var err error
		if zero {
			err = punch(image, place+int64(start), int64(end-start))
		} else {
			_, err = image.WriteAt(data[start:end], place+int64(start))
		}
		if err != nil {
			return err
		}
		start = end
	}
	return nil
}

func isZero(page []byte) bool { return bytes.Equal(page, zeroPage[:]) }
