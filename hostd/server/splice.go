package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cloud/berth/hostd/guestio"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

const (
	// spliceBuffer is what a stream holds in memory, each way, in bytes.
	spliceBuffer = 32 << 10
	// lingerTime is how long a caller of a process that ended may go on sending:
	// closing a connection with unread bytes would reset it, and what the caller
	// has not read yet with it.
	lingerTime = 30 * time.Second
	// goneCheck is how often a caller is checked while nobody reads its bytes.
	goneCheck = time.Second
)

// streams are the connections that were upgraded: net/http no longer knows them.
type streams struct {
	mu   sync.Mutex
	shot bool
	cut  map[*splice]struct{}
	wg   sync.WaitGroup
}

func (st *streams) add(sp *splice) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.shot {
		return false
	}
	if st.cut == nil {
		st.cut = map[*splice]struct{}{}
	}
	st.cut[sp] = struct{}{}
	st.wg.Add(1)
	return true
}

func (st *streams) remove(sp *splice) {
	st.mu.Lock()
	delete(st.cut, sp)
	st.mu.Unlock()
	st.wg.Done()
}

// shut waits for the streams until ctx ends, and cuts those that are left.
func (st *streams) shut(ctx context.Context) error {
	st.mu.Lock()
	st.shot = true
	st.mu.Unlock()
	ended := make(chan struct{})
	go func() { st.wg.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	st.mu.Lock()
	n := len(st.cut)
	for sp := range st.cut {
		sp.abort()
	}
	st.mu.Unlock()
	<-ended
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d streams were cut off", n)
}

// splice joins a caller and a guest: bytes are passed on as they are. A side
// that ends its direction ends it for the other; one that fails ends both.
type splice struct {
	caller net.Conn
	in     io.Reader // what the caller sends, some of which was read already
	guest  *guestio.Conn
	first  io.Reader // for the guest, before the caller's; nil: nothing
	frames bool      // a caller that is gone has gone for good, and the process goes with it

	once     sync.Once
	answered atomic.Bool // the guest has said everything
	deaf     atomic.Bool // the guest takes no more
}

// upgrade answers 101 and joins the caller with the guest, until both are done.
// It takes the guest's connection over. When it returns an error nothing was
// answered yet.
func (s *Server) upgrade(w http.ResponseWriter, protocol string, guest *guestio.Conn, first io.Reader) error {
	defer guest.Close()
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("upgrade: %w", err)
	}
	defer conn.Close()
	// First what net/http has read ahead, then the connection itself: the request's
	// own reader ends with the caller's half.
	ahead, err := io.ReadAll(io.LimitReader(buf.Reader, int64(buf.Reader.Buffered())))
	if err != nil {
		return nil
	}
	sp := &splice{
		caller: conn, in: io.MultiReader(bytes.NewReader(ahead), conn), guest: guest, first: first,
		frames: protocol == hostapi.UpgradeFrames,
	}
	if !s.streams.add(sp) {
		sp.abort()
		return nil
	}
	defer s.streams.remove(sp)
	// A caller that reads nothing blocks down, and only down would notice that the
	// guest is gone.
	defer guest.AfterCut(sp.abort)()
	if p := patient(conn); p != nil {
		p.patient.Store(true)
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n"); err != nil {
		return nil
	}
	sp.run()
	return nil
}

func (sp *splice) run() {
	quit := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() { sp.watch(quit) })
	others.Go(func() {
		if err := sp.up(); err != nil {
			sp.abort()
		}
	})
	if err := sp.down(); err != nil {
		sp.abort()
	}
	if sp.frames {
		sp.deaf.Store(true) // the process ended
	}
	sp.linger(&sp.answered, &sp.deaf)
	close(quit)
	others.Wait()
}

// linger notes that one direction is over and, where the other is too, bounds
// how long the caller may go on sending what nobody takes.
func (sp *splice) linger(over, other *atomic.Bool) {
	over.Store(true)
	if !other.Load() {
		return
	}
	_ = sp.caller.SetReadDeadline(time.Now().Add(lingerTime))
}

