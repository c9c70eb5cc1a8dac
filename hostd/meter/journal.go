package meter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// format is the version of the file. Version 1 is lines of text, as in hostd/ledger:
// eight hex digits, a space, JSON, a newline. The digits are the CRC-32C of the JSON.
// The first line is a header.
const format = 1

const rewriteAt = 1 << 20 // bytes: a longer journal is rewritten to its state

// line is one line of the journal; exactly one field is set, Seen aside.
type line struct {
	Header *header             `json:"header,omitempty"`
	Sealed *hostapi.UsageBatch `json:"sealed,omitempty"` // handed out, and not known to be written down
	Sample *segment            `json:"sample,omitempty"` // what was used since the last one
	// Seal makes the oldest segment a batch with this sequence.
	Seal uint64 `json:"seal,omitempty"`
	// Seen is how boxes were at the end of Sample.
	Seen *lastSeen `json:"seen,omitempty"`
}

type header struct {
	Format   int    `json:"format"`
	Epoch    string `json:"epoch"`
	Sequence uint64 `json:"sequence,omitempty"` // of the last batch
	// Seen is how boxes were at the end of the last sample of all.
	Seen *lastSeen `json:"seen,omitempty"`
}

// errDamaged: the journal cannot be read as a whole.
var errDamaged = errors.New("the file of usage is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// journal is a file that is appended to.
type journal struct {
	path string
	file *os.File
	size int64
	live int64 // size after the last rewrite
	// broken is set when the file's end is unknown; the next write rewrites it.
	broken bool
}

// readJournal feeds each line to apply, and returns fs.ErrNotExist where there is none.
// A last line that is not whole was being written when the machine stopped.
func readJournal(path string, apply func(line) error) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for n := 1; len(raw) > 0; n++ {
		text, rest, whole := bytes.Cut(raw, []byte{'\n'})
		l, err := decode(text)
		if err == nil && (n == 1) != (l.Header != nil) {
			err = errors.New("header out of place")
		}
		if err == nil {
			err = apply(l)
		}
		if err != nil && n > 1 && (!whole || len(rest) == 0 || len(bytes.Trim(raw, "\x00")) == 0) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %s line %d: %w", errDamaged, path, n, err)
		}
		raw = rest
	}
	return nil
}

// append has lines on disk when it returns nil.
func (j *journal) append(lines ...line) error {
	if j.broken || j.file == nil {
		return errors.New("an earlier write failed")
	}
	raw, err := encode(lines)
	if err != nil {
		return err
	}
	if _, err = j.file.WriteAt(raw, j.size); err == nil {
		err = unix.Fdatasync(int(j.file.Fd()))
	}
	if err != nil {
		j.broken = true // what reached the disk is not known
		return err
	}
	j.size += int64(len(raw))
	return nil
}

// full reports whether the journal is to be rewritten.
func (j *journal) full() bool {
	return j.broken || j.file == nil || j.size > rewriteAt && j.size > 4*j.live
}

// rewrite replaces the file, at once or not at all.
func (j *journal) rewrite(lines []line) error {
	raw, err := encode(lines)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(j.path), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(j.path, raw, 0o600)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	j.close()
	j.file, j.size, j.live, j.broken = f, int64(len(raw)), int64(len(raw)), false
	return nil
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // every write was synced
		j.file = nil
	}
}

func encode(lines []line) ([]byte, error) {
	var out []byte
	for _, l := range lines {
		body, err := json.Marshal(l)
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, "%08x %s\n", crc32.Checksum(body, castagnoli), body)
	}
	return out, nil
}

func decode(text []byte) (l line, err error) {
	if len(text) < 10 || text[8] != ' ' {
		return l, errors.New("no checksum")
	}
	sum, err := strconv.ParseUint(string(text[:8]), 16, 32)
	if err != nil {
		return l, errors.New("no checksum")
	}
	if crc32.Checksum(text[9:], castagnoli) != uint32(sum) {
		return l, errors.New("checksum does not match")
	}
	if err := json.Unmarshal(text[9:], &l); err != nil {
		return l, err
	}
	if h := l.Header; h != nil && (h.Format < 1 || h.Format > format || h.Epoch == "") {
		return l, fmt.Errorf("format %d", h.Format)
	}
	return l, nil
}

// setAside keeps a file that cannot be read for the operator to look at.
func setAside(path string) error {
	err := os.Rename(path, path+".damaged")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
