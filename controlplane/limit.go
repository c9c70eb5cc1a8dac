package controlplane

import (
	"net"
	"sync"
)

// maxConnections bounds the connections to the public port, the API's and those
// of previews: what each holds in memory is little, but not nothing.
const maxConnections = 16 << 10

// bounded is a listener of which only so many connections are open at once. One
// more is closed unanswered, so that those who ask whether this replica is well
// are not kept waiting.
type bounded struct {
	net.Listener
	slots chan struct{}
}

func bound(l net.Listener, most int) net.Listener {
	return &bounded{Listener: l, slots: make(chan struct{}, most)}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, nil
		}
		select {
		case b.slots <- struct{}{}:
			return &boundedConn{TCPConn: tcp, release: func() { <-b.slots }}, nil
		default:
			tcp.Close()
		}
	}
}

type boundedConn struct {
	*net.TCPConn
	once    sync.Once
	release func()
}

// Close implements io.Closer.
func (c *boundedConn) Close() error {
	c.once.Do(c.release)
	return c.TCPConn.Close()
}
