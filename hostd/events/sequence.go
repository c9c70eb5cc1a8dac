package events

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
)

const (
	// block is how many numbers are reserved at once: each reservation is synced.
	block = 1000
	// slotSize is that of one of the file's two records, in bytes: a disk writes
	// that much as a whole.
	slotSize = 512
	// leap skips numbers that may have been given when nothing tells which were.
	leap = 1_000_000
)

// sequence numbers the host's events. A number is never given to two events: in
// one run of the machine because every event is in the spool, which outlives
// the daemon; and beyond because every number is below a limit that was synced
// before it was given. After a power cut numbering goes on at the limit.
//
// The file has two records, written in turn and in place: a full disk cannot
// fail that, and a torn record leaves the other.
type sequence struct {
	file  *os.File
	boot  string // of this run of the machine
	last  uint64 // given
	limit uint64 // synced: no number above it was given
	slot  int64
}

// openSequence goes on after the last number that the spool has.
func openSequence(path, boot string, spooled uint64) (*sequence, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open event sequence: %w", err)
	}
	s := &sequence{file: f, boot: boot, last: spooled}
	raw := make([]byte, 2*slotSize)
	n, _ := f.ReadAt(raw, 0)
	raw = raw[:n]
	known := false
	for i := range int64(2) {
		limit, at, ok := parseSlot(raw, i)
		if !ok || limit < s.limit {
			continue
		}
		known = true
		s.limit, s.slot = limit, i
		if at != boot {
			s.last = max(spooled, limit)
		} else {
			s.last = spooled
		}
	}
	if !known && (n > 0 || spooled > 0) {
		s.last = spooled + leap
	}
	if err := s.reserve(s.last + block); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *sequence) next() (uint64, error) {
	if s.last >= s.limit {
		if err := s.reserve(s.last + block); err != nil {
			return 0, err
		}
	}
	s.last++
	return s.last, nil
}

// skip goes on after n, which somebody has seen.
func (s *sequence) skip(n uint64) error {
	if n <= s.last {
		return nil
	}
	if err := s.reserve(n + block); err != nil {
		return err
	}
	s.last = n
	return nil
}

func (s *sequence) reserve(limit uint64) error {
	text := fmt.Sprintf("%d %s", limit, s.boot)
	record := bytes.Repeat([]byte{' '}, slotSize)
	copy(record, fmt.Sprintf("%08x %s", crc32.Checksum([]byte(text), castagnoli), text))
	record[slotSize-1] = '\n'
	s.slot = 1 - s.slot
	if _, err := s.file.WriteAt(record, s.slot*slotSize); err != nil {
		return fmt.Errorf("reserve event numbers: %w", err)
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("reserve event numbers: %w", err)
	}
	s.limit = limit
	return nil
}

func parseSlot(raw []byte, slot int64) (limit uint64, boot string, ok bool) {
	if int64(len(raw)) < (slot+1)*slotSize {
		return 0, "", false
	}
	record := strings.TrimRight(string(raw[slot*slotSize:(slot+1)*slotSize]), " \n")
	sum, text, found := strings.Cut(record, " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	if !found || err != nil || crc32.Checksum([]byte(text), castagnoli) != uint32(want) {
		return 0, "", false
	}
	number, boot, _ := strings.Cut(text, " ")
	limit, err = strconv.ParseUint(number, 10, 64)
	return limit, boot, err == nil
}

func (s *sequence) close() error {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close event sequence: %w", err)
	}
	return nil
}
