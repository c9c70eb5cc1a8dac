package hosts

import (
	"context"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// PutCapture captures a box and waits until the capture is complete, or answers
// with the one that is there.
func (c *Client) PutCapture(ctx context.Context, id string, spec hostapi.CaptureSpec) (hostapi.Capture, error) {
	out, err := c.api.PutCapture(ctx, c.call(ctx), id, spec)
	return out, c.explain(err)
}

// StoreCapture puts a capture into the snapshot store and waits until it is
// complete there.
func (c *Client) StoreCapture(ctx context.Context, id string) (hostapi.Capture, error) {
	out, err := c.api.StoreCapture(ctx, c.call(ctx), id)
	return out, c.explain(err)
}

// DeleteCapture removes a capture, and with stored its copy in the snapshot
// store. One that is gone already is a success.
func (c *Client) DeleteCapture(ctx context.Context, id string, stored bool) error {
	err := c.api.DeleteCapture(ctx, c.call(ctx), id, stored)
	if hostapi.HasCode(err, hostapi.CodeNotFound) || hostapi.HasCode(err, hostapi.CodeNoSnapshot) {
		return nil
	}
	return c.explain(err)
}

// Stored returns what is in the snapshot store after an id, a page of it.
func (c *Client) Stored(ctx context.Context, owner, after string) (hostapi.StoredPage, error) {
	out, err := c.api.Stored(ctx, c.call(ctx), owner, after, hostapi.MaxStoredPage)
	return out, c.explain(err)
}

// PutVolume makes a volume, or answers with the one that is there.
func (c *Client) PutVolume(ctx context.Context, id string, spec hostapi.VolumeSpec) (hostapi.Volume, error) {
	out, err := c.api.PutVolume(ctx, c.call(ctx), id, spec)
	return out, c.explain(err)
}

// DeleteVolume removes a volume and all that is in it. One that is gone already
// is a success; one that a box holds is refused with CodeInUse.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	err := c.api.DeleteVolume(ctx, c.call(ctx), id)
	if hostapi.HasCode(err, hostapi.CodeNotFound) {
		return nil
	}
	return c.explain(err)
}

// PostEvent adds an event of the control plane's own to a sandbox's. The same
// key again adds nothing.
func (c *Client) PostEvent(ctx context.Context, id string, e hostapi.NewEvent) error {
	return c.explain(c.api.PostEvent(ctx, c.call(ctx), id, e))
}
