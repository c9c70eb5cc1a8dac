package guestio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/telemetry"
	"github.com/berth-cloud/berth/timescale"
)

// maxLinks bounds the transfers and logs of one box.
const maxLinks = 1024

// Kind is what a use of a slot is for.
type Kind int

// The kinds of uses. Each is counted by itself.
const (
	Command    Kind = iota
	Connection      // a transfer, a log
	Tunnel          // a caller's connection to a port
	Own             // a call of the host itself; not bounded
)

// maxUses bounds the uses of all slots together. Most have a connection to the host's API
// each, of which those that are for no guest need some, too.
const maxUses = 15 << 10

// Line counts who uses the slot of one box. Its workspace never changes.
type Line struct {
	workspace string
	shares    *shares // of the uses of slots
	now       func() time.Time
	commands  chan struct{} // capacity MaxExecs
	consoles  atomic.Int64  // readers of its console
	ports     int           // bound of the tunnels

	mu          sync.Mutex
	held        int64         // bytes of input and output held by its commands
	uses        int           // of the slot
	connections int           // of those
	tunnels     int           // of those
	tunnelAt    time.Time     // when the last of them ended; zero: none did
	refused     int           // tunnels, since shut
	shut        bool          // no tunnel is opened
	came        func()        // called at the first tunnel refused; nil unless shut
	unused      chan struct{} // closed when uses is 0 again; nil while nobody waits for that
	clock       func()        // ends the setting of the guest's clock that was begun last
}

// NewLine returns the line of a new box.
func (g *Guests) NewLine(workspace string) *Line {
	return &Line{workspace: workspace, shares: g.uses, now: g.cfg.Now, commands: make(chan struct{}, g.cfg.MaxExecs), ports: g.cfg.MaxTunnels, clock: func() {}}
}

// Link is one use of a box's slot: a command, a transfer, a connection. Its
// context ends with the caller's and with the VMM.
//
// So a pause stalls what is under way, and a hibernation cuts it: it waits for
// nobody, because a stream may last for days. The guest does not see the cut.
// When it is woken it is told that its callers are gone, and commands go on
// without them.
type Link struct {
	ctx    context.Context
	line   *Line
	slot   int
	kind   Kind
	vmm    <-chan struct{} // closed when the VMM has ended
	cancel context.CancelCauseFunc
	stop   func()
	free   func()         // of what is held for it; nil: nothing is
	span   telemetry.Span // of a command that is followed; ends with the use
}

// Open begins a use of the slot, if the bounds allow one. ended is closed when
// the VMM has ended, and reason then says why.
func (n *Line) Open(ctx context.Context, kind Kind, slot int, ended <-chan struct{}, reason func() error) (*Link, error) {
	if err := n.admit(kind); err != nil {
		return nil, err
	}
	l := &Link{line: n, slot: slot, kind: kind, vmm: ended}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	// A killed VM closes no connection; nothing would ever arrive on it.
	l.stop = afterDone(l.ctx, ended, func() { l.cancel(reason()) })
	return l, nil
}

