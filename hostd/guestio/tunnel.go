package guestio

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// Shut refuses tunnels from now on, as of a box that does not run, and calls came at the
// first that it refuses; came must not wait. Where there are some it does not, and
// reports false: none is ever cut.
func (n *Line) Shut(came func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tunnels > 0 {
		return false
	}
	n.shut, n.refused, n.came = true, 0, came
	return true
}

// Reopen ends Shut.
func (n *Line) Reopen() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shut, n.came = false, nil
}

// IsShut reports whether tunnels are refused, and how many were.
func (n *Line) IsShut() (shut bool, refused int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shut, n.refused
}

// Tunnels is how many are open, and when the last one ended; zero where none did.
func (n *Line) Tunnels() (open int, ended time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tunnels, n.tunnelAt
}

// DialOwn connects to a port of a running box's guest for the host itself, and tries
// again until ctx ends. The connection ends with the VMM, and not with ctx.
func (g *Guests) DialOwn(ctx context.Context, id string, port int) (*Conn, error) {
	l, err := g.boxes.Enter(g.work.Life(), id, Own)
	if err != nil {
		return nil, err
	}
	dctx, cancel := context.WithCancelCause(l.ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	conn, err := g.dialUntil(dctx, l.slot, port)
	if err != nil {
		err = fmt.Errorf("%w: %w: %w", hosterr.ErrGuest, guestclient.ErrNotReached, err)
		if l.ctx.Err() != nil {
			err = l.classify(err)
		}
		l.Leave()
		return nil, err
	}
	return l.conn(conn), nil
}
