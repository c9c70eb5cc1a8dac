package core

import (
	"context"
	"errors"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
)

// StoreError says in the API's words why the control store did not do it.
func StoreError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftstore.ErrNotLeader), errors.Is(err, raftstore.ErrClosed), errors.Is(err, hosts.ErrNotLeading):
		return apierror.Unavailable("leadership is changing; nothing was done", err)
	case errors.Is(err, raftstore.ErrLeadershipLost):
		return apierror.Unavailable("leadership was lost while this was done; it may or may not have happened", err)
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

// EventStoreError is for an event store that does not answer: it may be a server of
// its own.
func EventStoreError(err error) error {
	return &apierror.Error{Code: apierror.EUnavailable, Message: "event store unavailable", RetryAfter: time.Second, Err: err}
}
