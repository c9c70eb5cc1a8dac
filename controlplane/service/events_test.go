package service_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/service"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Lists of events that nobody reads take no more of the leader than outputs do.
func TestLongListsOfEventsAreHeldWithinBounds(t *testing.T) {
	r := newRig(t)
	sb := r.must(t, service.CreateSandbox{})
	// The rig's host does not say how long its answer is: it counts as the longest.
	r.host.AddEvents(hostapi.Event{Seq: 1, Time: time.Now(), SandboxID: sb.ID, Message: strings.Repeat("x", 1<<20)})
	unread, read := context.WithCancel(t.Context())
	q := service.EventQuery{Tail: new(100)}
	if found, err := r.Events(unread, caller, sb.ID, q); err != nil || len(found) == 0 {
		t.Fatalf("%d events, %v", len(found), err)
	}
	impatient, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if _, err := r.Events(impatient, caller, sb.ID, q); err == nil {
		t.Error("a second list is held beside one that nobody has read")
	}
	read()
	if _, err := r.Events(t.Context(), caller, sb.ID, q); err != nil {
		t.Errorf("after they were read: %v", err)
	}
	if _, err := r.Events(unread, caller, sb.ID, q); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