// up passes on what the caller sends. A guest that takes no more is not the end:
// its last words may not have reached the caller, so what the caller still sends
// is dropped until it is done.
func (sp *splice) up() error {
	buf := make([]byte, spliceBuffer)
	sources := []io.Reader{sp.in}
	if sp.first != nil {
		sources = []io.Reader{sp.first, sp.in}
	}
	for _, from := range sources {
		if readErr, writeErr := pump(sp.guest, from, buf); readErr != nil {
			return readErr
		} else if writeErr != nil {
			sp.linger(&sp.deaf, &sp.answered)
			readErr, _ = pump(io.Discard, sp.in, buf)
			return readErr
		}
	}
	if sp.guest.CloseWrite() != nil {
		sp.deaf.Store(true) // down sees why
	}
	return nil
}

// down passes on what the guest sends.
func (sp *splice) down() error {
	readErr, writeErr := pump(sp.caller, sp.guest, make([]byte, spliceBuffer))
	if err := errors.Join(readErr, writeErr, sp.guest.Err()); err != nil {
		return err // an end that the guest did not make
	}
	half, ok := sp.caller.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// pump copies until from ends, and tells which side failed.
func pump(to io.Writer, from io.Reader, buf []byte) (readErr, writeErr error) {
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return nil, err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return err, nil
		}
	}
}

// abort ends both sides at once, so that neither takes it for an end in order:
// without the reset a reader of crypto/tls would.
func (sp *splice) abort() {
	sp.once.Do(func() {
		if p := patient(sp.caller); p != nil {
			_ = p.SetLinger(0)
			_ = p.Close() // tls.Conn would first say goodbye, and wait for that
		} else {
			_ = sp.caller.Close()
		}
		_ = sp.guest.Reset()
	})
}

// watch looks for the caller while its bytes are not taken: nothing else tells
// that it is gone when the process is silent, too.
func (sp *splice) watch(quit <-chan struct{}) {
	p := patient(sp.caller)
	if p == nil {
		return
	}
	tick := time.NewTicker(goneCheck)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
			if gone(p.TCPConn, sp.frames) {
				sp.abort()
				return
			}
		}
	}
}

// gone says that the peer has reset the connection or, if it must listen as
// well, has closed it. A half that was closed in order is closed by TLS, not by
// TCP.
func gone(conn *net.TCPConn, mustListen bool) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	events := int16(unix.POLLHUP | unix.POLLERR)
	if mustListen {
		events |= unix.POLLRDHUP
	}
	found := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
			found = fds[0].Revents&events != 0
		}
	})
	return found || err != nil
}

// maxConnections bounds the connections to the API: replicas have some for each
// stream and each preview that they pass on.
const maxConnections = 16 << 10

// listener makes connections whose other end is noticed to be gone, and that
// can be patient. It closes what is one too many.
type listener struct {
	net.Listener
	slots chan struct{}
}

func newListener(l net.Listener, most int) *listener {
	return &listener{Listener: l, slots: make(chan struct{}, most)}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, nil
		}
		select {
		case l.slots <- struct{}{}:
		default:
			tcp.Close()
			continue
		}
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3})
		return &patientConn{TCPConn: tcp, release: func() { <-l.slots }}, nil
	}
}

// patientConn lets a TLS connection take its time to close: crypto/tls allows
// five seconds, after which a slow reader would see a broken stream where an
// orderly one ended.
type patientConn struct {
	*net.TCPConn
	patient atomic.Bool
	closing sync.Once
	release func() // gives its place back
}

// Close implements io.Closer.
func (c *patientConn) Close() error {
	c.closing.Do(c.release)
	return c.TCPConn.Close()
}

// SetWriteDeadline implements net.Conn.
func (c *patientConn) SetWriteDeadline(t time.Time) error {
	if c.patient.Load() {
		return nil
	}
	return c.TCPConn.SetWriteDeadline(t)
}

func patient(conn net.Conn) *patientConn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	p, _ := conn.(*patientConn)
	return p
}
