package guestio

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/timescale"
)

// agent is the agent in the guest of a slot.
func (g *Guests) agent(slot int) *guestclient.Client {
	return guestclient.New(func(ctx context.Context) (net.Conn, error) { return g.dialAgent(ctx, slot) })
}

// dialAgent connects to the agent of a guest.
func (g *Guests) dialAgent(ctx context.Context, slot int) (net.Conn, error) {
	return g.dialUntil(ctx, slot, guestapi.Port)
}

// dialUntil connects to a port of a guest, and tries again until ctx ends. A guest
// that was resumed a moment ago may drop the first packet, and TCP itself would wait
// a second before it sends another; a guest that boots refuses for seconds.
func (g *Guests) dialUntil(ctx context.Context, slot, port int) (net.Conn, error) {
	patience := 100 * time.Millisecond
	for {
		dctx, cancel := context.WithTimeout(ctx, patience)
		conn, err := g.cfg.Dial(dctx, slot, port)
		cancel()
		if err == nil {
			return conn, nil
		}
		patience = min(2*patience, 2*time.Second)
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// guestError tells apart why a call to a guest failed: its use of the slot has
// ended, the request was bad, the guest is full, or it is to blame.
func guestError(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, hosterr.ErrCutOff) && errors.Is(err, guestclient.ErrNotReached):
		// %v and not %w: nothing had begun, so nothing was cut off.
		return fmt.Errorf("%w: %v", hosterr.ErrNotRunning, cause) //nolint:errorlint // see above
	case errors.Is(cause, hosterr.ErrCutOff), errors.Is(cause, hosterr.ErrGuest), errors.Is(cause, context.Canceled):
		return cause
	}
	var refusal *guestclient.Error
	switch {
	case !errors.As(err, &refusal):
	case refusal.Body.Code == guestapi.CodeLimit:
		return fmt.Errorf("%w: %s", hosterr.ErrBusy, refusal.Message)
	case refusal.Body.Code == guestapi.CodeFault:
	case refusal.Status == 0, refusal.Status == http.StatusBadRequest, refusal.Status == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %s", invalidFor(refusal.Body.Code), refusal.Message)
	}
	return fmt.Errorf("%w: %w", hosterr.ErrGuest, err)
}

// invalidFor is what a guest's code finds wrong with a command. An agent that is
// older than the codes of limits and faults gives them none, as it does to a bad request.
func invalidFor(code string) error {
	switch code {
	case guestapi.CodeInvalidCwd:
		return hosterr.ErrCwd
	case guestapi.CodeNoUser:
		return hosterr.ErrUser
	}
	return hosterr.ErrInvalid
}

// Await returns once the agent of a guest that boots answers.
func (g *Guests) Await(ctx context.Context, slot int) error {
	if _, err := g.agent(slot).Await(ctx); err != nil {
		return fmt.Errorf("%w: boot of the guest: %w", hosterr.ErrGuest, err)
	}
	return nil
}

// answerTimeout bounds how long a guest that runs may take to answer at all.
var answerTimeout = timescale.Limit(10 * time.Second)

// Answers reports whether the agent in the guest of a link says anything, whatever it is.
func (g *Guests) Answers(l *Link) bool {
	ctx, cancel := context.WithTimeout(l.ctx, answerTimeout)
	defer cancel()
	_, err := g.agent(l.slot).Health(ctx)
	var refusal *guestclient.Error
	return err == nil || errors.As(err, &refusal)
}

// flushTimeout bounds how long a guest may take to flush its file systems.
var flushTimeout = timescale.Limit(30 * time.Second)

// Flush has the guest flush its file systems.
func (g *Guests) Flush(ctx context.Context, slot int) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := g.agent(slot).Sync(ctx); err != nil {
		return fmt.Errorf("%w: flush its file systems: %w", hosterr.ErrGuest, err)
	}
	return nil
}

// FlushFrozen is Flush with the tenant's processes standing still from before it until the
// guest takes an identity, so that no command is answered whose writes come after it. A
// guest that does not freeze them flushes all the same: it may only be busy.
func (g *Guests) FlushFrozen(ctx context.Context, slot int) error {
	_, err := g.freeze(ctx, slot)
	if err != nil {
		err = fmt.Errorf("%w: freeze its processes: %w", hosterr.ErrGuest, err)
	}
	return errors.Join(err, g.Flush(ctx, slot))
}

// Mount has the guest mount a disk that was plugged in. The guest waits for the
// disk itself: only it knows when its kernel has found it. A path that cannot be one
// because of the guest's own files is an ErrMount.
func (g *Guests) Mount(ctx context.Context, slot int, m guestapi.Mount) error {
	err := g.agent(slot).Mount(ctx, m)
	if err == nil {
		return nil
	}
	var refusal *guestclient.Error
	if errors.As(err, &refusal) {
		switch refusal.Status {
		case http.StatusBadRequest, http.StatusForbidden, http.StatusConflict:
			return fmt.Errorf("%w: mount_path %s: %s", hosterr.ErrMount, m.Path, refusal.Message)
		}
	}
	return fmt.Errorf("%w: mount volume %s at %s: %w", hosterr.ErrGuest, m.Serial, m.Path, err)
}
