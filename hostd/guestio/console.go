package guestio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/vmm"
)

const (
	// consolePoll is how often a followed serial log is read.
	consolePoll = 200 * time.Millisecond
	// maxConsoleLine is where a line of the console is broken, in bytes.
	maxConsoleLine = 16 << 10
	// maxConsoleReaders bounds those who read one box's console at once: each holds
	// up to vmm.LogMax bytes of it.
	maxConsoleReaders = 16
	// StreamConsole is the stream of its lines.
	StreamConsole = "console"
)

// ConsoleLogs hands on the lines that a box's serial console has, whatever the
// box's state, and with follow those to come, until ctx ends or the box is
// gone. A negative tail is all that is kept.
func (g *Guests) ConsoleLogs(ctx context.Context, id string, tail int, follow bool, out Lines) error {
	box, err := g.boxes.Console(id)
	if err != nil {
		return err
	}
	readers := &box.Line.consoles
	if n := readers.Add(1); n > maxConsoleReaders {
		readers.Add(-1)
		return fmt.Errorf("%w: %d readers of its console", hosterr.ErrBusy, maxConsoleReaders)
	}
	defer readers.Add(-1)
	c := &console{path: box.Path}
	defer c.close()
	out.Began()
	if err := c.begin(tail, !follow, out.Emit); err != nil || !follow {
		return err
	}
	tick := time.NewTicker(consolePoll)
	defer tick.Stop()
	for {
		if err := c.more(out.Emit); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-box.Gone:
			return c.rest(func(raw []byte, partial bool) error { return out.Emit(consoleLine(raw, partial)) })
		case <-tick.C:
		}
	}
}

// Console is where a box's serial log is.
type Console struct {
	Path string
	Line *Line
	Gone <-chan struct{} // closed when nothing of the box is left
}

// console reads a serial log that grows, that the VMM empties when it is
// restored, that a wake replaces, and whose beginning becomes a hole.
type console struct {
	path   string
	file   *os.File
	offset int64
	line   []byte // begun, without its end
}

// open finds the file that is there now. The directory belongs to the VMM's
// user: what lies under the name may be anything, and is looked at only once it
// is open.
func (c *console) open() error {
	f, err := os.OpenFile(c.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open serial log: %w", err)
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		f.Close()
		return err
	}
	c.close()
	c.file, c.offset = f, 0
	return nil
}

func (c *console) close() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// begin reads what is there and hands on the last tail lines of it. A line
// without an end is one of them if nothing is followed. Memory holds the text
// and not the lines, of which there may be as many as bytes.
func (c *console) begin(tail int, all bool, emit func(hostapi.LogLine) error) error {
	if err := c.open(); err != nil || c.file == nil {
		return err
	}
	var text []byte
	err := c.read(func(p []byte, apart bool) error {
		if apart {
			text = text[:bytes.LastIndexByte(text, '\n')+1]
		}
		text = append(text, p...)
		return nil
	})
	if err != nil {
		return err
	}
	lines := func(emit func(raw []byte, partial bool) error) error {
		c.line = nil
		err := c.split(text, emit)
		if err == nil && all {
			err = c.rest(emit)
		}
		return err
	}
	skip := 0
	if tail >= 0 {
		skip = -tail
		if err := lines(func([]byte, bool) error { skip++; return nil }); err != nil {
			return err
		}
	}
	return lines(func(raw []byte, partial bool) error {
		if skip--; skip >= 0 {
			return nil
		}
		return emit(consoleLine(raw, partial))
	})
}

// more hands on what was written since.
func (c *console) more(emit func(hostapi.LogLine) error) error {
	line := func(raw []byte, partial bool) error { return emit(consoleLine(raw, partial)) }
	take := func(text []byte, apart bool) error {
		if apart {
			c.line = nil
		}
		return c.split(text, line)
	}
	if c.file != nil {
		if err := c.read(take); err != nil {
			return err
		}
	}
	replaced, err := c.replaced()
	if err != nil || !replaced {
		return err
	}
	if err := c.rest(line); err != nil {
		return err
	}
	if err := c.open(); err != nil || c.file == nil {
		return err
	}
	return c.read(take)
}

// replaced reports whether the path names another file than the open one.
func (c *console) replaced() (bool, error) {
	now, err := os.Lstat(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at serial log: %w", err)
	}
	if c.file == nil {
		return true, nil
	}
	open, err := c.file.Stat()
	if err != nil {
		return false, fmt.Errorf("look at serial log: %w", err)
	}
	return !os.SameFile(now, open), nil
}

// read hands on the text between the offset and the end, in pieces. If it is
// more than vmm.LogMax bytes, only the last of them are read. apart says that a
// piece does not continue the one before.
func (c *console) read(take func(text []byte, apart bool) error) error {
	st, err := c.file.Stat()
	if err != nil {
		return fmt.Errorf("read serial log: %w", err)
	}
	size := st.Size()
	emptied := size < c.offset // by the VMM
	if emptied {
		c.offset = 0
	}
	skipped := size-c.offset > vmm.LogMax
	if skipped {
		c.offset = size - vmm.LogMax
	}
	if emptied || skipped {
		if err := take(nil, true); err != nil {
			return err
		}
	}
	buf := make([]byte, 32<<10)
	for c.offset < size {
		// The beginning of the file becomes a hole, which reads as NULs: skip it.
		data, err := unix.Seek(int(c.file.Fd()), c.offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			c.offset = size
			return nil
		}
		if err != nil {
			return fmt.Errorf("read serial log: %w", err)
		}
		hole := data > c.offset
		c.offset = data
		n, err := c.file.ReadAt(buf[:min(int64(len(buf)), size-c.offset)], c.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read serial log: %w", err)
		}
		if n == 0 {
			return nil // emptied meanwhile
		}
		c.offset += int64(n)
		text := buf[:n]
		if hole || skipped { // in the middle of a page, and of a line
			text = bytes.TrimLeft(text, "\x00")
		}
		if err := take(text, hole); err != nil {
			return err
		}
		skipped = false
	}
	return nil
}

func (c *console) split(text []byte, emit func(raw []byte, partial bool) error) error {
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte("\n"))
		if n := maxConsoleLine - len(c.line); len(line) > n {
			line, rest, ended = text[:n], text[n:], false
		}
		c.line = append(c.line, line...)
		text = rest
		if !ended && len(c.line) < maxConsoleLine {
			return nil
		}
		if err := emit(c.line, !ended); err != nil {
			return err
		}
		c.line = c.line[:0]
	}
	return nil
}

// rest hands on a line that has no end.
func (c *console) rest(emit func(raw []byte, partial bool) error) error {
	if len(c.line) == 0 {
		return nil
	}
	raw := c.line
	c.line = nil
	return emit(raw, false)
}

// consoleLine is a line as text. A serial line ends with CR LF.
func consoleLine(raw []byte, partial bool) hostapi.LogLine {
	if !partial {
		raw = bytes.TrimSuffix(raw, []byte("\r"))
	}
	return hostapi.LogLine{Stream: StreamConsole, Line: strings.ToValidUTF8(string(raw), "\uFFFD"), Partial: partial}
}