func (n *Line) admit(kind Kind) (err error) {
	if kind != Own {
		if !n.shares.take(n.workspace, 1) {
			return fmt.Errorf("%w: those of its workspace are half of what this host has left", hosterr.ErrConnections)
		}
		defer func() {
			if err != nil {
				n.shares.give(n.workspace, 1)
			}
		}()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch kind {
	case Command:
		select {
		case n.commands <- struct{}{}:
		default:
			return hosterr.ErrBusy
		}
	case Connection:
		if n.connections >= maxLinks {
			return fmt.Errorf("%w: %d transfers and logs", hosterr.ErrConnections, maxLinks)
		}
		n.connections++
	case Tunnel:
		if n.shut {
			if n.refused++; n.refused == 1 {
				n.came()
			}
			return fmt.Errorf("%w: it is about to sleep", hosterr.ErrNotRunning)
		}
		if n.tunnels >= n.ports {
			return fmt.Errorf("%w: %d to its ports", hosterr.ErrConnections, n.ports)
		}
		n.tunnels++
	case Own:
	}
	n.uses++
	return nil
}

// Leave ends the use. It is called once.
func (l *Link) Leave() {
	l.span.End(context.Cause(l.ctx))
	l.cancel(context.Canceled)
	l.stop()
	if l.free != nil {
		l.free()
	}
	n := l.line
	if l.kind != Own {
		n.shares.give(n.workspace, 1)
	}
	if l.kind == Command {
		<-n.commands
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch l.kind {
	case Connection:
		n.connections--
	case Tunnel:
		n.tunnels--
		n.tunnelAt = n.now()
	case Command, Own:
	}
	if n.uses--; n.uses == 0 && n.unused != nil {
		close(n.unused)
		n.unused = nil
	}
}

// AwaitUnused returns once nobody uses the slot any more. Every use ends with
// the VMM, whatever its caller does.
func (n *Line) AwaitUnused(ctx context.Context) error {
	n.mu.Lock()
	if n.uses == 0 {
		n.mu.Unlock()
		return nil
	}
	if n.unused == nil {
		n.unused = make(chan struct{})
	}
	unused, uses := n.unused, n.uses
	n.mu.Unlock()
	select {
	case <-unused:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d connections into its slot are open: %w", uses, context.Cause(ctx))
	}
}

// inUse reports whether a command or a connection of a caller is in the guest.
func (n *Line) inUse() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uses > 0
}

// afterDone calls f when done closes before ctx ends. The returned function
// waits until that is decided and over; it may be called after ctx ended only
// if its caller ended ctx itself, as Leave does.
func afterDone(ctx context.Context, done <-chan struct{}, f func()) (stop func()) {
	quit, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-done:
			f()
		case <-quit:
		case <-ctx.Done():
		}
	}()
	return func() { close(quit); <-over }
}

// connectTimeout bounds how long a port may take to accept a connection.
var connectTimeout = timescale.Limit(10 * time.Second)

// classify tells apart why a use of the slot failed: the use has ended, or the
// guest is to blame.
func (l *Link) classify(err error) error {
	if context.Cause(l.ctx) == nil {
		return err
	}
	return guestError(l.ctx, err)
}

// dialLinked connects to the agent in the guest of a link.
func (g *Guests) dialLinked(ctx context.Context, l *Link) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := g.dialAgent(ctx, l.slot)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %w", hosterr.ErrGuest, guestclient.ErrNotReached, err)
	}
	return conn, nil
}

// linked is the agent in the guest of a link.
func (g *Guests) linked(l *Link) *guestclient.Client {
	return guestclient.New(func(ctx context.Context) (net.Conn, error) { return g.dialLinked(ctx, l) })
}

// Conn is a connection into a guest. When the guest cannot be reached any more,
// it is reset and its use of the slot is over; Err then says why. Nobody waits
// for its owner, who may be blocked in a write.
type Conn struct {
	net.Conn
	link *Link
	stop func() bool
	over sync.Once
	err  error // of the close
}

func (l *Link) conn(c net.Conn) *Conn {
	conn := &Conn{Conn: c, link: l}
	conn.stop = context.AfterFunc(l.ctx, func() {
		linger(c)
		conn.end()
	})
	return conn
}

// CloseWrite says that nothing more will be written; reading goes on.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// Err returns why the connection was cut, nil while it is not.
func (c *Conn) Err() error { return context.Cause(c.link.ctx) }

// AfterCut calls f once the connection is cut, unless stop is called before.
func (c *Conn) AfterCut(f func()) (stop func() bool) { return context.AfterFunc(c.link.ctx, f) }

// Close implements io.Closer. It ends the use of the slot.
func (c *Conn) Close() error {
	c.stop()
	c.end()
	return c.err
}

func (c *Conn) end() {
	c.over.Do(func() {
		c.err = c.Conn.Close()
		c.link.Leave()
	})
}

// Reset closes the connection so that the guest learns of it at once, also
// while it takes no more data.
func (c *Conn) Reset() error {
	linger(c.Conn)
	return c.Close()
}

func linger(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
}
