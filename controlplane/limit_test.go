package controlplane

import (
	"net"
	"testing"
)

func TestOneConnectionTooManyIsClosed(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := bound(inner, 1)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	accepted := make(chan net.Conn)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				close(accepted)
				return
			}
			accepted <- conn
		}
	}()
	dial()
	first := <-accepted
	if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the second read %d, %v", n, err)
	}
	first.Close()
	first.Close() // gives back one place, and not two
	dial()
	(<-accepted).Close()
	inner.Close()
	if _, open := <-accepted; open {
		t.Error("it went on")
	}
}
