package core

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/raftstore"
)

// The control store's refusals in the API's words. A refusal that may pass soon asks
// the client to retry.
func TestWhatTheControlStoreRefuses(t *testing.T) {
	for err, detail := range map[error]string{
		raftstore.ErrOverloaded:     "too many writes wait; nothing was done",
		raftstore.ErrContention:     "too many changes at once; nothing was done",
		raftstore.ErrNotLeader:      "leadership is changing; nothing was done",
		raftstore.ErrClosed:         "leadership is changing; nothing was done",
		hosts.ErrNotLeading:         "leadership is changing; nothing was done",
		raftstore.ErrLeadershipLost: "leadership was lost while this was done; it may or may not have happened",
		context.DeadlineExceeded:    "the request ended before it was done; it may or may not have happened",
	} {
		var got *apierror.Error
		if !errors.As(StoreError(fmt.Errorf("update: %w", err)), &got) || got.Code != apierror.EUnavailable || got.Message != "control plane unavailable" ||
			got.Detail != detail || got.RetryAfter != time.Second || !errors.Is(got, err) {
			t.Errorf("%v: %+v", err, got)
		}
	}
	var got *apierror.Error
	if !errors.As(StoreError(raftstore.ErrTooLarge), &got) || got.Code != apierror.ETooLarge {
		t.Errorf("too large: %+v", got)
	}
	if StoreError(nil) != nil {
		t.Error("nothing is no error")
	}
}
