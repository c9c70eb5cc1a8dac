// Package migstream takes the guest's RAM out of a migration stream of QEMU.
//
// QEMU writes the state of a virtual machine as one stream in which the pages of
// RAM that it does not leave out come first, mixed with their addresses. What is
// wanted is two files: the RAM as a plain image, which many machines can map at
// once without reading it, and a small stream with everything else, the same as
// QEMU writes when RAM is left out. Split makes the two from the one.
//
// The format is QEMU's own (migration/savevm.c, migration/ram.c in its source)
// and not documented elsewhere. Only what a stopped machine writes to a file is
// accepted: anything compressed, delta-coded or sent later is refused.
package migstream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// PageSize is the unit in which RAM is sent for x86 guests.
const PageSize = 4096

const (
	magic   = 0x5145564d // "QEVM"
	version = 3

	sectionStart         = 0x01
	sectionPart          = 0x02
	sectionEnd           = 0x03
	sectionSubsection    = 0x05
	sectionConfiguration = 0x07
	sectionFooter        = 0x7e

	flagZero     = 0x02
	flagMemSize  = 0x04
	flagPage     = 0x08
	flagEOS      = 0x10
	flagContinue = 0x20
	flagMask     = PageSize - 1

	maxBlocks = 64
)

// ErrFormat is wrapped by every refusal of a stream.
var ErrFormat = errors.New("not a migration stream that can be split")

// Pages receives the guest's RAM.
type Pages interface {
	// Page stores one page of PageSize bytes at an offset. The slice is valid
	// only during the call.
	Page(offset uint64, data []byte) error
	// Zero says that a page holds zeroes.
	Zero(offset uint64) error
}

// Block names the RAM to take out.
type Block struct {
	ID   string
	Size uint64
}

// Split reads a stream from r to its end, hands the pages of the block to pages,
// and writes the rest to w. With pages nil the block must have been left out by
// QEMU, and is not there to be taken.
func Split(r io.Reader, w io.Writer, block Block, pages Pages) error {
	s := &splitter{
		r:     bufio.NewReaderSize(r, 1<<20),
		w:     bufio.NewWriterSize(w, 64<<10),
		block: block,
		pages: pages,
	}
	if err := s.run(); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("split migration stream: %w", err)
	}
	return nil
}

type splitter struct {
	r     *bufio.Reader
	w     *bufio.Writer
	block Block
	pages Pages

	blocks  map[string]uint64 // sizes
	current string            // the block that flagContinue refers to
	section uint32            // of "ram"
}

func (s *splitter) run() error {
	if err := s.header(); err != nil {
		return err
	}
	for {
		kind, err := s.byte()
		if err != nil {
			return err
		}
		end, err := s.ramSection(kind)
		if err != nil {
			return err
		}
		if end {
			break
		}
	}
	// After RAM come the devices, whose lengths nothing tells; they are last,
	// so they need not be known.
	if err := s.w.Flush(); err != nil {
		return err
	}
	n, err := io.Copy(s.w, s.r)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("%w: no devices after RAM", ErrFormat)
	}
	return s.w.Flush()
}

// header copies the file header and the configuration section.
func (s *splitter) header() error {
	for _, want := range []uint32{magic, version} {
		got, err := s.u32()
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%w: %#x where %#x is expected", ErrFormat, got, want)
		}
	}
	next, err := s.r.Peek(1)
	if err != nil {
		return err
	}
	if next[0] != sectionConfiguration {
		return nil
	}
	if _, err := s.byte(); err != nil {
		return err
	}
	n, err := s.u32() // the machine type's name
	if err != nil {
		return err
	}
	if n > 256 {
		return fmt.Errorf("%w: machine type of %d bytes", ErrFormat, n)
	}
	if err := s.copyN(int64(n)); err != nil {
		return err
	}
	for {
		next, err := s.r.Peek(1)
		if err != nil {
			return err
		}
		if next[0] != sectionSubsection {
			return nil
		}
		if err := s.configSubsection(); err != nil {
			return err
		}
	}
}

func (s *splitter) configSubsection() error {
	if _, err := s.byte(); err != nil {
		return err
	}
	name, err := s.string()
	if err != nil {
		return err
	}
	if _, err := s.u32(); err != nil { // version
		return err
	}
	switch name {
	case "configuration/capabilities":
		n, err := s.u32()
		if err != nil {
			return err
		}
		if n > 256 {
			return fmt.Errorf("%w: %d capabilities", ErrFormat, n)
		}
		for range n {
			if _, err := s.string(); err != nil {
				return err
			}
		}
		return nil
	case "configuration/target-page-bits":
		return s.copyN(4)
	case "configuration/x-validate-uuid", "configuration/uuid":
		return s.copyN(16)
	default:
		return fmt.Errorf("%w: configuration has %q", ErrFormat, name)
	}
}

