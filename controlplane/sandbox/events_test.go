package sandbox_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

// What is followed holds a connection to the sandbox's host for as long as its client likes.
func TestAWorkspaceFollowsSoManyStreamsAtOnce(t *testing.T) {
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	events := func(c core.Caller) (io.Closer, error) {
		return r.Logs.FollowEvents(t.Context(), c, sb.ID, api.EventQuery{})
	}
	logs := func(c core.Caller) (io.Closer, error) {
		return r.Logs.Follow(t.Context(), c, sb.ID, api.LogQuery{Stream: "both"})
	}
	var open []io.Closer
	defer func() {
		for _, s := range open {
			s.Close()
		}
	}()
	for i := range 100 {
		follow := events
		if i%2 == 0 {
			follow = logs
		}
		s, err := follow(testplane.Caller)
		if err != nil {
			t.Fatalf("the %dth: %v", i+1, err)
		}
		open = append(open, s)
	}
	for name, follow := range map[string]func(core.Caller) (io.Closer, error){"events": events, "logs": logs} {
		s, err := follow(testplane.Caller)
		if err == nil {
			open = append(open, s)
		}
		if e := apierror.As(err); err == nil || e.Code != apierror.ERateLimited || e.Message != "too many streams at once" {
			t.Errorf("one more of %s: %v", name, err)
		}
	}
	open[0].Close()
	s, err := logs(testplane.Caller)
	if err != nil {
		t.Fatalf("after one has ended: %v", err)
	}
	open[0] = s
	if _, err := events(core.Caller{WorkspaceID: "other"}); apierror.CodeOf(err) != apierror.ENotFound {
		t.Error(err)
	}
	// What cannot be followed is not counted.
	open[1].Close()
	for range 3 {
		if _, err := r.Logs.Follow(t.Context(), testplane.Caller, "none", api.LogQuery{}); apierror.CodeOf(err) != apierror.ENotFound {
			t.Error(err)
		}
	}
	if open[1], err = events(testplane.Caller); err != nil {
		t.Error(err)
	}
}

// The memory for unread lists of events is limited like that for outputs.
func TestLongListsOfEventsAreHeldWithinBounds(t *testing.T) {
	tier.Slow(t)
	r := testplane.NewRig(t, 1)
	sb := r.Must(t, api.CreateSandbox{})
	// The rig's host does not announce the length of its answer, so it counts as the
	// longest.
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
