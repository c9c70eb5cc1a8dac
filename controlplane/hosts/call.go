package hosts

import (
	"context"
	"errors"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Call makes calls to a host for as long as it is up and this replica leads.
func (r *Registry) Call(ctx context.Context, agentID string, calls func(ctx context.Context, c *Client) error) error {
	client, err := r.Client(agentID)
	if err != nil {
		return err
	}
	ctx, cancel := r.WhileUp(ctx, agentID)
	defer cancel()
	return calls(ctx, client)
}

// Superseded reports whether a call failed because the flow that made it under
// ctx is over, or this leadership is: whoever comes next decides.
func Superseded(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.Canceled) || hostapi.HasCode(err, hostapi.CodeStaleTerm) || errors.Is(err, ErrNotLeading)
}
