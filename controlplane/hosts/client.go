package hosts

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Client calls one host in the name of one term of leadership.
type Client struct {
	agentID string
	cluster string
	created func(agentID string, err error) // is told how creates go
	term    uint64
	api     *hostapi.Client
}

// Unreachable reports whether a host did not answer, whether or not it may have
// done what it was asked.
func Unreachable(err error) bool {
	return errors.Is(err, hostapi.ErrUnreachable) || errors.Is(err, hostapi.ErrUnknownOutcome)
}

// PutBox asks for a box and returns once it runs or is refused; after a refusal
// nothing of it is left on the host.
func (c *Client) PutBox(ctx context.Context, id string, spec hostapi.BoxSpec) (hostapi.Box, error) {
	box, err := c.api.Put(ctx, c.call(ctx), id, spec)
	c.created(c.agentID, err)
	return box, c.explain(err)
}

// GetBox returns one box as the host has it.
func (c *Client) GetBox(ctx context.Context, id string) (hostapi.Box, error) {
	box, err := c.api.Get(ctx, c.call(ctx), id)
	return box, c.explain(err)
}

// DeleteBox removes a box up to a generation and keeps a create of it that is
// still on its way from making it. One that is gone already is a success.
func (c *Client) DeleteBox(ctx context.Context, id string, generation uint64) error {
	err := c.api.Delete(ctx, c.call(ctx), id, generation)
	if hostapi.HasCode(err, hostapi.CodeNotFound) {
		return nil
	}
	return c.explain(err)
}

// Exec runs a command in a box and waits for its end. admit is asked before an
// output that is large is read; see hostapi.Call.
func (c *Client) Exec(ctx context.Context, id string, req hostapi.ExecRequest, admit func(ctx context.Context, bytes int64) error) (hostapi.ExecResult, error) {
	call := c.call(ctx)
	call.Admit = admit
	res, err := c.api.Exec(ctx, call, id, req)
	return res, c.explain(err)
}

func (c *Client) call(ctx context.Context) hostapi.Call {
	return hostapi.Call{Cluster: c.cluster, Term: c.term, RequestID: hostapi.RequestID(ctx)}
}

func (c *Client) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("host %s: %w", c.agentID, err)
}

// WithRequestID makes the calls under ctx carry the public request's id.
func WithRequestID(ctx context.Context, id string) context.Context {
	return hostapi.WithRequestID(ctx, id)
}
