package pgrouter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// sslRequest asks a PostgreSQL server whether it speaks TLS: the length, and a code in
// place of a version (54.12 of PostgreSQL's manual, "Message Formats").
var sslRequest = []byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

// progress returns nil if the router answers a client on its own port. Until a replica
// has told it of databases it takes none, and waiting is all that it has to do; without
// a replica later it serves all the same.
func (p *parts) progress(ctx context.Context) error {
	if p.router.Load() == nil {
		return nil
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", p.dialable())
	if err != nil {
		return fmt.Errorf("connect to the router: %w", err)
	}
	defer conn.Close()
	if at, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(at); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(sslRequest); err != nil {
		return fmt.Errorf("ask the router: %w", err)
	}
	// S, or E of an error message. A router that has too many clients at the door may
	// close this connection for another's sake: that is an answer, too.
	_, err = conn.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the router does not answer: %w", err)
	}
	return nil
}

// dialable is the port's address, or that of this machine if it is every address.
func (p *parts) dialable() string {
	host, port, err := net.SplitHostPort(p.Addr())
	if err != nil {
		return p.Addr()
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1" // the system may have no IPv4, and every IPv6 port of Go's takes both
		}
	}
	return net.JoinHostPort(host, port)
}

// notified logs that systemd was not told: the router serves all the same.
func (s *Server) notified(ctx context.Context, err error) {
	if err != nil {
		s.log.WarnContext(ctx, "systemd was not told", "error", err)
	}
}
