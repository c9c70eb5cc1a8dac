package pgsni

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestKeepAliveBelowTLS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keepAlive(tls.Client(c, &tls.Config{ServerName: domain}), net.KeepAliveConfig{Enable: true, Idle: 77 * time.Second, Interval: 7 * time.Second, Count: 3})
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var idle int
	if err := raw.Control(func(fd uintptr) { idle, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE) }); err != nil {
		t.Fatal(err)
	}
	if err != nil || idle != 77 {
		t.Errorf("%d seconds, %v", idle, err)
	}
}
