// Package plaintcp carries Raft over TCP without TLS, for tests and benchmarks
// on the loopback interface.
package plaintcp

import (
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// Stream is a raft.StreamLayer.
type Stream struct{ net.Listener }

// Listen listens on an address; port 0 picks one.
func Listen(addr string) (*Stream, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Stream{ln}, nil
}

// Dial implements raft.StreamLayer.
func (*Stream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(addr), timeout)
}
