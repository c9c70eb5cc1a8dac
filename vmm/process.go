package vmm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone is returned by Adopt when the VMM of a runtime directory no longer
// runs.
var ErrGone = errors.New("VMM is gone")

// Process is a running VMM, or one that ran.
type Process struct {
	dir     string
	rec     record
	client  *Client
	pidfd   *os.File
	adopted bool
	// isolated says that files are handed over to it; see Launch.Isolated.
	isolated bool
	done     chan struct{}
	reboots  atomic.Pointer[rebootWatch] // nil until Supervise

	mu     sync.Mutex
	code   int
	signal syscall.Signal
	known  bool
}

// PID returns the process id.
func (p *Process) PID() int { return p.rec.PID }

// StartTime returns the start time in clock ticks since the host's boot, which
// together with PID names the process.
func (p *Process) StartTime() uint64 { return p.rec.StartTime }

// EventsPath returns the path of the event monitor's stream.
func (p *Process) EventsPath() string { return EventsPath(p.dir) }

// Client returns the client of the VMM's API.
func (p *Process) Client() *Client { return p.client }

// Adopted reports whether another process than this one started it.
func (p *Process) Adopted() bool { return p.adopted }

// Done is closed when the process has ended and everything it held (tap, disk
// locks, sockets) is free again.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for Done.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for VMM %d: %w", p.rec.PID, ctx.Err())
	}
}

// Exit returns how the process ended: an exit code, or the signal that killed
// it. It is not known while the process runs, and never for an adopted one,
// because the kernel tells only the parent.
func (p *Process) Exit() (code int, signal syscall.Signal, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code, p.signal, p.known
}

// Kill sends SIGKILL and waits until the process is gone. A process that has
// ended is no error.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.sendSignal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill VMM %d: %w", p.rec.PID, err)
	}
	return p.Wait(ctx)
}

// Terminate asks the VMM to end, which shuts the guest down as if its power was
// cut, and waits until it has.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.sendSignal(unix.SIGTERM); err != nil {
		return fmt.Errorf("terminate VMM %d: %w", p.rec.PID, err)
	}
	return p.Wait(ctx)
}

// sendSignal goes through the pidfd, which can never mean another process.
func (p *Process) sendSignal(sig unix.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	rc, err := p.pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if err != nil || errors.Is(serr, unix.ESRCH) {
		return nil // finish has closed the pidfd, or is about to
	}
	return serr
}

func newProcess(dir string, rec record, pidfd *os.File, adopted, isolated bool) *Process {
	return &Process{
		dir:      dir,
		rec:      rec,
		client:   newClient(SocketPath(dir), rec.PID),
		pidfd:    pidfd,
		adopted:  adopted,
		isolated: isolated,
		done:     make(chan struct{}),
	}
}

// newChild records a process that was just started, and reaps it when it ends.
func newChild(cmd *exec.Cmd, l Launch) (*Process, error) {
	pid := cmd.Process.Pid
	pidfd, err := openPidfd(pid)
	if err != nil {
		return nil, err
	}
	// It is our child and not yet waited for, so the pid cannot be another's.
	st, err := readStat(pid)
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	rec := record{PID: pid, StartTime: st.StartTime, BootID: boot}
	if err := writeRecord(l.Dir, rec); err != nil {
		pidfd.Close()
		return nil, err
	}
	p := newProcess(l.Dir, rec, pidfd, false, l.Isolated)
	go func() {
		// The error repeats the exit status or says that there is no child
		// left to wait for; ProcessState tells which.
		_ = cmd.Wait()
		p.mu.Lock()
		if ws, ok := sysStatus(cmd.ProcessState); ok {
			p.known = true
			if ws.Signaled() {
				p.code, p.signal = -1, ws.Signal()
			} else {
				p.code = ws.ExitStatus()
			}
		}
		p.mu.Unlock()
		p.finish()
	}()
	return p, nil
}

func sysStatus(s *os.ProcessState) (syscall.WaitStatus, bool) {
	if s == nil {
		return 0, false
	}
	ws, ok := s.Sys().(syscall.WaitStatus)
	return ws, ok
}

