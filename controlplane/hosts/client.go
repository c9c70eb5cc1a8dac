package hosts

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Client calls one host. It is bound to a term of leadership.
type Client = hostapi.Client

// Client returns a client of a host that sends heartbeats. For another host, the
// error is hostapi.ErrUnreachable.
func (r *Registry) Client(hostID string) (*Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leading {
		return nil, ErrNotLeading
	}
	s := r.sessions[hostID]
	if s == nil {
		return nil, fmt.Errorf("host %s sends no heartbeats: %w", hostID, hostapi.ErrUnreachable)
	}
	client := r.cfg.Clients.At(hostID, s.heartbeat.Address)
	return client.Bind(hostapi.Binding{Host: hostID, Cluster: r.cluster(), Term: r.term}), nil
}

// cluster returns the cluster's name, which qualifies terms. It changes when a
// backup is restored.
func (r *Registry) cluster() string {
	if c, ok := raftstore.Get(r.cfg.Store.View(), record.Clusters, record.ClusterID); ok {
		return c.Name
	}
	return ""
}

// PutBox creates a box on a host, and remembers whether that failed for the next
// placement.
func (r *Registry) PutBox(ctx context.Context, c *Client, id string, spec hostapi.BoxSpec) (hostapi.Box, error) {
	box, err := c.PutBox(ctx, id, spec)
	r.created(c.Host(), err)
	return box, err
}

// Unreachable reports whether a host did not answer, whether or not it executed the
// call.
func Unreachable(err error) bool {
	return errors.Is(err, hostapi.ErrUnreachable) || errors.Is(err, hostapi.ErrUnknownOutcome)
}

// WithRequestID adds the public request's id to the calls under ctx.
func WithRequestID(ctx context.Context, id string) context.Context {
	return hostapi.WithRequestID(ctx, id)
}
