package hosts

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Client calls one host in the name of one term of leadership.
type Client = hostapi.Client

// Client calls a host that is heard. For one that is not it fails with
// hostapi.ErrUnreachable.
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

// cluster is whose terms these are. It changes when a backup is restored.
func (r *Registry) cluster() string {
	if c, ok := raftstore.Get(r.cfg.Store.View(), record.Clusters, record.ClusterID); ok {
		return c.Name
	}
	return ""
}

// PutBox has a host make a box, and remembers for the next placement how that
// went.
func (r *Registry) PutBox(ctx context.Context, c *Client, id string, spec hostapi.BoxSpec) (hostapi.Box, error) {
	box, err := c.PutBox(ctx, id, spec)
	r.created(c.Host(), err)
	return box, err
}

// Unreachable reports whether a host did not answer, whether or not it may have
// done what it was asked.
func Unreachable(err error) bool {
	return errors.Is(err, hostapi.ErrUnreachable) || errors.Is(err, hostapi.ErrUnknownOutcome)
}

// WithRequestID makes the calls under ctx carry the public request's id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return hostapi.WithRequestID(ctx, id)
}
