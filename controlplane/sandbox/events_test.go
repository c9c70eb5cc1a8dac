package sandbox_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
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

// stored is an event store.
type stored map[string][]hostapi.Event

func (s stored) OfSandbox(_ context.Context, workspaceID, id string, since time.Time, limit int) (out []hostapi.Event, err error) {
	if workspaceID == "away" {
		return nil, errors.New("no connection")
	}
	for _, e := range s[workspaceID+"/"+id] {
		if e.Time.After(since) {
			out = append(out, e)
		}
	}
	return out[max(0, len(out)-limit):], nil
}

// The event store answers when the host cannot: after a delete, for a box that is gone,
// and while the host is lost.
func TestEventsOutliveTheSandbox(t *testing.T) {
	tier.Slow(t)
	p := testplane.New(t, 1, nil)
	h := p.Host("h1", 4096)
	running(p, h, id)
	begun := time.Now().UTC().Truncate(time.Millisecond)
	const old = "zzzzzzzzzzzzzzzzzzzzzzzzzz"
	store := stored{
		"ws/" + id: {{Time: begun, SandboxID: id, Type: hostapi.EventRunning}},
		"ws/" + old: {
			{Time: begun, SandboxID: old, Type: hostapi.EventRunning}, {Time: begun.Add(time.Second), SandboxID: old, Type: hostapi.EventDeleted},
		},
	}
	logs := sandbox.New(p.LeaderNode().Core, sandbox.Config{History: store}).Logs
	one, none := 1, 0
	for name, c := range map[string]struct {
		id    string
		query api.EventQuery
		want  []hostapi.EventType
	}{
		"deleted":            {old, api.EventQuery{}, []hostapi.EventType{hostapi.EventRunning, hostapi.EventDeleted}},
		"deleted, last":      {old, api.EventQuery{Tail: &one}, []hostapi.EventType{hostapi.EventDeleted}},
		"deleted, since":     {old, api.EventQuery{Since: begun}, []hostapi.EventType{hostapi.EventDeleted}},
		"deleted, none":      {old, api.EventQuery{Tail: &none}, nil},
		"deleted, all since": {old, api.EventQuery{Since: begun.Add(time.Minute)}, nil},
		"of the host":        {id, api.EventQuery{}, nil},
	} {
		found, err := logs.Events(t.Context(), testplane.Caller, c.id, c.query)
		var got []hostapi.EventType
		for _, e := range found {
			got = append(got, hostapi.EventType(e.Type))
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, c := range map[string]struct {
		workspace, id string
		want          apierror.Code
	}{
		"another workspace": {"other", old, apierror.ENotFound},
		"unknown":           {"ws", strings.Repeat("q", len(id)), apierror.ENotFound},
		"no workspace":      {"", old, apierror.EUnauthorized},
		"store is away":     {"away", old, apierror.EUnavailable},
	} {
		if _, err := logs.Events(t.Context(), core.Caller{WorkspaceID: c.workspace}, c.id, api.EventQuery{}); apierror.CodeOf(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A client that follows learns by a 404 that nothing more will come.
	if _, err := logs.FollowEvents(t.Context(), testplane.Caller, old, api.EventQuery{}); apierror.CodeOf(err) != apierror.ENotFound {
		t.Errorf("follow: %v", err)
	}
	answers := func(when string) {
		t.Helper()
		found, err := logs.Events(t.Context(), testplane.Caller, id, api.EventQuery{})
		if err != nil || len(found) != 1 || found[0].Type != string(hostapi.EventRunning) {
			t.Errorf("%s: %v, %v", when, found, err)
		}
	}
	h.SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "events" {
			return &hostapi.Error{Code: hostapi.CodeNotFound, Message: "not found"}
		}
		return nil
	})
	answers("the box is gone")
	h.Silence(true)
	becomes(t, p, id, record.SandboxFailed)
	answers("the host is lost")
	edit(p, id, func(s *record.Sandbox) { s.Exclusive, s.Unreachable = true, false })
	answers("the host is lost, and the sandbox never to run twice")
}
