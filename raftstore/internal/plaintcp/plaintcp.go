// Package plaintcp carries Raft over TCP without TLS, for tests and benchmarks
// on the loopback interface, and can take a replica off the network.
package plaintcp

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Stream is a raft.StreamLayer.
type Stream struct {
	net.Listener
	mu   sync.Mutex
	open map[net.Conn]struct{}
	cut  bool
}

// Listen listens on an address; port 0 picks one.
func Listen(addr string) (*Stream, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Stream{Listener: ln, open: map[net.Conn]struct{}{}}, nil
}

var errCut = errors.New("off the network")

// Cut takes the replica off the network, or puts it back: every connection is
// closed, and new ones are refused both ways.
func (s *Stream) Cut(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
	if cut {
		for c := range s.open {
			_ = c.Close()
		}
		clear(s.open)
	}
}

// Accept implements net.Listener.
func (s *Stream) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, err = s.keep(c); err == nil {
			return c, nil
		}
	}
}

// Dial implements raft.StreamLayer.
func (s *Stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	if cut {
		return nil, errCut
	}
	c, err := net.DialTimeout("tcp", string(addr), timeout)
	if err != nil {
		return nil, err
	}
	return s.keep(c)
}

func (s *Stream) keep(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		_ = c.Close()
		return nil, errCut
	}
	s.open[c] = struct{}{}
	return &conn{c, s}, nil
}

type conn struct {
	net.Conn
	s *Stream
}

func (c *conn) Close() error {
	c.s.mu.Lock()
	delete(c.s.open, c.Conn)
	c.s.mu.Unlock()
	return c.Conn.Close()
}
