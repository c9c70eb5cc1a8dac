package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

func keyOf(e api.Event) string { return e.TS.String() + " " + e.Type }

// Who follows sees each event once and in order, while the replica that he is
// connected to, the leader and the host's daemon are killed.
func TestFollowedEventsHaveNoGapAndNoDouble(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	s := c.create(t)
	host := theStack.Process(s.AgentID)
	restartAtEnd(t, host)
	for _, r := range theStack.Replicas {
		restartAtEnd(t, r)
	}
	ctx, enough := context.WithTimeout(t.Context(), 3*time.Minute)
	defer enough()
	seen := make(chan api.Event, 1024)
	ended := make(chan error, 1)
	go func() {
		var last error
		for e, err := range c.FollowEvents(ctx, s.ID, api.EventQuery{Tail: new(512)}) {
			if last = err; err == nil {
				seen <- e
			}
		}
		close(seen)
		ended <- last
	}()
	move := func() {
		t.Helper()
		for _, verb := range []string{"pause", "resume"} {
			eventually(t, 30*time.Second, verb, func(ctx context.Context) error {
				_, err := c.verbs()[verb](ctx, s.ID)
				if api.StatusOf(err) == 409 {
					return nil // it was done by the call whose answer was lost
				}
				return err
			})
		}
	}
	move()
	for _, p := range append(slices.Clone(theStack.Replicas), host) {
		if err := p.Kill9(); err != nil {
			t.Fatal(err)
		}
		if p != host {
			move() // while it is down
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		healthy(t)
		move()
	}
	all, err := c.Events(t.Context(), s.ID, api.EventQuery{Tail: new(512)})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(all, "sandbox.paused"); n < 8 {
		t.Errorf("the host tells of %d pauses", n)
	}
	tailAndSince(t, c, s.ID, all)
	var got, want []string
	for _, e := range all {
		want = append(want, keyOf(e))
	}
	// The stream is taken up again after a pause that grows.
	for wait := time.After(30 * time.Second); len(got) < len(want); {
		select {
		case e, ok := <-seen:
			if !ok {
				t.Fatalf("the stream ended with %v after %q", <-ended, got)
			}
			got = append(got, keyOf(e))
		case <-wait:
			t.Fatalf("after 30 s followed\n%q\nthe list is\n%q", got, want)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("followed\n%q\nthe list is\n%q", got, want)
	}
	// The end of the sandbox is the end of the stream.
	if err := c.DeleteSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	for e := range seen {
		if e.Type != "sandbox.deleted" {
			t.Errorf("after the last came %s", keyOf(e))
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	// The event store of whichever replica answers has what the host had.
	want = append(want, "sandbox.deleted")
	eventually(t, 30*time.Second, "the events of the deleted sandbox", func(ctx context.Context) error {
		all, err := c.Events(ctx, s.ID, api.EventQuery{Tail: new(512)})
		if err == nil && (len(all) != len(want) || all[len(all)-1].Type != "sandbox.deleted") {
			err = fmt.Errorf("they are %v", typesOf(all))
		}
		return err
	})
}

// tailAndSince compares parts of the list with the whole.
func tailAndSince(t *testing.T, c *tenant, id string, all []api.Event) {
	t.Helper()
	middle := len(all) / 2
	for name, tc := range map[string]struct {
		query api.EventQuery
		want  []api.Event
	}{
		"the last three":            {api.EventQuery{Tail: new(3)}, all[len(all)-3:]},
		"none":                      {api.EventQuery{Tail: new(0)}, nil},
		"since the middle":          {api.EventQuery{Since: all[middle].TS.Time}, all[middle+1:]},
		"the last two of those":     {api.EventQuery{Since: all[middle].TS.Time, Tail: new(2)}, all[len(all)-2:]},
		"since the end":             {api.EventQuery{Since: all[len(all)-1].TS.Time}, nil},
		"without saying":            {api.EventQuery{}, all},
		"more than there are since": {api.EventQuery{Since: all[len(all)-2].TS.Time, Tail: new(100)}, all[len(all)-1:]},
	} {
		got, err := c.Events(t.Context(), id, tc.query)
		if err != nil || !slices.EqualFunc(got, tc.want, func(a, b api.Event) bool { return keyOf(a) == keyOf(b) }) {
			t.Errorf("%s: %v, %v; want %v", name, typesOf(got), err, typesOf(tc.want))
		}
	}
	if !slices.IsSortedFunc(all, func(a, b api.Event) int { return a.TS.Compare(b.TS.Time) }) {
		t.Error("the events are not in order")
	}
}

// Each replica counts for itself what the hosts tell it, also what happened
// while it was away.
func TestMetricsOfEveryReplica(t *testing.T) {
	c := newTenant(t)
	c.knownEverywhere(t)
	away := theStack.Replicas[followerIndex(t)]
	restartAtEnd(t, away)
	if err := away.Kill9(); err != nil {
		t.Fatal(err)
	}
	s := c.create(t)
	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))
	c.forkTree(t, s.ID, 2, "")
	if err := away.Start(); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	for i := range theStack.URLs {
		via := c.through(t, i)
		eventually(t, 30*time.Second, "every replica has counted it", func(ctx context.Context) error {
			days, err := via.SandboxMetrics(ctx, "", "", "base")
			if err != nil {
				return err
			}
			var all api.SandboxMetrics // of one day, or of the two around midnight
			for _, d := range days {
				all.Sandboxes, all.Starts, all.Wakes = all.Sandboxes+d.Sandboxes, all.Starts+d.Starts, all.Wakes+d.Wakes
				all.Forks, all.Deaths = all.Forks+d.Forks, all.Deaths+d.Deaths
				all.Boot.Count, all.Wake.Count = all.Boot.Count+d.Boot.Count, all.Wake.Count+d.Wake.Count
				if d.Boot.Count > 0 && (d.Boot.P50 <= 0 || d.Boot.Max < d.Boot.P99) || d.Wake.Count > 0 && d.Wake.P50 <= 0 {
					return fmt.Errorf("replica %d: %+v", i+1, d)
				}
			}
			// A sandbox counts on each day on which it did something.
			if all.Sandboxes != 3 && len(days) == 1 || all.Starts != 3 || all.Wakes != 1 || all.Forks != 2 || all.Deaths != 0 || all.Boot.Count != 3 || all.Wake.Count != 1 {
				return fmt.Errorf("replica %d: %+v", i+1, days)
			}
			return nil
		})
	}
	if none, err := c.SandboxMetrics(t.Context(), "", "", "no-such"); err != nil || len(none) != 0 {
		t.Errorf("of another template: %v, %v", none, err)
	}
}
