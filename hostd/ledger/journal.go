package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/atomicfile"
)

// Format is the version of the file's layout. A newer file is refused; every
// older one is read for ever (see the golden files in testdata).
//
// Version 1 is lines of text: eight hex digits, a space, JSON, a newline. The
// digits are the CRC-32C of the JSON. The first line is a header, each other
// one an entry. A text file because an operator with a broken host should be
// able to read it, and because a database that maps its file into memory
// brings the daemon down on a damaged page instead of returning an error.
//
// Version 2 adds entries of several records that change at once. Version 3 adds
// the cluster that a term is of, and exclusive records: who does not know them
// would obey the leaders of a cluster that is over. Version 4 adds records without
// the env that they had before.
const Format = 4

const (
	rewriteAt = 1 << 20 // bytes: a longer journal is rewritten to its state
	// reserved bytes are allocated to the file ahead of need, so that a delete
	// can be recorded, and space so be made, on a full disk: there, it is the room
	// for some ten thousand changes, since a rewrite needs a second file.
	reserved = 16 * rewriteAt
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	Format int    `json:"format"`
	Host   string `json:"host"`
}

// entry is one change; exactly one kind of it is set.
type entry struct {
	Box       *Record    `json:"box,omitempty"`
	SameEnv   bool       `json:"same_env,omitempty"` // Box has the env that it had before
	Boxes     []Record   `json:"boxes,omitempty"`
	Forget    string     `json:"forget,omitempty"`
	Bury      string     `json:"bury,omitempty"`
	Tombstone *Tombstone `json:"tombstone,omitempty"`
	Term      uint64     `json:"term,omitempty"`
	Cluster   string     `json:"cluster,omitempty"` // that Term is of
}

type journal struct {
	path, host string
	lock       *os.File // held for as long as the ledger is open
	file       *os.File
	size       int64 // of what was read or written; of the lines alone that are whole
	live       int64 // size after the last rewrite
	flush      func(*os.File) error
	broken     error // set when the file's end is unknown; the next write rewrites
}

// openJournal locks path and feeds every entry of it to apply. The caller
// rewrites before it appends.
func openJournal(path, host string, apply func(entry) error) (*journal, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		return nil, fmt.Errorf("lock ledger %s: %w", path, err)
	}
	j := &journal{path: path, host: host, lock: lock}
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = lock.Close()
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	if err := j.read(raw, apply); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return j, nil
}

func (j *journal) read(raw []byte, apply func(entry) error) error {
	for number := 1; len(raw) > 0; number++ {
		line, rest, whole := bytes.Cut(raw, []byte{'\n'})
		body, err := checked(line)
		if err != nil {
			// Only the last line can be unfinished: it was being written when the
			// machine stopped, so nobody was told that it is on disk. (A file
			// system may also leave zeros for it.) The header never is: a journal
			// appears under its name as a whole.
			if torn := !whole || len(bytes.Trim(raw, "\x00")) == 0 || bytes.IndexByte(line, 0) >= 0 && len(rest) == 0; torn && number > 1 {
				return nil
			}
			return j.corrupt(number, err)
		}
		if number == 1 {
			err = j.checkHeader(body)
		} else {
			var e entry
			if err = json.Unmarshal(body, &e); err == nil {
				err = apply(e)
			}
			if err != nil {
				err = j.corrupt(number, err)
			}
		}
		if err != nil {
			return err
		}
		raw = rest
		j.size += int64(len(line))
		if whole {
			j.size++
		}
	}
	return nil
}

// resume goes on with the file that was read, as it is.
func (j *journal) resume() error {
	f, err := os.OpenFile(j.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open ledger: %w", err)
	}
	if err := j.endLine(f); err != nil {
		return errors.Join(fmt.Errorf("open ledger %s: %w", j.path, err), f.Close())
	}
	j.file, j.live = f, j.size
	return nil
}

// endLine leaves nothing in the file behind its last whole line.
func (j *journal) endLine(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	// Not if there is nothing to cut off: what the file has reserved would be freed, too.
	if fi.Size() > j.size {
		if err := f.Truncate(j.size); err != nil {
			return err
		}
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, j.size-1); err != nil || last[0] == '\n' {
		return err
	}
	if _, err := f.WriteAt([]byte{'\n'}, j.size); err != nil {
		return err
	}
	j.size++
	return nil
}