// ramSection handles one section of RAM and reports whether it was the last.
func (s *splitter) ramSection(kind byte) (end bool, err error) {
	id, err := s.u32()
	if err != nil {
		return false, err
	}
	switch kind {
	case sectionStart:
		name, err := s.string()
		if err != nil {
			return false, err
		}
		if name != "ram" || s.blocks != nil {
			return false, fmt.Errorf("%w: section %q before RAM is through", ErrFormat, name)
		}
		if err := s.copyN(8); err != nil { // instance and version
			return false, err
		}
		s.section, s.blocks = id, map[string]uint64{}
	case sectionPart, sectionEnd:
		if s.blocks == nil || id != s.section {
			return false, fmt.Errorf("%w: section %d before RAM is through", ErrFormat, id)
		}
	default:
		return false, fmt.Errorf("%w: section of kind %#x before RAM is through", ErrFormat, kind)
	}
	if err := s.records(); err != nil {
		return false, err
	}
	footer, err := s.byte()
	if err != nil {
		return false, err
	}
	if footer != sectionFooter {
		return false, fmt.Errorf("%w: %#x where a footer is expected", ErrFormat, footer)
	}
	if fid, err := s.u32(); err != nil || fid != s.section {
		return false, errors.Join(err, fmt.Errorf("%w: footer of section %d", ErrFormat, fid))
	}
	return kind == sectionEnd, nil
}

// records handles the records of one section, up to its end mark.
func (s *splitter) records() error {
	for {
		var b [8]byte
		if _, err := io.ReadFull(s.r, b[:]); err != nil {
			return err
		}
		word := binary.BigEndian.Uint64(b[:])
		addr, flags := word&^flagMask, word&flagMask
		var err error
		switch flags &^ flagContinue {
		case flagEOS:
			if flags != flagEOS {
				return fmt.Errorf("%w: record flags %#x", ErrFormat, flags)
			}
			_, err = s.w.Write(b[:])
			if err != nil {
				return err
			}
			return nil
		case flagMemSize:
			if _, err := s.w.Write(b[:]); err != nil {
				return err
			}
			err = s.blockList(addr)
		case flagPage, flagZero:
			err = s.page(b[:], addr, flags)
		default:
			return fmt.Errorf("%w: record flags %#x", ErrFormat, flags)
		}
		if err != nil {
			return err
		}
	}
}

// blockList copies the list of RAM blocks, whose sizes add up to total.
func (s *splitter) blockList(total uint64) error {
	if len(s.blocks) != 0 {
		return fmt.Errorf("%w: a second list of RAM blocks", ErrFormat)
	}
	for total > 0 {
		name, err := s.string()
		if err != nil {
			return err
		}
		size, err := s.u64()
		if err != nil {
			return err
		}
		// The address, which is there because RAM may be left out.
		if _, err := s.u64(); err != nil {
			return err
		}
		if _, dup := s.blocks[name]; dup || size == 0 || size > total || len(s.blocks) == maxBlocks {
			return fmt.Errorf("%w: RAM block %q of %d bytes", ErrFormat, name, size)
		}
		s.blocks[name] = size
		total -= size
	}
	if size, ok := s.blocks[s.block.ID]; !ok || size != s.block.Size {
		return fmt.Errorf("%w: RAM block %q has %d bytes where %d are expected", ErrFormat, s.block.ID, size, s.block.Size)
	}
	return nil
}

// page handles one page or zero page; head is the record's first word.
func (s *splitter) page(head []byte, addr, flags uint64) error {
	name := s.current
	var named []byte
	if flags&flagContinue == 0 {
		n, err := s.r.ReadByte()
		if err != nil {
			return err
		}
		raw := make([]byte, n)
		if _, err := io.ReadFull(s.r, raw); err != nil {
			return err
		}
		name = string(raw)
		s.current = name
		named = append([]byte{n}, raw...)
	}
	size, ok := s.blocks[name]
	if !ok || addr >= size {
		return fmt.Errorf("%w: page %#x of RAM block %q", ErrFormat, addr, name)
	}
	n := PageSize
	if flags&flagZero != 0 {
		n = 1 // the byte that fills the page, always zero
	}
	data, err := s.r.Peek(n)
	if err != nil {
		return err
	}
	if flags&flagZero != 0 && data[0] != 0 {
		return fmt.Errorf("%w: page filled with %#x", ErrFormat, data[0])
	}
	if name == s.block.ID {
		switch {
		case s.pages == nil:
			return fmt.Errorf("%w: page of RAM block %q, which should have been left out", ErrFormat, name)
		case flags&flagZero != 0:
			err = s.pages.Zero(addr)
		default:
			err = s.pages.Page(addr, data)
		}
	} else {
		_, err = s.w.Write(head)
		if err == nil {
			_, err = s.w.Write(named)
		}
		if err == nil {
			_, err = s.w.Write(data)
		}
	}
	if err != nil {
		return err
	}
	_, err = s.r.Discard(n)
	return err
}

// byte, u32, u64, string and copyN read from the stream and copy to the rest.

func (s *splitter) byte() (byte, error) {
	b, err := s.r.ReadByte()
	if err != nil {
		return 0, err
	}
	return b, s.w.WriteByte(b)
}

func (s *splitter) u32() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return 0, err
	}
	_, err := s.w.Write(b[:])
	return binary.BigEndian.Uint32(b[:]), err
}

func (s *splitter) u64() (uint64, error) {
	var b [8]byte
	if _, err := io.ReadFull(s.r, b[:]); err != nil {
		return 0, err
	}
	_, err := s.w.Write(b[:])
	return binary.BigEndian.Uint64(b[:]), err
}

func (s *splitter) string() (string, error) {
	n, err := s.byte()
	if err != nil {
		return "", err
	}
	raw := make([]byte, n)
	if _, err := io.ReadFull(s.r, raw); err != nil {
		return "", err
	}
	_, err = s.w.Write(raw)
	return string(raw), err
}

func (s *splitter) copyN(n int64) error {
	_, err := io.CopyN(s.w, s.r, n)
	return err
}
