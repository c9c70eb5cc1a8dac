package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Lists of events that nobody reads take no more of the leader than outputs do.
func TestLongListsOfEventsAreHeldWithinBounds(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	// The rig's host does not say how long its answer is: it counts as the longest.
	r.H1.AddEvents(hostapi.Event{Seq: 1, Time: time.Now(), SandboxID: sb.ID, Message: strings.Repeat("x", 1<<20)})
	unread, read := context.WithCancel(t.Context())
	q := api.EventQuery{Tail: new(100)}
	if found, err := r.Logs.Events(unread, testplane.Caller, sb.ID, q); err != nil || len(found) == 0 {
		t.Fatalf("%d events, %v", len(found), err)
	}
	impatient, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if _, err := r.Logs.Events(impatient, testplane.Caller, sb.ID, q); err == nil {
		t.Error("a second list is held beside one that nobody has read")
	}
	read()
	if _, err := r.Logs.Events(t.Context(), testplane.Caller, sb.ID, q); err != nil {
		t.Errorf("after they were read: %v", err)
	}
	if _, err := r.Logs.Events(unread, testplane.Caller, sb.ID, q); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
