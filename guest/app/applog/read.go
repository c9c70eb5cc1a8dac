package applog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// piece is the most that is read at once, in bytes.
const piece = 32 << 10

// readAt reads from an offset, or from the oldest byte that there is. end reports that
// nothing more will come, more is closed when there may be more.
func (l *Log) readAt(p []byte, from int64) (at int64, n int, more <-chan struct{}, end bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at = min(max(from, l.first), l.end)
	if at == l.end || l.f == nil {
		return at, 0, l.more, l.ended || l.f == nil, nil
	}
	if at >= l.base {
		n, err = l.f.ReadAt(p[:min(int64(len(p)), l.end-at)], at-l.base)
	} else {
		var old *os.File
		if old, err = os.Open(l.path(l.first)); err == nil {
			n, err = old.ReadAt(p[:min(int64(len(p)), l.base-at)], at-l.first)
			_ = old.Close()
		}
	}
	if n > 0 || errors.Is(err, io.EOF) {
		err = nil
	}
	if n == 0 && err == nil {
		err = fmt.Errorf("log: offset %d is not in its file", at)
	}
	return at, n, l.more, false, err
}

// readFull reads what there is from an offset on, over the end of a segment, until p is
// full. It reads nothing if the offset is gone.
func (l *Log) readFull(p []byte, from int64) (total int) {
	for total < len(p) {
		at, n, _, _, err := l.readAt(p[total:], from+int64(total))
		if err != nil || n == 0 || at != from+int64(total) {
			break
		}
		total += n
	}
	return total
}

// Start is the offset at which a reader of from begins.
func (l *Log) Start(from int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(max(from, l.first), l.end)
}

// Tail is the offset of the last n lines of those that there are.
func (l *Log) Tail(n int) int64 {
	l.mu.Lock()
	first, end := l.first, l.end
	l.mu.Unlock()
	if n <= 0 {
		return first
	}
	buf := make([]byte, piece)
	lines := 0
	for at := end; at > first; {
		from := max(first, at-piece)
		read := l.readFull(buf[:at-from], from)
		if read < int(at-from) {
			return at // what is before has gone meanwhile
		}
		for i := read - 1; i >= 0; i-- {
			if buf[i] != '\n' || from+int64(i) == end-1 {
				continue
			}
			if lines++; lines == n {
				return from + int64(i) + 1
			}
		}
		at = from
	}
	return first
}

// maxLast bounds what LastLines reads, in bytes.
const maxLast = 16 << 10

// LastLines returns at most n of the last lines, as text. It reads maxLast bytes at
// most, so a very long last line comes without its beginning.
func (l *Log) LastLines(n int) []string {
	from := max(l.Tail(n), l.End()-maxLast)
	buf := make([]byte, maxLast)
	total := l.readFull(buf, from)
	text := strings.TrimRight(strings.ToValidUTF8(string(buf[:total]), "\uFFFD"), "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):]
}

// Copy writes the log to w, from an offset that Start or Tail returned: what there is,
// and with follow also what comes until the log is finished or ctx ends. It ends early
// if the log has outrun it: bytes that are no longer there would be missing in the
// middle. flush is called before it waits.
func (l *Log) Copy(ctx context.Context, w io.Writer, from int64, follow bool, flush func()) error {
	buf := make([]byte, piece)
	for {
		at, n, more, ended, err := l.readAt(buf, from)
		if err != nil {
			return err
		}
		if at > from {
			return nil // it was slower than the log, and asks for what is left
		}
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			from = at + int64(n)
			continue
		}
		flush()
		if !follow || ended {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}
