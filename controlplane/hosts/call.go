package hosts

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Call makes calls to a host for as long as it is up and this replica leads.
func (r *Registry) Call(ctx context.Context, hostID string, calls func(ctx context.Context, c *Client) error) error {
	client, err := r.Client(hostID)
	if err != nil {
		return err
	}
	ctx, cancel := r.WhileUp(ctx, hostID)
	defer cancel()
	return calls(ctx, client)
}

// ErrNoStore: no host that is there has a snapshot store.
var ErrNoStore = errors.New("no host with a snapshot store answers")

// Stores are the hosts that are there and have the snapshot store, in any order.
func (r *Registry) Stores() []string {
	var ids []string
	for id, s := range r.Sessions() {
		if s.Heartbeat.Store && s.Heartbeat.Ready {
			ids = append(ids, id)
		}
	}
	return ids
}

// DeleteStored removes something from the snapshot store by way of any host that
// has it, but for some. What that host itself has of it goes as well.
func (r *Registry) DeleteStored(ctx context.Context, id string, except ...string) error {
	err := ErrNoStore
	for _, hostID := range r.Stores() {
		if slices.Contains(except, hostID) {
			continue
		}
		if err = r.Call(ctx, hostID, func(ctx context.Context, c *Client) error { return c.DeleteCapture(ctx, id, true) }); err == nil {
			return nil
		}
	}
	return err
}

// Reach is Client for calls that somebody waits for. A host that a new leader has
// yet to hear is given a moment for its first heartbeat: it looks for the leader,
// too.
func (r *Registry) Reach(ctx context.Context, hostID string) (*Client, error) {
	for {
		changed := r.Changed()
		client, err := r.Client(hostID)
		if err == nil {
			return client, nil
		}
		left := r.mayBeHeard(hostID)
		if left <= 0 {
			return nil, err
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
		timer.Stop()
	}
}

// firstWord is how long after an election hosts may take to find the new leader.
var firstWord = timescale.Limit(5 * time.Second)

// mayBeHeard is how much of that is left for a host that was up under the leader
// before and has not been heard by this one.
func (r *Registry) mayBeHeard(hostID string) time.Duration {
	agent, ok := raftstore.Get(r.cfg.Store.View(), record.Hosts, hostID)
	if !ok || agent.State != record.HostUp {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading || r.sessions[hostID] != nil {
		return 0
	}
	return firstWord - r.cfg.Clock().Sub(r.since)
}

// How often a step of a flow asks the same host again. With the pauses between
// the tries of a flow, one that does not answer is given some seconds, and one
// that has said that it is restarting most of a lease.
const (
	patience        = 5
	restartPatience = 8
)

// Passing reports whether what a call to a host failed with, at a step's attempt
// (from 0), may be over at the next: the host does not answer, or has yet to be
// heard by a new leader, or refuses because it is starting up or shutting down,
// and has begun nothing.
func (r *Registry) Passing(view raftstore.Reader, hostID string, attempt int, err error) bool {
	refused := hostapi.HasCode(err, hostapi.CodeDraining)
	switch {
	case !refused && !Unreachable(err):
		return false
	case refused, r.Restarting(hostID):
		return attempt < restartPatience
	}
	return attempt < patience || r.Warming(view)
}

// Restarting reports whether a host's last heartbeat said so. Between its end and
// its start it does not answer at all.
func (r *Registry) Restarting(hostID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[hostID]
	return s != nil && (s.heartbeat.Draining || !s.heartbeat.Ready)
}

// Superseded reports whether a call failed because the flow that made it under
// ctx is over, or this leadership is: whoever comes next decides.
func Superseded(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.Canceled) || hostapi.HasCode(err, hostapi.CodeStaleTerm) || errors.Is(err, ErrNotLeading)
}
