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

// Call makes calls to a host. They are cancelled when the host is lost or this
// replica's leadership ends.
func (r *Registry) Call(ctx context.Context, hostID string, calls func(ctx context.Context, c *Client) error) error {
	client, err := r.Client(hostID)
	if err != nil {
		return err
	}
	ctx, cancel := r.WhileUp(ctx, hostID)
	defer cancel()
	return calls(ctx, client)
}

// ErrNoStore means that no available host has a snapshot store.
var ErrNoStore = errors.New("no host with a snapshot store answers")

// Stores returns the available hosts with a snapshot store, in any order.
func (r *Registry) Stores() []string {
	var ids []string
	for id, s := range r.Sessions() {
		if s.Heartbeat.Store && s.Heartbeat.Ready {
			ids = append(ids, id)
		}
	}
	return ids
}

// DeleteStored deletes an object from the snapshot store through any host except
// some. That host also deletes its own copy.
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

// Reach is Client for calls that a user waits for. If a new leader has not heard the
// host yet, it waits a moment for the first heartbeat.
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

// firstWord is how long hosts may take to find a new leader.
var firstWord = timescale.Limit(5 * time.Second)

// mayBeHeard returns how much of firstWord is left for a host that was up under the
// former leader and has not been heard by this one.
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

// How often a step of a flow calls the same host again. With the delays between a
// flow's attempts, a host that does not answer gets some seconds, and one that
// reported a restart most of a lease.
const (
	patience        = 5
	restartPatience = 8
)

// Passing reports whether the error of a call at a step's attempt (from 0) may be
// temporary: the host does not answer, has not been heard by a new leader yet, or
// refuses because it is starting or stopping and has begun nothing.
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

// Restarting reports whether a host's last heartbeat announced a stop or a start. In
// between it does not answer at all.
func (r *Registry) Restarting(hostID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[hostID]
	return s != nil && (s.heartbeat.Draining || !s.heartbeat.Ready)
}

// Superseded reports whether a call failed because the flow that made it under ctx,
// or this leadership, has ended. The caller then leaves the decision to its
// successor.
func Superseded(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.Canceled) || hostapi.HasCode(err, hostapi.CodeStaleTerm) || errors.Is(err, ErrNotLeading)
}
