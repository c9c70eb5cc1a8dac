package raftstore

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// trackedStream closes every connection with the listener. Raft's transport
// leaves those that are in use open, and its readers with them.
type trackedStream struct {
	raft.StreamLayer
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func newTrackedStream(s raft.StreamLayer) *trackedStream {
	return &trackedStream{StreamLayer: s, open: map[net.Conn]struct{}{}}
}

func (t *trackedStream) Accept() (net.Conn, error) {
	c, err := t.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return t.track(c)
}

func (t *trackedStream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := t.StreamLayer.Dial(addr, timeout)
	if err != nil {
		return nil, err
	}
	return t.track(c)
}

func (t *trackedStream) track(c net.Conn) (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t.open[c] = struct{}{}
	return &trackedConn{Conn: c, t: t}, nil
}

func (t *trackedStream) Close() error {
	err := t.StreamLayer.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for c := range t.open {
		_ = c.Close()
	}
	clear(t.open)
	return err
}

type trackedConn struct {
	net.Conn
	t *trackedStream
}

func (c *trackedConn) Close() error {
	c.t.mu.Lock()
	delete(c.t.open, c.Conn)
	c.t.mu.Unlock()
	return c.Conn.Close()
}