func (j *journal) checkHeader(body []byte) error {
	var h header
	if err := json.Unmarshal(body, &h); err != nil {
		return j.corrupt(1, err)
	}
	if h.Format < 1 {
		return j.corrupt(1, fmt.Errorf("format %d", h.Format))
	}
	if h.Format > Format {
		return fmt.Errorf("%w: %s has format %d and this hostd knows up to %d: start the hostd that wrote it, or a newer one", ErrNewerFormat, j.path, h.Format, Format)
	}
	if h.Host != j.host {
		return fmt.Errorf("%w: %s was written by host %q and this is host %q: give each host a data directory of its own", ErrOtherHost, j.path, h.Host, j.host)
	}
	return nil
}

func (j *journal) corrupt(line int, err error) error {
	return fmt.Errorf("%w: %s line %d: %w; move the file away and start hostd again: it then kills and cleans every VM it finds, and the control plane marks their sandboxes failed",
		ErrCorrupt, j.path, line, err)
}

// append has lines on disk when it returns nil, and not in the file when it
// returns an error.
func (j *journal) append(lines []byte) error {
	if j.broken != nil {
		return fmt.Errorf("ledger %s: an earlier write failed: %w", j.path, j.broken)
	}
	_, err := j.file.WriteAt(lines, j.size)
	if err == nil {
		err = j.flush(j.file)
	}
	if err != nil {
		// What reached the disk is not known, and a failed flush may not be
		// tried again: the next write makes a new file. A daemon that is started
		// before that reads what the kernel has.
		_ = j.file.Truncate(j.size)
		j.broken = err
		return err
	}
	j.size += int64(len(lines))
	return nil
}

func fdatasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// full reports whether the journal should be rewritten before the next append.
func (j *journal) full() bool {
	return j.broken != nil || j.size > rewriteAt && j.size > 4*j.live
}

// canWait says whether a rewrite that failed is not needed for the next n bytes: a
// full disk has no room for a second file, and this one has some left that it
// reserved.
func (j *journal) canWait(err error, n int) bool {
	return errors.Is(err, unix.ENOSPC) && j.broken == nil && j.size+int64(n) <= j.live+reserved
}

// rewrite replaces the file by one that holds the entries, at once or not at all.
func (j *journal) rewrite(entries []entry) error {
	buf, err := encode(header{Format: Format, Host: j.host})
	if err != nil {
		return err
	}
	for _, e := range entries {
		line, err := encode(e)
		if err != nil {
			return err
		}
		buf = append(buf, line...)
	}
	tmp := j.path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("rewrite ledger: %w", err)
	}
	_, err = f.Write(buf)
	if err == nil {
		// Not every file system can reserve; those that cannot only lose the
		// guarantee about a full disk.
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(buf))+reserved)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSPC) {
			err = nil
		}
	}
	if err == nil {
		err = j.flush(f)
	}
	if err == nil {
		err = os.Rename(tmp, j.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("rewrite ledger %s: %w", j.path, err), f.Close(), os.Remove(tmp))
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.file, j.size, j.live, j.broken = f, int64(len(buf)), int64(len(buf)), nil
	if err := atomicfile.Sync(filepath.Dir(j.path)); err != nil {
		j.broken = err
		return fmt.Errorf("rewrite ledger %s: %w", j.path, err)
	}
	return nil
}

func (j *journal) close() error {
	var err error
	if j.file != nil {
		err = j.file.Close()
	}
	return errors.Join(err, j.lock.Close())
}

func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(body, castagnoli), body), nil
}

func checked(line []byte) ([]byte, error) {
	if len(line) < 10 || line[8] != ' ' {
		return nil, errors.New("no checksum")
	}
	want, err := strconv.ParseUint(string(line[:8]), 16, 32)
	if err != nil {
		return nil, errors.New("no checksum")
	}
	body := line[9:]
	if crc32.Checksum(body, castagnoli) != uint32(want) {
		return nil, errors.New("checksum does not match")
	}
	return body, nil
}
