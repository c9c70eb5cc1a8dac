package commands

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// output keeps the last bytes that a command has written, in the order in which they
// were read. They are in a file without a name: no command can take it away, and a
// saved guest and its copies have it with their disk.
//
// The file is a ring of size bytes. After it, one bit for each byte says which
// stream the byte is of, so that any mixture of the two takes the same room.
type output struct {
	size   int64
	create func() (*os.File, error)

	mu      sync.Mutex
	file    *os.File // nil before the first byte
	marked  bool     // there was output on stderr; before that all marks are zero
	from    int64    // offset of the first byte that is kept
	to      int64    // offset of the next byte
	exit    *guestapi.ExecExit
	changed chan struct{} // closed at the next change
	users   int           // who holds it: the command, and each reader
}

func newOutput(size int64, create func() (*os.File, error)) *output {
	return &output{size: size, create: create, changed: make(chan struct{}), users: 1}
}

// append adds what a command has written. It never fails, because the command does
// not wait for the disk: if the file cannot be written, what is kept begins after p.
func (o *output) append(stream string, p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.to
	o.to += int64(len(p))
	if err := o.write(at, stream == guestapi.StreamStderr, p); err != nil {
		o.from = o.to
	}
	o.from = max(o.from, o.to-o.size)
	o.announce()
}

// end adds the command's end.
func (o *output) end(exit guestapi.ExecExit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.exit = &exit
	o.announce()
}

func (o *output) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *output) write(at int64, stderr bool, p []byte) error {
	if o.file == nil {
		f, err := o.create()
		if err != nil {
			return err
		}
		o.file = f
	}
	o.marked = o.marked || stderr
	for len(p) > 0 {
		pos := at % o.size
		n := min(int64(len(p)), o.size-pos)
		if _, err := o.file.WriteAt(p[:n], pos); err != nil {
			return err
		}
		if o.marked {
			if err := o.mark(pos, n, stderr); err != nil {
				return err
			}
		}
		at, p = at+n, p[n:]
	}
	return nil
}

// mark sets which stream n bytes from pos are of.
func (o *output) mark(pos, n int64, stderr bool) error {
	marks, err := o.marks(pos, n)
	if err != nil {
		return err
	}
	for i := pos % 8; i < pos%8+n; i++ {
		if stderr {
			marks[i/8] |= 1 << (i % 8)
		} else {
			marks[i/8] &^= 1 << (i % 8)
		}
	}
	_, err = o.file.WriteAt(marks, o.size+pos/8)
	return err
}

// marks reads the bits of n bytes from pos, and those that share a byte with them.
func (o *output) marks(pos, n int64) ([]byte, error) {
	marks := make([]byte, (pos%8+n+7)/8)
	_, err := o.file.ReadAt(marks, o.size+pos/8)
	if errors.Is(err, io.EOF) {
		err = nil // the rest was never written
	}
	return marks, err
}

// read returns what is kept from an offset on: at most a few pieces, and none when
// there is nothing more. If what was asked for is not kept any more, the first piece
// is a gap. next is where to read on; changed is closed when there may be more.
func (o *output) read(at int64) (pieces []guestapi.CommandOutput, next int64, exit *guestapi.ExecExit, changed <-chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at < o.from {
		at = o.from
		pieces = append(pieces, guestapi.CommandOutput{Stream: guestapi.StreamGap, Offset: at})
	}
	pos := at % o.size
	n := min(o.to-at, o.size-pos, guestapi.MaxCommandPiece)
	if n == 0 {
		return pieces, at, o.exit, o.changed, nil
	}
	data := make([]byte, n)
	if _, err := o.file.ReadAt(data, pos); err != nil {
		return nil, at, nil, nil, err
	}
	marks := make([]byte, (pos%8+n+7)/8)
	if o.marked {
		if marks, err = o.marks(pos, n); err != nil {
			return nil, at, nil, nil, err
		}
	}
	stderr := func(i int64) bool { i += pos % 8; return marks[i/8]&(1<<(i%8)) != 0 }
	for begin, i := int64(0), int64(1); i <= n; i++ {
		if i < n && stderr(i) == stderr(begin) {
			continue
		}
		stream := guestapi.StreamStdout
		if stderr(begin) {
			stream = guestapi.StreamStderr
		}
		pieces = append(pieces, guestapi.CommandOutput{Stream: stream, Offset: at + begin, Data: data[begin:i]})
		begin = i
	}
	return pieces, at + n, nil, o.changed, nil
}

// written returns the offset of what comes next.
func (o *output) written() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to
}

// state returns written, and the command's end if it has ended.
func (o *output) state() (written int64, exit *guestapi.ExecExit) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to, o.exit
}

// hold keeps the file open until release is called.
func (o *output) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.users++
}

func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.users--; o.users == 0 && o.file != nil {
		_ = o.file.Close()
	}
}