// Adopt finds the VMM of a runtime directory after the daemon was restarted. It
// is the process that vmm.json names if the host's boot and the start time are
// the same; where vmm.json is missing, because a crash came between the start
// and the writing of it, it is the process that listens on the socket.
//
// It returns ErrGone when there is none.
func Adopt(ctx context.Context, dir string) (*Process, error) {
	rec, err := readRecord(dir)
	if errors.Is(err, fs.ErrNotExist) {
		rec, err = recordOfListener(ctx, SocketPath(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("adopt VMM in %s: %w", dir, err)
	}
	p, err := adopt(dir, rec)
	if err != nil {
		return nil, fmt.Errorf("adopt VMM in %s: %w", dir, err)
	}
	return p, nil
}

func adopt(dir string, rec record) (*Process, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if rec.BootID != boot {
		return nil, fmt.Errorf("%w: the host was rebooted since", ErrGone)
	}
	// The descriptor first, then the start time: while the descriptor is open, the
	// pid is not reused.
	pidfd, err := openPidfd(rec.PID)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("%w: no process %d", ErrGone, rec.PID)
	}
	if err != nil {
		return nil, err
	}
	st, err := readStat(rec.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
		err = fmt.Errorf("%w: no process %d", ErrGone, rec.PID)
	case err == nil && st.StartTime != rec.StartTime:
		err = fmt.Errorf("%w: process %d is another one", ErrGone, rec.PID)
	case err == nil && (st.State == 'Z' || st.State == 'X'):
		err = fmt.Errorf("%w: process %d has ended", ErrGone, rec.PID)
	case err == nil:
		err = sameUser(dir, rec.PID)
	}
	var isolated bool
	if err == nil {
		isolated, err = isIsolated(rec.PID)
	}
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	p := newProcess(dir, rec, pidfd, true, isolated)
	go func() {
		waitPidfd(pidfd)
		p.finish()
	}()
	return p, nil
}

// sameUser refuses a record that names another user's process: the directory belongs
// to the VMM, which may have written anything.
func sameUser(dir string, pid int) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	user, err := userOf(pid)
	if err != nil {
		return fmt.Errorf("%w: process %d: %w", ErrGone, pid, err)
	}
	if user != owner {
		return fmt.Errorf("%s belongs to user %d and names process %d of user %d", dir, owner, pid, user)
	}
	return nil
}

// recordOfListener says who listens on a socket, as the kernel noted it.
func recordOfListener(ctx context.Context, socket string) (record, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) || len(socket) > maxSocketPath {
			return record{}, fmt.Errorf("%w: nothing listens on %s", ErrGone, socket)
		}
		return record{}, err
	}
	defer conn.Close()
	cred, err := peerOf(conn)
	if err != nil {
		return record{}, fmt.Errorf("peer of %s: %w", socket, err)
	}
	// The connection is held while the process is looked up, so it is alive.
	st, err := readStat(int(cred.Pid))
	if err != nil {
		return record{}, fmt.Errorf("%w: listener %d: %w", ErrGone, cred.Pid, err)
	}
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	return record{PID: int(cred.Pid), StartTime: st.StartTime, BootID: boot}, nil
}

// finish closes Done once nothing of the VMM is left. chvemu's QEMU dies with
// it, but a moment later, and shares its socket lock for as long as it lives.
func (p *Process) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	_ = awaitLock(ctx, p.client.Socket()+".lock")
	p.client.Close()
	p.pidfd.Close()
	close(p.done)
}

// awaitPing waits until the VMM answers on its socket and is the process that
// was started.
func (p *Process) awaitPing(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		// Dialling a socket that is not there costs a few microseconds; a
		// watch on the directory would cost more than it saves. Who listens there
		// the client asks the kernel: an isolated VMM does not know its number.
		_, err := p.client.Ping(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, errImpostor) {
			return err
		}
		select {
		case <-p.done:
			code, sig, _ := p.Exit()
			return fmt.Errorf("it ended before it answered (exit code %d, signal %d)", code, sig)
		case <-ctx.Done():
			return fmt.Errorf("it did not answer: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}
