package api

import (
	"context"
	"iter"
)

// create sends the body of a create. With a non-empty idempotency key, the same
// call again answers with the same result for 24 hours.
func create[T any](ctx context.Context, c *Client, in any, idempotencyKey string, segments ...string) (*T, error) {
	cl, err := post(in, segments...)
	if err != nil {
		return nil, err
	}
	if idempotencyKey != "" {
		cl.header.Set(HeaderIdempotencyKey, idempotencyKey)
		cl.safe = true
	}
	return into[T](ctx, c, cl)
}

// CreateSnapshot takes a snapshot of a running sandbox and waits until it can be
// used. The idempotency key may be empty, as in CreateSandbox.
func (c *Client) CreateSnapshot(ctx context.Context, sandboxID string, in CreateSnapshot, idempotencyKey string) (*Snapshot, error) {
	return create[Snapshot](ctx, c, in, idempotencyKey, Version, "sandboxes", sandboxID, "snapshots")
}

// GetSnapshot reads one snapshot.
func (c *Client) GetSnapshot(ctx context.Context, id string) (*Snapshot, error) {
	return into[Snapshot](ctx, c, get(Version, "snapshots", id))
}

// DeleteSnapshot removes a snapshot and its stored copy; one that is already
// gone is a 404.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "snapshots", id))
}

// ListSnapshots reads one page of the snapshots of one sandbox or, with
// sandboxID "", of all, newest first, and the cursor of the next: empty after
// the last.
func (c *Client) ListSnapshots(ctx context.Context, sandboxID string, p Page) ([]Snapshot, string, error) {
	cl := get(Version, "snapshots")
	cl.query = p.query()
	if sandboxID != "" {
		cl.query.Set("sandbox_id", sandboxID)
	}
	return pageOf[Snapshot](ctx, c, cl)
}

// Snapshots reads every snapshot of one sandbox or, with sandboxID "", of all,
// newest first, page by page.
func (c *Client) Snapshots(ctx context.Context, sandboxID string) iter.Seq2[Snapshot, error] {
	return all(func(p Page) ([]Snapshot, string, error) { return c.ListSnapshots(ctx, sandboxID, p) })
}

// Fork makes children of a running sandbox with its disk or, warm, one child
// that takes its place, and waits until they run. The idempotency key may be
// empty, as in CreateSandbox.
func (c *Client) Fork(ctx context.Context, sandboxID string, in Fork, idempotencyKey string) (*Forked, error) {
	return create[Forked](ctx, c, in, idempotencyKey, Version, "sandboxes", sandboxID, "fork")
}

// ForkTree makes children of a running sandbox with its disk and its memory,
// and waits until they run. The idempotency key may be empty, as in
// CreateSandbox.
func (c *Client) ForkTree(ctx context.Context, sandboxID string, in ForkTree, idempotencyKey string) (*ForkedTree, error) {
	return create[ForkedTree](ctx, c, in, idempotencyKey, Version, "sandboxes", sandboxID, "fork-tree")
}

// Promote chooses a fork-tree's child, and with CleanupSiblings deletes the
// others.
func (c *Client) Promote(ctx context.Context, childID string, in Promote) (*Promoted, error) {
	cl, err := post(in, Version, "sandboxes", childID, "promote")
	if err != nil {
		return nil, err
	}
	return into[Promoted](ctx, c, cl)
}

// CreateVolume makes a volume and waits until it can be attached. The
// idempotency key may be empty, as in CreateSandbox.
func (c *Client) CreateVolume(ctx context.Context, in CreateVolume, idempotencyKey string) (*Volume, error) {
	return create[Volume](ctx, c, in, idempotencyKey, Version, "volumes")
}

// GetVolume reads one volume by its name.
func (c *Client) GetVolume(ctx context.Context, name string) (*Volume, error) {
	return into[Volume](ctx, c, get(Version, "volumes", name))
}

// DeleteVolume removes a volume and all that is in it. One that is attached is
// a 409.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	return c.done(ctx, remove(Version, "volumes", name))
}

// ListVolumes reads one page, newest first, and the cursor of the next: empty
// after the last.
func (c *Client) ListVolumes(ctx context.Context, p Page) ([]Volume, string, error) {
	return page[Volume](ctx, c, p, Version, "volumes")
}

// Volumes reads every volume, newest first, page by page.
func (c *Client) Volumes(ctx context.Context) iter.Seq2[Volume, error] {
	return all(func(p Page) ([]Volume, string, error) { return c.ListVolumes(ctx, p) })
}
