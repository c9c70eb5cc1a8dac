package controlplane

import (
	"net"
	"sync"
)

// maxConnections limits the connections to the public port, which serves the API and
// previews: each takes a little memory.
const maxConnections = 16 << 10

// bounded limits how many connections of a listener are open at once. It closes any
// further one without an answer, so that a health check fails at once instead of
// waiting.
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
