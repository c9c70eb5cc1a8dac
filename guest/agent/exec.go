package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/proc"
)

const (
	// goneGrace is how long a command runs on after its caller is lost. A restored
	// guest loses all its callers before it gets its new identity; see detachAll.
	goneGrace = 500 * time.Millisecond
	// lingerTime is how long the end of an exec may take to reach the caller.
	lingerTime = 5 * time.Second
	// stdinFrames is how many frames of input are held for a command that does
	// not read them.
	stdinFrames = 4
	// peerCheck is how often the agent checks that a caller is still connected
	// while the command does not read its input.
	peerCheck = 250 * time.Millisecond
)

// session is one exec and the connection of its caller.
type session struct {
	server  *Server
	conn    net.Conn
	in      *bufio.Reader
	process *proc.Process

	detached   chan struct{} // closed when the guest was restored
	detachOnce sync.Once
	ended      chan struct{} // closed: the command ended and its output is sent

	out sync.Mutex // frames are written whole
}

// exec starts a command, and then speaks frames on the connection.
func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	var req guestapi.ExecRequest
	if err := decode(w, r, &req); err != nil {
		badRequest(w, err)
		return
	}
	if r.Header.Get("Upgrade") != guestapi.Upgrade {
		w.Header().Set("Upgrade", guestapi.Upgrade)
		fail(w, http.StatusUpgradeRequired, fmt.Errorf("exec needs Upgrade: %s", guestapi.Upgrade))
		return
	}
	spec := s.spec(&req)
	if err := spec.Check(); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	session := &session{server: s, detached: make(chan struct{}), ended: make(chan struct{})}
	if !s.enter(session) {
		err := fmt.Errorf("%w: %d commands run", proc.ErrLimit, maxExecs)
		reply(w, http.StatusServiceUnavailable, guestapi.Error{Error: err.Error(), Code: codeOf(err)})
		return
	}
	defer s.leave(session)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Time{}) // the server's own, for the header
	if _, err := conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + guestapi.Upgrade + "\r\n\r\n")); err != nil {
		return
	}
	session.conn, session.in = conn, buffered.Reader
	session.run(spec, &req)
}

func (s *Server) spec(req *guestapi.ExecRequest) proc.Spec {
	s.mu.Lock()
	env := s.env
	s.mu.Unlock()
	return proc.Spec{
		Argv: req.Argv, Cwd: req.Cwd, User: req.User, TTY: req.TTY,
		Env:     []map[string]string{s.cfg.Spec.Env, env, req.Env, term(req.TTY)},
		Stdin:   req.OpenStdin || len(req.Stdin) > 0,
		Timeout: req.Timeout, OutputLimit: req.OutputLimitBytes,
	}
}

func term(tty *guestapi.TTY) map[string]string {
	if tty == nil || tty.Term == "" {
		return nil
	}
	return map[string]string{"TERM": tty.Term}
}

func (s *Server) enter(e *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.execs) >= maxExecs {
		return false
	}
	s.execs[e] = struct{}{}
	return true
}

func (s *Server) leave(e *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.execs, e)
}

// detachAll detaches every running command from its caller, and ends all other
// requests. The guest was restored since they began, so their callers, if there
// still are any, talk to the guest that it was restored from. The commands run on.
func (s *Server) detachAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := range s.execs {
		e.detachOnce.Do(func() { close(e.detached) })
	}
	for _, of := range []cuts{s.transfers, s.followers} {
		for cut := range of {
			(*cut)()
		}
	}
	s.tunnels.cut()
}

// run runs the command and reports its end to the caller.
func (e *session) run(spec proc.Spec, req *guestapi.ExecRequest) {
	leave, ok := e.server.cfg.Freezer.Enter(e.detached)
	if !ok {
		e.notStarted(errDetached, req.MustStart)
		return
	}
	process, err := proc.Start(e.server.cfg.Groups, spec)
	leave()
	if err != nil {
		e.notStarted(err, req.MustStart)
		return
	}
	e.process = process
	var reader sync.WaitGroup
	reader.Go(func() { e.receive(req) })
	exit := process.Run(e.send)
	raw, err := json.Marshal(exit)
	if err == nil {
		err = e.frame(guestapi.FrameExit, raw)
	}
	close(e.ended)
	e.finish(err)
	reader.Wait()
}

// finish lets the caller read to the end: closing a connection while input of
// the caller is unread would reset it, and the last frames with it.
func (e *session) finish(err error) {
	deadline := time.Now().Add(lingerTime)
	if err != nil {
		deadline = time.Now()
	} else if half, ok := e.conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = e.conn.SetReadDeadline(deadline)
}

