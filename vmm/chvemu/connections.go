package chvemu

import (
	"io"
	"net"
	"sync"
)

// maxConnections is how many connections are open at most (MAX_CONNECTIONS in
// micro_http/src/server.rs). One more is told so and closed.
const maxConnections = 10

const serverFull = "HTTP/1.1 503\r\nServer: Firecracker API\r\nConnection: close\r\nContent-Length: 40\r\n\r\n" +
	`{ "error": "Too many open connections" }`

// limitListener hands out no more than maxConnections at a time.
type limitListener struct {
	net.Listener
	free chan struct{}
}

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &limitedConn{Conn: c, free: sync.OnceFunc(func() { <-l.free })}, nil
		default:
			_, _ = io.WriteString(c, serverFull)
			c.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	free func()
}

func (c *limitedConn) Close() error {
	c.free()
	return c.Conn.Close()
}
