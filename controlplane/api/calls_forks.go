package api

import (
	"context"
	"iter"
)

// create sends a create. If idempotencyKey is not empty, repeating the call within
// 24 hours returns the same result.
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
// used. idempotencyKey may be empty, as in CreateSandbox.
func (c *Client) CreateSnapshot(ctx context.Context, sandboxID string, in CreateSnapshot, idempotencyKey string) (*Snapshot, error) {
	return create[Snapshot](ctx, c, in, idempotencyKey, Version, "sandboxes", sandboxID, "snapshots")
}

// GetSnapshot reads one snapshot.
func (c *Client) GetSnapshot(ctx context.Context, id string) (*Snapshot, error) {
	return into[Snapshot](ctx, c, get(Version, "snapshots", id))
}

// DeleteSnapshot deletes a snapshot and its stored copy; if it is already gone, the
// error is a 404.
func (c *Client) DeleteSnapshot(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "snapshots", id))
}

// ListSnapshots returns one page of the snapshots of a sandbox, or of all if
// sandboxID is empty, newest first, and the cursor of the next page, which is empty
// after the last.
func (c *Client) ListSnapshots(ctx context.Context, sandboxID string, p Page) ([]Snapshot, string, error) {
	cl := get(Version, "snapshots")
	cl.query = p.query()
	if sandboxID != "" {
		cl.query.Set("sandbox_id", sandboxID)
	}
	return pageOf[Snapshot](ctx, c, cl)
}

// Snapshots iterates over the snapshots of a sandbox, or over all if sandboxID is
// empty, newest first, page by page.
func (c *Client) Snapshots(ctx context.Context, sandboxID string) iter.Seq2[Snapshot, error] {
	return all(func(p Page) ([]Snapshot, string, error) { return c.ListSnapshots(ctx, sandboxID, p) })
}

// Fork creates children of a running sandbox, which inherit its disk, or one warm
// child, which takes its place, and waits until they run. idempotencyKey may be
// empty, as in CreateSandbox.
func (c *Client) Fork(ctx context.Context, sandboxID string, in Fork, idempotencyKey string) (*Forked, error) {
	return create[Forked](ctx, c, in, idempotencyKey, Version, "sandboxes", sandboxID, "fork")
}

// ForkTree creates children of a running sandbox, which inherit its disk and memory,
// and waits until they run. idempotencyKey may be empty, as in CreateSandbox.
func (c *Client) ForkTree(ctx context.Context, sandboxID string, in ForkTree, idempotencyKey string) (*ForkedTree, error) {
	return create[ForkedTree](ctx, c, in, idempotencyKey, Version, "sandboxes", sandboxID, "fork-tree")
}

// Promote chooses a child of a fork-tree. With CleanupSiblings, it deletes the
// others.
func (c *Client) Promote(ctx context.Context, childID string, in Promote) (*Promoted, error) {
	cl, err := post(in, Version, "sandboxes", childID, "promote")
	if err != nil {
		return nil, err
	}
	return into[Promoted](ctx, c, cl)
}

// CreateVolume creates a volume and waits until it can be attached. idempotencyKey
// may be empty, as in CreateSandbox.
func (c *Client) CreateVolume(ctx context.Context, in CreateVolume, idempotencyKey string) (*Volume, error) {
	return create[Volume](ctx, c, in, idempotencyKey, Version, "volumes")
}

// GetVolume reads one volume by its name.
func (c *Client) GetVolume(ctx context.Context, name string) (*Volume, error) {
	return into[Volume](ctx, c, get(Version, "volumes", name))
}

// DeleteVolume deletes a volume and its contents. While it is attached, the error is
// a 409.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	return c.done(ctx, remove(Version, "volumes", name))
}

// ListVolumes returns one page, newest first, and the cursor of the next page, which
// is empty after the last.
func (c *Client) ListVolumes(ctx context.Context, p Page) ([]Volume, string, error) {
	return page[Volume](ctx, c, p, Version, "volumes")
}

// Volumes iterates over all volumes, newest first, page by page.
func (c *Client) Volumes(ctx context.Context) iter.Seq2[Volume, error] {
	return all(func(p Page) ([]Volume, string, error) { return c.ListVolumes(ctx, p) })
}
