package proc

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
)

const (
	// chunk is the most output that is passed on at once, in bytes; it is also
	// all that is held of a stream while its reader is slow.
	chunk = 32 << 10
	// outputGrace is how long output is awaited after the command ended, such as that
	// of a process substitution. A daemon that keeps the pipe open delays the
	// command's result no longer than this.
	outputGrace = 250 * time.Millisecond
	// pipeSize is how much may be left in a pipe after the grace.
	pipeSize = 64 << 10
)

// Sink takes output. frame has guestapi.FrameHeader free bytes before the
// output, so that it can be made a frame in place. The call blocks while the
// reader is slow, and with it, once its pipe is full, the command. After an error
// further output is dropped, and the sink is not called again.
type Sink func(stream guestapi.FrameType, frame []byte) error

// Run passes output to the sink until the command's end and returns that end.
// It must be called once for every Process. It also enforces the time-out.
func (p *Process) Run(sink Sink) guestapi.ExecExit {
	var exit guestapi.ExecExit
	var timedOut atomic.Bool
	if p.spec.Timeout > 0 {
		defer after(p.spec.Timeout, func() {
			timedOut.Store(true)
			p.Kill()
		})()
	}
	var pumps sync.WaitGroup
	var truncated atomic.Bool
	for _, s := range []struct {
		from   *os.File
		stream guestapi.FrameType
	}{{p.stdout, guestapi.FrameStdout}, {p.stderr, guestapi.FrameStderr}} {
		if s.from != nil {
			pumps.Go(func() { p.pump(s.from, s.stream, sink, &truncated) })
		}
	}
	status := p.wait()
	exit.DurationMS = time.Since(p.started).Milliseconds()
	deadline := time.Now().Add(p.grace)
	for _, f := range []*os.File{p.stdout, p.stderr} {
		if f != nil {
			_ = f.SetReadDeadline(deadline)
		}
	}
	pumps.Wait()
	p.group.Remove()
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	exit.ExitCode, exit.Signal = ExitCode(status)
	exit.Truncated = truncated.Load()
	// A command that ended by itself in the instant of its time-out did not time out.
	exit.TimedOut = timedOut.Load() && status.Signaled()
	return exit
}

// timeTick is the unit in which a time-out is counted.
const timeTick = time.Second

// after calls f once d has passed, unless stop is called before. It counts ticks: where
// the guest's clock is KVM's, that jumps, when a saved guest goes on, by all the time
// since. A timer would end then, although the command has not run meanwhile; a jump costs
// one tick.
func after(d time.Duration, f func()) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for left := d; left > 0; left -= timeTick {
			timer := time.NewTimer(min(left, timeTick))
			select {
			case <-timer.C:
			case <-quit:
				timer.Stop()
				return
			}
		}
		f()
	}()
	return func() { close(quit); <-done }
}

// pump passes one stream on until its end, or until the read deadline that is
// set when the command ended.
func (p *Process) pump(from *os.File, stream guestapi.FrameType, sink Sink, truncated *atomic.Bool) {
	buf := make([]byte, guestapi.FrameHeader+chunk)
	left := p.spec.OutputLimit
	gone := false
	pass := func(n int) {
		if limit := p.spec.OutputLimit; limit > 0 {
			if int64(n) > left {
				n = int(left)
				truncated.Store(true)
			}
			left -= int64(n)
		}
		if n > 0 && !gone {
			gone = sink(stream, buf[:guestapi.FrameHeader+n]) != nil
		}
	}
	for {
		n, err := from.Read(buf[guestapi.FrameHeader:])
		pass(n)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.last(from, buf[guestapi.FrameHeader:], pass)
			p.abandon(from)
			return
		default: // io.EOF, or EIO of a terminal whose other end is closed
			_ = from.Close()
			return
		}
	}
}

// last passes on what is left in the pipe after the grace. More than pipeSize can
// only come from a process that still runs.
func (p *Process) last(from *os.File, buf []byte, pass func(int)) {
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	for total := 0; total < pipeSize; {
		n := 0
		if err := raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) }); err != nil || n <= 0 {
			return
		}
		pass(n)
		total += n
	}
}

// abandon detaches a stream from the request. A terminal was hung up with its
// session. A pipe is drained for as long as a process has it open: closing it would
// kill a daemon at its next line of output.
func (p *Process) abandon(from *os.File) {
	if p.spec.TTY != nil {
		_ = from.Close()
		return
	}
	_ = from.SetReadDeadline(time.Time{})
	go func() {
		defer from.Close()
		small := struct{ io.Writer }{io.Discard} // hides ReadFrom and its larger buffer
		_, _ = io.CopyBuffer(small, struct{ io.Reader }{from}, make([]byte, 1<<10))
	}()
}

// Write writes to the command's standard input. It blocks while the command
// does not read.
func (p *Process) Write(b []byte) (int, error) {
	if p.stdin == nil {
		return 0, os.ErrClosed
	}
	return p.stdin.Write(b)
}

// CloseStdin ends the command's standard input. On a terminal that is the
// end-of-file character, which the foreground program may take as it likes.
func (p *Process) CloseStdin() error {
	if p.stdin == nil {
		return nil
	}
	if p.spec.TTY != nil {
		_, err := p.stdin.Write([]byte{4})
		return err
	}
	return p.stdin.Close()
}

// Collect is a sink that keeps the output; the two writers may be one.
func Collect(stdout, stderr io.Writer) Sink {
	var mu sync.Mutex
	return func(stream guestapi.FrameType, frame []byte) error {
		mu.Lock()
		defer mu.Unlock()
		to := stdout
		if stream == guestapi.FrameStderr {
			to = stderr
		}
		_, err := to.Write(frame[guestapi.FrameHeader:])
		return err
	}
}
