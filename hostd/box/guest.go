package box

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
)

// guest is the agent in the guest of a slot.
func (h *Host) guest(slot int) *guestclient.Client {
	return guestclient.New(func(ctx context.Context) (net.Conn, error) { return h.dialGuest(ctx, slot) })
}

// dialGuest connects to a guest. It tries again until ctx ends: a guest that
// was resumed a moment ago may drop the first packet, and TCP itself would wait
// a second before it sends another; one that boots refuses for seconds.
func (h *Host) dialGuest(ctx context.Context, slot int) (net.Conn, error) {
	patience := 100 * time.Millisecond
	for {
		dctx, cancel := context.WithTimeout(ctx, patience)
		conn, err := h.slots.Dial(dctx, slot, guestapi.Port)
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

// guestError sorts what a call to a guest failed with: the end of what the call
// was for, the caller's request, or the guest.
func guestError(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, hosterr.ErrCutOff) && errors.Is(err, guestclient.ErrNotReached):
		// %v: it is not a cut-off, for nothing had begun.
		return fmt.Errorf("%w: %v", hosterr.ErrNotRunning, cause) //nolint:errorlint // see above
	case errors.Is(cause, hosterr.ErrCutOff), errors.Is(cause, hosterr.ErrGuest), errors.Is(cause, context.Canceled):
		return cause
	}
	var refusal *guestclient.Error
	if errors.As(err, &refusal) && (refusal.Status == 0 || refusal.Status == http.StatusBadRequest) {
		return hosterr.Invalid("%s", refusal.Message)
	}
	return fmt.Errorf("%w: %w", hosterr.ErrGuest, err)
}
