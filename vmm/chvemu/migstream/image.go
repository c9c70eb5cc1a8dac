package migstream

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// run is how many pages that follow one another are written in one call: the
// most that writev takes.
const run = 1024

// Image writes pages to a file that starts as one hole, so that what is zero
// stays a hole.
type Image struct {
	f       *os.File
	buf     []byte
	start   uint64   // offset of buf in the file
	written []uint64 // a bit a page
}

// NewImage returns a writer of size bytes of RAM into f, which is empty.
func NewImage(f *os.File, size uint64) (*Image, error) {
	if size == 0 || size%PageSize != 0 {
		return nil, fmt.Errorf("RAM of %d bytes is not a number of pages", size)
	}
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("size RAM image: %w", err)
	}
	return &Image{
		f:       f,
		buf:     make([]byte, 0, run*PageSize),
		written: make([]uint64, (size/PageSize+63)/64),
	}, nil
}

// Page stores a page. Pages come mostly in order, and runs of them are written
// together.
func (m *Image) Page(offset uint64, data []byte) error {
	if len(m.buf) == cap(m.buf) || (len(m.buf) > 0 && m.start+uint64(len(m.buf)) != offset) {
		if err := m.Flush(); err != nil {
			return err
		}
	}
	if len(m.buf) == 0 {
		m.start = offset
	}
	m.buf = append(m.buf, data...)
	m.written[offset/PageSize/64] |= 1 << (offset / PageSize % 64)
	return nil
}

// Zero leaves a hole. A stopped machine sends each page once, but nothing in the
// format says so: a page that was written before is punched out.
func (m *Image) Zero(offset uint64) error {
	word, bit := &m.written[offset/PageSize/64], uint64(1)<<(offset/PageSize%64)
	if *word&bit == 0 {
		return nil
	}
	if err := m.Flush(); err != nil {
		return err
	}
	*word &^= bit
	err := unix.Fallocate(int(m.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(offset), PageSize)
	if err != nil {
		return fmt.Errorf("punch RAM image: %w", err)
	}
	return nil
}

// Flush writes what is held back. It must be called at the end.
func (m *Image) Flush() error {
	if len(m.buf) == 0 {
		return nil
	}
	if _, err := m.f.WriteAt(m.buf, int64(m.start)); err != nil {
		return fmt.Errorf("write RAM image: %w", err)
	}
	m.buf = m.buf[:0]
	return nil
}

// CopySparse copies the data of src to dst, which has the same size, and makes
// the rest of dst a hole.
func CopySparse(dst, src *os.File, size int64) error {
	if err := unix.Fallocate(int(dst.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		return fmt.Errorf("punch %s: %w", dst.Name(), err)
	}
	for off := int64(0); off < size; {
		data, err := unix.Seek(int(src.Fd()), off, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil // nothing but hole up to the end
		}
		if err != nil {
			return fmt.Errorf("find data in %s: %w", src.Name(), err)
		}
		hole, err := unix.Seek(int(src.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find hole in %s: %w", src.Name(), err)
		}
		for in, out := data, data; in < hole; {
			n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(hole-in), 0)
			if err != nil {
				return fmt.Errorf("copy %s: %w", src.Name(), err)
			}
			if n == 0 {
				return fmt.Errorf("copy %s: it became shorter", src.Name())
			}
		}
		off = hole
	}
	return nil
}