// notStarted reports a command whose program cannot be run as a shell does,
// unless it must, and anything else as an error.
func (e *session) notStarted(err error, must bool) {
	var command *proc.CommandError
	if errors.As(err, &command) && !must {
		_ = e.frame(guestapi.FrameStderr, []byte(command.Error()+"\n"))
		raw, _ := json.Marshal(guestapi.ExecExit{ExitCode: command.Code})
		err = e.frame(guestapi.FrameExit, raw)
	} else {
		raw, _ := json.Marshal(guestapi.Error{Error: "command not started", Detail: err.Error(), Code: codeOf(err)})
		err = e.frame(guestapi.FrameError, raw)
	}
	close(e.ended)
	e.finish(err)
	for err == nil {
		_, _, err = guestapi.ReadFrame(e.in, nil)
	}
}

// codeOf is the code of a command that was not started. It is "" if the request is
// wrong in another way than those that have a code.
func codeOf(err error) string {
	var command *proc.CommandError
	switch {
	case errors.As(err, &command):
		return guestapi.CodeNoProgram
	case errors.Is(err, proc.ErrCwd):
		return guestapi.CodeInvalidCwd
	case errors.Is(err, proc.ErrNoUser):
		return guestapi.CodeNoUser
	case errors.Is(err, proc.ErrInvalid):
		return ""
	case errors.Is(err, proc.ErrLimit):
		return guestapi.CodeLimit
	}
	return guestapi.CodeFault
}

var errDetached = errors.New("the guest was restored: the caller is of an earlier incarnation")

// send is the sink of the command's output.
func (e *session) send(stream guestapi.FrameType, frame []byte) error {
	guestapi.PutFrameHeader(frame, stream)
	e.out.Lock()
	defer e.out.Unlock()
	select {
	case <-e.detached:
		return errDetached
	default:
	}
	_, err := e.conn.Write(frame)
	return err
}

func (e *session) frame(t guestapi.FrameType, payload []byte) error {
	frame := make([]byte, guestapi.FrameHeader+len(payload))
	copy(frame[guestapi.FrameHeader:], payload)
	return e.send(t, frame)
}

// receive reads the caller's frames until the connection ends. If it ends before
// the command does, the caller is gone and the command is killed.
func (e *session) receive(req *guestapi.ExecRequest) {
	input := newStdin(e.process, req)
	defer input.close()
	e.receiveFrames(input)
	select {
	case <-e.ended:
		return
	default:
	}
	// After a frame that is not whole the connection is useless both ways.
	_ = e.conn.SetWriteDeadline(time.Now())
	select {
	case <-e.ended:
	case <-e.detached:
		_ = e.conn.Close()
	case <-time.After(goneGrace):
		select {
		case <-e.detached:
		default:
			e.process.Kill()
		}
	}
}

// receiveFrames returns when no more frames can come, or one made no sense.
func (e *session) receiveFrames(input *stdin) {
	for {
		kind, payload, err := guestapi.ReadFrame(e.in, nil)
		if err != nil {
			return
		}
		switch kind {
		case guestapi.FrameStdin:
			if len(payload) > 0 {
				err = e.offer(input, payload)
			}
		case guestapi.FrameEOF:
			err = e.offer(input, nil)
		case guestapi.FrameSignal:
			// The name of no signal, or a command that has ended: there is no answer
			// to a frame.
			if sig := proc.ParseSignal(string(payload)); sig != 0 {
				_ = e.process.Signal(sig)
			}
		case guestapi.FrameResize:
			var size guestapi.TTY
			if json.Unmarshal(payload, &size) == nil {
				_ = e.process.Resize(size)
			}
		default:
			return
		}
		if err != nil {
			return
		}
	}
}

var errPeerGone = errors.New("caller gone")

// offer queues input. While the queue is full the caller's frames stay in the
// connection, which makes the caller wait. Its end would stay behind them, so the
// connection is checked.
func (e *session) offer(input *stdin, b []byte) error {
	check := time.NewTicker(peerCheck)
	defer check.Stop()
	for {
		select {
		case input.queue <- b:
			return nil
		case <-e.ended:
			return nil
		case <-check.C:
			if !peerAlive(e.conn) {
				return errPeerGone
			}
		}
	}
}

// peerAlive reports whether the peer has neither reset nor closed the connection.
func peerAlive(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	there := true
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
			there = fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) == 0
		}
	})
	return there && err == nil
}

// stdin feeds a command at the command's pace.
type stdin struct {
	queue chan []byte // nil: the end of the input
	done  chan struct{}
}

func newStdin(to *proc.Process, req *guestapi.ExecRequest) *stdin {
	in := &stdin{queue: make(chan []byte, stdinFrames), done: make(chan struct{})}
	go func() {
		defer close(in.done)
		// The command has closed its input, or ended: the rest is dropped.
		var closed bool
		put := func(b []byte) {
			if b == nil {
				_ = to.CloseStdin()
			} else if !closed {
				_, err := to.Write(b)
				closed = err != nil
			}
		}
		if len(req.Stdin) > 0 {
			put(req.Stdin)
		}
		if !req.OpenStdin {
			put(nil)
		}
		for b := range in.queue {
			put(b)
		}
	}()
	return in
}

func (in *stdin) close() {
	close(in.queue)
	<-in.done
}
