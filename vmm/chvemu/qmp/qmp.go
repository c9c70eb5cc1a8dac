// Package qmp is a client of QEMU's machine protocol over a connected unix
// socket: commands with their answers, files passed along, and events.
//
// See "QEMU Machine Protocol Specification" in QEMU's docs/interop.
package qmp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Event is something QEMU tells unasked.
type Event struct {
	Name string
	Data json.RawMessage
}

// Error is a refusal by QEMU.
type Error struct {
	Command string
	Desc    string `json:"desc"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Command, e.Desc) }

// ErrClosed is returned for commands that QEMU did not live to answer.
var ErrClosed = errors.New("connection to QEMU is closed")

// Client sends commands to one QEMU. It is safe for concurrent use; QEMU runs
// the commands in the order in which they are sent.
type Client struct {
	conn  *net.UnixConn
	event func(Event)
	done  chan struct{} // closed when QEMU has closed the connection

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan answer
	err     error
}

type answer struct {
	value json.RawMessage
	err   *Error
}

type message struct {
	QMP *struct {
		Version struct {
			QEMU struct{ Major, Minor, Micro int } `json:"qemu"`
		} `json:"version"`
	} `json:"QMP"`
	ID     *uint64         `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *Error          `json:"error"`
	Event  string          `json:"event"`
	Data   json.RawMessage `json:"data"`
}

// maxMessage bounds one message of QEMU's. The largest answers to the commands
// that are used here are a few kilobytes.
const maxMessage = 16 << 20

// Connect reads the greeting and leaves the negotiation, and returns QEMU's
// version, three numbers. It owns conn from then on. The function event is called for each event, in order, by the goroutine
// that also delivers answers: it must not wait for a command.
func Connect(ctx context.Context, conn *net.UnixConn, event func(Event)) (*Client, string, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	dec := json.NewDecoder(conn)
	var hello message
	if err := dec.Decode(&hello); err != nil {
		conn.Close()
		return nil, "", fmt.Errorf("read QEMU's greeting: %w", errors.Join(err, ctx.Err()))
	}
	if hello.QMP == nil {
		conn.Close()
		return nil, "", errors.New("QEMU did not greet")
	}
	v := hello.QMP.Version.QEMU
	c := &Client{conn: conn, event: event, done: make(chan struct{}), pending: map[uint64]chan answer{}}
	go c.read(dec)
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		c.Close()
		return nil, "", err
	}
	return c, fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Micro), nil
}

// Execute sends a command with arguments (nil, or something that marshals to an
// object) and files, and decodes its answer into out unless that is nil.
func (c *Client) Execute(ctx context.Context, command string, args, out any, files ...*os.File) error {
	ch := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return fmt.Errorf("%s: %w", command, c.err)
	}
	c.next++
	id := c.next
	raw, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, args, id})
	if err == nil {
		c.pending[id] = ch
		err = c.send(raw, files)
		if err != nil {
			delete(c.pending, id)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case a, ok := <-ch:
		if !ok {
			return fmt.Errorf("%s: %w", command, c.closedErr())
		}
		if a.err != nil {
			a.err.Command = command
			return a.err
		}
		if out == nil {
			return nil
		}
		if err := json.Unmarshal(a.value, out); err != nil {
			return fmt.Errorf("%s: decode answer: %w", command, err)
		}
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", command, ctx.Err())
	}
}

// send writes one command. The files travel with its first byte, which is where
// QEMU looks for them when it runs the command.
func (c *Client) send(raw []byte, files []*os.File) error {
	if len(files) == 0 {
		_, err := c.conn.Write(raw)
		return err
	}
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	n, _, err := c.conn.WriteMsgUnix(raw, unix.UnixRights(fds...), nil)
	if err != nil {
		return err
	}
	_, err = c.conn.Write(raw[n:])
	return err
}

// Close closes the connection and waits for the reader to end.
func (c *Client) Close() {
	c.conn.Close()
	<-c.done
}

func (c *Client) closedErr() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Client) read(dec *json.Decoder) {
	defer close(c.done)
	start := dec.InputOffset()
	for {
		var m message
		err := dec.Decode(&m)
		if err == nil && dec.InputOffset()-start > maxMessage {
			err = fmt.Errorf("a message of %d bytes", dec.InputOffset()-start)
		}
		start = dec.InputOffset()
		if err != nil {
			c.fail(err)
			return
		}
		switch {
		case m.Event != "":
			c.event(Event{Name: m.Event, Data: m.Data})
		case m.ID != nil:
			c.mu.Lock()
			ch := c.pending[*m.ID]
			delete(c.pending, *m.ID)
			c.mu.Unlock()
			if ch != nil {
				ch <- answer{value: m.Return, err: m.Error}
			}
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = ErrClosed
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	for id, ch := range c.pending {
		close(ch)
		delete(c.pending, id)
	}
	c.conn.Close()
}
