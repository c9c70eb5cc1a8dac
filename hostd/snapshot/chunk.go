package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// chunkKey spreads chunks over 256 directories, because large directories are slow
// in file systems and listings.
func chunkKey(sha string) string { return chunksDir + sha[:2] + "/" + sha }

// page is the granularity of holes.
const page = 4096

var zeros [ChunkSize]byte

func isZero(b []byte) bool { return string(b) == string(zeros[:len(b)]) }

// dataChunks returns the indexes of a file's chunks that contain data, ascending. On
// a file system without holes all do.
func dataChunks(f *os.File, size int64) ([]int64, error) {
	var list []int64
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return list, nil // the rest is a hole
		}
		if err != nil {
			return nil, fmt.Errorf("find data: %w", err)
		}
		hole, err := unix.Seek(int(f.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return nil, fmt.Errorf("find hole: %w", err)
		}
		from := data / ChunkSize
		if n := len(list); n > 0 && list[n-1] == from {
			from++
		}
		for i := from; i*ChunkSize < min(hole, size); i++ {
			list = append(list, i)
		}
		at = hole
	}
	return list, nil
}

// chunkLen returns the length of a file's chunk.
func chunkLen(size, index, chunkSize int64) int { return int(min(chunkSize, size-index*chunkSize)) }

// putChunk reads a chunk of a file and stores it, unless the store has it. sha is
// empty if the chunk contains only zeros.
func (s *Store) putChunk(ctx context.Context, f *os.File, size, index int64) (sha string, stored int, err error) {
	buf := s.bufs.Get().(*[ChunkSize]byte)
	defer s.bufs.Put(buf)
	plain := buf[:chunkLen(size, index, ChunkSize)]
	if _, err := io.ReadFull(io.NewSectionReader(f, index*ChunkSize, int64(len(plain))), plain); err != nil {
		return "", 0, fmt.Errorf("read chunk %d: %w", index, err)
	}
	if isZero(plain) {
		return "", 0, nil
	}
	sum := sha256.Sum256(plain)
	sha = hex.EncodeToString(sum[:])
	key := chunkKey(sha)
	have, err := s.exists(ctx, key)
	if err != nil {
		return "", 0, fmt.Errorf("look for chunk %s: %w", sha, err)
	}
	if have {
		return sha, 0, nil
	}
	out := s.bufs.Get().(*[ChunkSize]byte)
	defer s.bufs.Put(out)
	packed := s.pack(plain, out[:0])
	if err := s.put(ctx, key, packed); err != nil {
		return "", 0, fmt.Errorf("write chunk %s: %w", sha, err)
	}
	return sha, len(packed), nil
}

// pack compresses a chunk and appends a checksum of the result, because some bits of
// a zstd frame have no meaning, and a store that changes them would go unnoticed.
func (s *Store) pack(plain, into []byte) []byte {
	packed := s.enc.EncodeAll(plain, into)
	return binary.BigEndian.AppendUint32(packed, crc32.Checksum(packed, castagnoli))
}

func (s *Store) unpack(packed, into []byte) ([]byte, error) {
	n := len(packed) - crc32.Size
	if n < 0 {
		return nil, errors.New("it is cut")
	}
	if crc32.Checksum(packed[:n], castagnoli) != binary.BigEndian.Uint32(packed[n:]) {
		return nil, errors.New("its checksum is wrong")
	}
	return s.dec.DecodeAll(packed[:n], into)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// exists reports whether an object exists. An empty object counts as missing,
// because a file system may leave one of a write that a power failure interrupted.
func (s *Store) exists(ctx context.Context, key string) (bool, error) {
	there := false
	err := s.retry(ctx, func() error {
		o, err := s.bucket.Stat(ctx, key)
		there = err == nil && o.Size > 0
		return err
	})
	if isNotFound(err) {
		return false, nil
	}
	return there, err
}

// getChunk reads a chunk, checks it, and writes it to a file that has only holes
// there. Pages of zeros stay holes.
func (s *Store) getChunk(ctx context.Context, f *os.File, size int64, c Chunk, chunkSize int64) error {
	packed, err := s.getKept(ctx, chunkKey(c.SHA256), maxStored)
	if isNotFound(err) {
		return fmt.Errorf("%w: chunk %d (%s) is missing", ErrIncomplete, c.Index, c.SHA256)
	}
	if err != nil {
		return fmt.Errorf("read chunk %s: %w", c.SHA256, err)
	}
	if len(packed) > maxStored {
		return fmt.Errorf("%w: chunk %d (%s) is too long", ErrDamaged, c.Index, c.SHA256)
	}
	buf := s.bufs.Get().(*[ChunkSize]byte)
	defer s.bufs.Put(buf)
	plain, err := s.unpack(packed, buf[:0])
	if err != nil {
		return fmt.Errorf("%w: chunk %d (%s): %w", ErrDamaged, c.Index, c.SHA256, err)
	}
	if want := chunkLen(size, c.Index, chunkSize); len(plain) != want {
		return fmt.Errorf("%w: chunk %d (%s) has %d bytes, not %d", ErrDamaged, c.Index, c.SHA256, len(plain), want)
	}
	if sum := sha256.Sum256(plain); hex.EncodeToString(sum[:]) != c.SHA256 {
		return fmt.Errorf("%w: chunk %d (%s) has the digest %x", ErrDamaged, c.Index, c.SHA256, sum)
	}
	return writePages(f, plain, c.Index*chunkSize)
}

// writePages writes the pages of b that are not zero.
func writePages(f *os.File, b []byte, at int64) error {
	from := -1
	for i := 0; i < len(b)+page; i += page {
		zero := i >= len(b) || isZero(b[i:min(i+page, len(b))])
		switch {
		case !zero && from < 0:
			from = i
		case zero && from >= 0:
			if _, err := f.WriteAt(b[from:min(i, len(b))], at+int64(from)); err != nil {
				return err
			}
			from = -1
		}
	}
	return nil
}
