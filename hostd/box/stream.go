package box

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hosterr"
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
	free   func() // of what is held for it; nil: nothing is
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

// ended says why what was under way in a box is cut off: its VMM has ended.
func (b *box) ended() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	why := "its VMM died"
	switch {
	case b.leaving != leaveNot:
		why = "it was deleted"
	case b.rec.State != ledger.Running:
		why = "it is " + string(b.rec.State)
	}
	return fmt.Errorf("%w: %s", hosterr.ErrCutOff, why)
}

// runs says why nobody can speak to the box's guest. The caller holds b.mu.
func (b *box) runs() error {
	switch {
	case b.leaving == leaveForget:
		return hosterr.ErrNotFound
	case b.leaving != leaveNot:
		return fmt.Errorf("%w: it is being deleted", hosterr.ErrNotRunning)
	case b.rec.State != ledger.Running:
		return fmt.Errorf("%w: it is %s", hosterr.ErrNotRunning, b.rec.State)
	case b.vmm == nil:
		return fmt.Errorf("%w: it has no VMM", hosterr.ErrNotRunning)
	}
	return nil
}

// admit counts a use, within the bounds. The caller holds b.mu.
func (b *box) admit(l *link) error {
	if l.plain {
		if b.links >= maxLinks {
			return fmt.Errorf("%w: %d connections", hosterr.ErrBusy, maxLinks)
		}
		b.links++
	} else {
		select {
		case b.execSlot <- struct{}{}:
		default:
			return hosterr.ErrBusy
		}
	}
	b.uses++
	return nil
}

// leave ends the use. It is called once.
func (l *link) leave() {
	l.cancel(context.Canceled)
	l.stop()
	if l.free != nil {
		l.free()
	}
	if !l.plain {
		<-l.box.execSlot
	}
	b := l.box
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.plain {
		b.links--
	}
	if b.uses--; b.uses == 0 && b.unused != nil {
		close(b.unused)
		b.unused = nil
	}
}

// awaitUnused returns once nobody uses the slot of a box that is leaving. Each
// use ends with the VMM, whatever the one does that it is for.
func (b *box) awaitUnused(ctx context.Context) error {
	b.mu.Lock()
	if b.uses == 0 {
		b.mu.Unlock()
		return nil
	}
	if b.unused == nil {
		b.unused = make(chan struct{})
	}
	unused, n := b.unused, b.uses
	b.mu.Unlock()
	select {
	case <-unused:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d connections into its slot are open: %w", n, context.Cause(ctx))
	}
}

// connectTimeout bounds how long a port may take to accept a connection.
var connectTimeout = timescale.Limit(10 * time.Second)

// why sorts what a use of the slot failed with: its own end, or the guest.
func (l *link) why(err error) error {
	if context.Cause(l.ctx) == nil {
		return err
	}
	return guestError(l.ctx, err)
}

// dialAgent connects to the guest's agent.
func (h *Host) dialAgent(ctx context.Context, l *link) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := h.dialGuest(ctx, l.slot)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %w", hosterr.ErrGuest, guestclient.ErrNotReached, err)
	}
	return conn, nil
}

// agent is the agent in the guest of a link.
func (h *Host) agent(l *link) *guestclient.Client {
	return guestclient.New(func(ctx context.Context) (net.Conn, error) { return h.dialAgent(ctx, l) })
}

// Conn is a connection into a guest. It is reset, and its use of the slot is
// over, when the box can no longer be spoken to; Err then says why. Whoever has
// it may be in a write to somebody who does not read: nobody waits for that.
type Conn struct {
	net.Conn
	link *link
	stop func() bool
	over sync.Once
	err  error // of the close
}

func (l *link) conn(c net.Conn) *Conn {
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
		c.link.leave()
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
