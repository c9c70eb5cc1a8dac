package box

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/timescale"
)

// maxLinks bounds the connections into one box that are no commands: transfers,
// logs, and those that callers have to its ports.
const maxLinks = 1024

// link is one use of a box's slot: a command, a transfer, a connection. Its
// context ends with the caller's and with the VMM.
//
// So a pause stalls what is under way, and a hibernate cuts it: it waits for
// nobody, because a stream may last for days. The guest does not see the cut. It
// is told when it is woken that its callers are of another life, and commands go
// on without theirs.
type link struct {
	ctx    context.Context
	box    *box
	slot   int
	cancel context.CancelCauseFunc
	plain  bool
	stop   func()
}

// enterCommand counts the caller as running a command in the box.
func (h *Host) enterCommand(ctx context.Context, id string) (*link, error) {
	return h.enterBox(ctx, id, false)
}

// enterPlain counts the caller as holding a connection into the box.
func (h *Host) enterPlain(ctx context.Context, id string) (*link, error) {
	return h.enterBox(ctx, id, true)
}

// enterBox begins a use of a box's slot, where the box runs. The caller calls
// leave, after it closed what it opened: the slot does not go back before.
func (h *Host) enterBox(ctx context.Context, id string, plain bool) (*link, error) {
	b, err := h.lookup(id)
	if err != nil {
		return nil, err
	}
	l := &link{box: b, plain: plain}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	b.mu.Lock()
	err = b.runs()
	if err == nil {
		err = b.admit(l)
	}
	process, slot := b.vmm, b.rec.Slot
	b.mu.Unlock()
	if err != nil {
		l.cancel(err)
		return nil, err
	}
	l.slot = slot
	// A killed VM closes no connection; nothing would ever arrive on it.
	l.stop = afterDone(l.ctx, process.Done(), func() { l.cancel(b.ended()) })
	return l, nil
}

// ended says why the VMM of a box that ran has ended.
func (b *box) ended() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.runs(); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w: VMM died", ErrNotRunning)
}

// runs says why nobody can speak to the box's guest. The caller holds b.mu.
func (b *box) runs() error {
	switch {
	case b.leaving == leaveForget:
		return ErrNotFound
	case b.leaving != leaveNot:
		return fmt.Errorf("%w: it is being deleted", ErrNotRunning)
	case b.rec.State != ledger.Running:
		return fmt.Errorf("%w: it is %s", ErrNotRunning, b.rec.State)
	case b.vmm == nil:
		return fmt.Errorf("%w: it has no VMM", ErrNotRunning)
	}
	return nil
}

// admit counts a use, within the bounds. The caller holds b.mu.
func (b *box) admit(l *link) error {
	if l.plain {
		if b.links >= maxLinks {
			return fmt.Errorf("%w: %d connections", ErrBusy, maxLinks)
		}
		b.links++
	} else {
		select {
		case b.execSlot <- struct{}{}:
		default:
			return ErrBusy
		}
	}
	b.execs.Add(1)
	return nil
}

// leave ends the use.
func (l *link) leave() {
	l.cancel(context.Canceled)
	l.stop()
	if l.plain {
		l.box.mu.Lock()
		l.box.links--
		l.box.mu.Unlock()
	} else {
		<-l.box.execSlot
	}
	l.box.execs.Done()
}

// connectTimeout bounds how long the guest's agent, or a port, may take to
// accept a connection.
var connectTimeout = timescale.Limit(10 * time.Second)

// why sorts what a use of the slot failed with: its own end, or the guest.
func (l *link) why(err error) error {
	if cause := context.Cause(l.ctx); cause != nil {
		return cause
	}
	return err
}

// dialAgent connects to the guest's agent.
func (h *Host) dialAgent(l *link) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	conn, err := h.dialGuest(ctx, l.slot)
	if err != nil {
		return nil, l.why(fmt.Errorf("%w: %w", ErrGuest, err))
	}
	return conn, nil
}

// Conn is a connection into a guest. It is reset when the box can no longer be
// spoken to; Err then says why.
type Conn struct {
	net.Conn
	link  *link
	stop  func() bool
	close sync.Once
}

func (l *link) conn(c net.Conn) *Conn {
	return &Conn{Conn: c, link: l, stop: context.AfterFunc(l.ctx, func() { reset(c) })}
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

// Close implements io.Closer. It ends the use of the slot.
func (c *Conn) Close() error {
	var err error
	c.close.Do(func() {
		c.stop()
		err = c.Conn.Close()
		c.link.leave()
	})
	return err
}

// Reset closes the connection so that the guest learns of it at once, also
// while it takes no more data.
func (c *Conn) Reset() error {
	linger(c.Conn)
	return c.Close()
}

// reset aborts a connection, from any goroutine.
func reset(c net.Conn) {
	linger(c)
	c.Close()
}

func linger(c net.Conn) {
	if tcp, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
}
