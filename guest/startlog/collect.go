package startlog

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// readSize is the most that is read of a stream at once: all that a pipe holds.
const readSize = 64 << 10

// maxPending is how much may wait to be written, in bytes. Then it is the
// command that waits.
const maxPending = 256 << 10

// Collector writes down what comes out of pipes.
//
// Two pipes do not tell which was written to first. The collector's one thread
// therefore takes precedence over every process: on one CPU it reads a line
// before its writer comes to the next one, on whichever stream. On several, what
// is written to the two streams within some microseconds may change places. A
// second thread writes to the disk, which may have to be waited for.
type Collector struct {
	now  func() time.Time
	wake [2]int // a pipe: written to when something changes
	done chan struct{}

	mu      sync.Mutex
	arrived []*source
	closed  bool

	buf [readSize]byte

	writing sync.Mutex
	room    *sync.Cond
	pending []byte // records that are yet to be written
	ended   bool   // no more will come
}

// source is the reading end of one stream.
type source struct {
	fd int
	lines
}

// NewCollector starts a collector that writes to the file at path.
func NewCollector(path string) (*Collector, error) { return newCollector(path, maxFile, time.Now) }

func newCollector(path string, limit int64, now func() time.Time) (*Collector, error) {
	c := &Collector{now: now, done: make(chan struct{})}
	c.room = sync.NewCond(&c.writing)
	if err := unix.Pipe2(c.wake[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("collect output: %w", err)
	}
	var both sync.WaitGroup
	both.Go(c.run)
	both.Go(func() { c.write(&file{path: path, max: limit}) })
	go func() { both.Wait(); close(c.done) }()
	return c, nil
}

// Pipes returns what a command is to write to. The caller closes both once the
// command has them; they are collected until nobody has them.
func (c *Collector) Pipes() (stdout, stderr *os.File, err error) {
	var sources []*source
	var ends []*os.File
	for _, stream := range []string{guestapi.StreamStdout, guestapi.StreamStderr} {
		var p [2]int
		if err = unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			break
		}
		sources = append(sources, &source{fd: p[0], lines: lines{stream: stream}})
		ends = append(ends, os.NewFile(uintptr(p[1]), stream))
		// The command's end is left blocking: it waits, and loses nothing.
		if err = unix.SetNonblock(p[0], true); err != nil {
			break
		}
	}
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.closed {
			c.arrived = append(c.arrived, sources...)
			c.notify()
			return ends[0], ends[1], nil
		}
		err = os.ErrClosed
	}
	for i, s := range sources {
		_ = unix.Close(s.fd)
		_ = ends[i].Close()
	}
	return nil, nil, fmt.Errorf("collect output: %w", err)
}

// notify needs mu: Close closes the pipe once run has ended.
func (c *Collector) notify() { _, _ = unix.Write(c.wake[1], []byte{0}) }

// Close ends the collection.
func (c *Collector) Close() {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	if first {
		c.notify()
	}
	c.mu.Unlock()
	<-c.done
	if first {
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = unix.Close(c.wake[0])
		_ = unix.Close(c.wake[1])
	}
}

func (c *Collector) run() {
	defer c.end()
	runtime.LockOSThread() // never unlocked: the precedence ends with the thread
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
	var sources []*source
	defer func() {
		for _, s := range sources {
			_ = unix.Close(s.fd)
		}
	}()
	var fds []unix.PollFd
	for {
		fds = append(fds[:0], unix.PollFd{Fd: int32(c.wake[0]), Events: unix.POLLIN})
		for _, s := range sources {
			fds = append(fds, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return // no memory in the kernel; what writes is told by its pipe
		}
		// Sources first: what was written before Close is collected.
		for i, s := range sources {
			if fds[i+1].Revents != 0 && !c.read(s) {
				sources[i] = nil
			}
		}
		sources = slices.DeleteFunc(sources, func(s *source) bool { return s == nil })
		if fds[0].Revents != 0 {
			c.mu.Lock()
			_, _ = unix.Read(c.wake[0], c.buf[:])
			sources, c.arrived = append(sources, c.arrived...), nil
			closed := c.closed
			c.mu.Unlock()
			if closed {
				return
			}
		}
	}
}

// read takes what is there, and says whether more may come.
func (c *Collector) read(s *source) bool {
	n, err := unix.Read(s.fd, c.buf[:])
	now := c.now()
	more := n > 0 || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
	c.writing.Lock()
	defer c.writing.Unlock()
	for len(c.pending) > maxPending {
		c.room.Wait()
	}
	c.pending = s.take(c.pending, now, c.buf[:max(n, 0)])
	if !more {
		c.pending = s.last(c.pending, now)
		_ = unix.Close(s.fd)
	}
	c.room.Broadcast()
	return more
}

func (c *Collector) end() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.ended = true
	c.room.Broadcast()
}

// write writes until the end.
func (c *Collector) write(log *file) {
	var records []byte
	for {
		c.writing.Lock()
		for len(c.pending) == 0 && !c.ended {
			c.room.Wait()
		}
		records, c.pending = c.pending, records[:0]
		ended := c.ended
		c.room.Broadcast()
		c.writing.Unlock()
		// A disk that is full, or a file that the tenant made a directory: there
		// is nobody to tell, and the command must go on.
		_ = log.append(records)
		if ended && len(records) == 0 {
			log.close()
			return
		}
	}
}
