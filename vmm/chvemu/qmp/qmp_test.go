package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const greeting = `{"QMP":{"version":{"qemu":{"micro":22,"minor":2,"major":7},"package":"Debian"},"capabilities":["oob"]}}` + "\r\n"

// peer is the other end of a connection: what QEMU would be.
type peer struct {
	t    *testing.T
	conn *net.UnixConn
	r    *bufio.Reader
}

func pair(t *testing.T) (*net.UnixConn, *peer) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return conns[0], &peer{t: t, conn: conns[1], r: bufio.NewReader(conns[1])}
}

func (p *peer) say(text string) {
	if _, err := p.conn.Write([]byte(text)); err != nil {
		p.t.Error(err)
	}
}

type request struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        uint64          `json:"id"`
}

func (p *peer) hear() request {
	var q request
	if err := json.NewDecoder(p.r).Decode(&q); err != nil {
		p.t.Error(err)
	}
	return q
}

// connect greets and negotiates.
func connect(t *testing.T, event func(Event)) (*Client, *peer) {
	t.Helper()
	conn, p := pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.say(greeting)
		q := p.hear()
		if q.Execute != "qmp_capabilities" {
			t.Errorf("first command is %s", q.Execute)
		}
		p.say(fmt.Sprintf(`{"return":{},"id":%d}`, q.ID))
	}()
	c, version, err := Connect(t.Context(), conn, event)
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if version != "7.2.22" {
		t.Errorf("version %s", version)
	}
	t.Cleanup(c.Close)
	return c, p
}

func TestCommandsAndEvents(t *testing.T) {
	events := make(chan Event, 1)
	c, p := connect(t, func(e Event) { events <- e })
	go func() {
		q := p.hear()
		p.say(`{"event":"STOP","data":{"x":1},"timestamp":{"seconds":1,"microseconds":2}}` + "\r\n")
		p.say(fmt.Sprintf(`{"return":{"status":"paused"},"id":%d}`, q.ID))
		q = p.hear()
		p.say(fmt.Sprintf(`{"error":{"class":"GenericError","desc":"no such thing"},"id":%d}`, q.ID))
	}()
	var status struct{ Status string }
	if err := c.Execute(t.Context(), "query-status", nil, &status); err != nil || status.Status != "paused" {
		t.Errorf("answer %+v, %v", status, err)
	}
	if e := <-events; e.Name != "STOP" || string(e.Data) != `{"x":1}` {
		t.Errorf("event %s %s", e.Name, e.Data)
	}
	err := c.Execute(t.Context(), "device_del", map[string]string{"id": "x"}, nil)
	var qe *Error
	if !errors.As(err, &qe) || qe.Command != "device_del" || qe.Desc != "no such thing" {
		t.Errorf("refusal %v", err)
	}
}

func TestFilesTravelWithTheirCommand(t *testing.T) {
	c, p := connect(t, func(Event) {})
	f, err := os.CreateTemp(t.TempDir(), "passed")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make(chan string, 1)
	go func() {
		buf, oob := make([]byte, 4096), make([]byte, 64)
		n, oobn, _, _, err := p.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			t.Error(err)
		}
		var q request
		_ = json.Unmarshal(buf[:n], &q)
		msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
		name := ""
		for _, m := range msgs {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				name, _ = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
				unix.Close(fd)
			}
		}
		p.say(fmt.Sprintf(`{"return":{},"id":%d}`, q.ID))
		got <- name
	}()
	if err := c.Execute(t.Context(), "getfd", map[string]string{"fdname": "x"}, nil, f); err != nil {
		t.Fatal(err)
	}
	if name := <-got; name != f.Name() {
		t.Errorf("passed %q, want %q", name, f.Name())
	}
}

func TestDeathOfQEMU(t *testing.T) {
	c, p := connect(t, func(Event) {})
	go func() {
		p.hear()
		p.conn.Close()
	}()
	if err := c.Execute(t.Context(), "stop", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a command that was not answered: %v", err)
	}
	<-c.done
	if err := c.Execute(t.Context(), "stop", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a command after the end: %v", err)
	}
}

func TestACommandMayBeGivenUp(t *testing.T) {
	c, p := connect(t, func(Event) {})
	ctx, cancel := context.WithCancel(t.Context())
	heard := make(chan request, 2)
	go func() {
		heard <- p.hear()
		cancel()
	}()
	if err := c.Execute(ctx, "stop", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// Its late answer is for nobody, and the next one is not mistaken for it.
	late := <-heard
	go func() {
		q := p.hear()
		p.say(fmt.Sprintf(`{"return":{"n":1},"id":%d}{"return":{"n":2},"id":%d}`, late.ID, q.ID))
	}()
	var out struct{ N int }
	if err := c.Execute(t.Context(), "cont", nil, &out); err != nil || out.N != 2 {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestConnectRefusesStrangers(t *testing.T) {
	for name, first := range map[string]string{
		"silence that ends": "", "no greeting": `{"return":{}}`, "garbage": "HTTP/1.1 200 OK\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, p := pair(t)
			go func() {
				p.say(first)
				p.conn.Close()
			}()
			if c, _, err := Connect(t.Context(), conn, func(Event) {}); err == nil {
				c.Close()
				t.Error("it connected")
			}
		})
	}
	t.Run("no word at all", func(t *testing.T) {
		conn, _ := pair(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, _, err := Connect(ctx, conn, func(Event) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestGarbageEndsTheConnection(t *testing.T) {
	c, p := connect(t, func(Event) {})
	go func() {
		p.hear()
		p.say("}" + strings.Repeat("x", 10))
	}()
	if err := c.Execute(t.Context(), "stop", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	<-c.done
}
