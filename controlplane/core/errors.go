package core

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
)

// StoreError converts an error of the control store to one of the API.
func StoreError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrNotLeader), errors.Is(err, raftstore.ErrClosed), errors.Is(err, hosts.ErrNotLeading):
		return apierror.Unavailable("leadership is changing; nothing was done", err)
	case errors.Is(err, raftstore.ErrLeadershipLost):
		return lost(err)
	case errors.Is(err, raftstore.ErrOverloaded):
		return apierror.Unavailable("too many writes wait; nothing was done", err)
	case errors.Is(err, raftstore.ErrContention):
		return apierror.Unavailable("too many changes at once; nothing was done", err)
	case errors.Is(err, raftstore.ErrTooLarge):
		return &apierror.Error{Code: apierror.ETooLarge, Message: "request too large", Err: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return apierror.Unavailable("the request ended before it was done; it may or may not have happened", err)
	}
	return apierror.As(err)
}

// lost is the error for a change whose outcome only the next leader knows.
func lost(err error) error {
	return apierror.Unavailable("leadership was lost while this was done; it may or may not have happened", err)
}

// EventStoreError is the error of an event store that does not answer. It may be a
// separate server.
func EventStoreError(err error) error {
	return &apierror.Error{Code: apierror.EUnavailable, Message: "event store unavailable", RetryAfter: time.Second, Err: err}
}
