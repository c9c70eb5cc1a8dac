package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// PauseSandbox stops a running sandbox's CPUs.
func (c *Client) PauseSandbox(ctx context.Context, id string) (*Sandbox, error) {
	return c.transition(ctx, id, "pause")
}

// ResumeSandbox resumes a paused sandbox.
func (c *Client) ResumeSandbox(ctx context.Context, id string) (*Sandbox, error) {
	return c.transition(ctx, id, "resume")
}

// HibernateSandbox writes a running sandbox's memory to disk and ends its VM.
func (c *Client) HibernateSandbox(ctx context.Context, id string) (*Sandbox, error) {
	return c.transition(ctx, id, "hibernate")
}

// WakeSandbox wakes a hibernated sandbox. It leaves a running one unchanged.
func (c *Client) WakeSandbox(ctx context.Context, id string) (*Sandbox, error) {
	return c.transition(ctx, id, "wake")
}

func (c *Client) transition(ctx context.Context, id, verb string) (*Sandbox, error) {
	cl, err := post(Empty{}, Version, "sandboxes", id, verb)
	if err != nil {
		return nil, err
	}
	cl.safe = verb == "wake" // the others are refused the second time
	return into[Sandbox](ctx, c, cl)
}

// GetLifecycle returns when a sandbox expires, and what happens then.
func (c *Client) GetLifecycle(ctx context.Context, id string) (*Lifecycle, error) {
	return into[Lifecycle](ctx, c, get(Version, "sandboxes", id, "lifecycle"))
}

// PatchLifecycle changes when a sandbox expires, and what happens then.
func (c *Client) PatchLifecycle(ctx context.Context, id string, in PatchLifecycle) (*Lifecycle, error) {
	b, err := encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return into[Lifecycle](ctx, c, call{
		method: http.MethodPatch, path: join([]string{Version, "sandboxes", id, "lifecycle"}),
		header: http.Header{"Content-Type": {"application/json"}}, body: b, safe: true,
	})
}

// ListPorts returns the ports of a sandbox on which something listens, and the
// registered ones.
func (c *Client) ListPorts(ctx context.Context, id string) ([]Port, error) {
	out, err := into[[]Port](ctx, c, get(Version, "sandboxes", id, "ports"))
	if err != nil {
		return nil, err
	}
	return *out, nil
}

// AddPort registers a port, or changes the label of a registered one.
func (c *Client) AddPort(ctx context.Context, id string, in AddPort) (*Port, error) {
	cl, err := post(in, Version, "sandboxes", id, "ports")
	if err != nil {
		return nil, err
	}
	cl.safe = true // repeating it changes nothing
	return into[Port](ctx, c, cl)
}

// RemovePort removes the registration of a port.
func (c *Client) RemovePort(ctx context.Context, id string, port int) error {
	cl := remove(Version, "sandboxes", id, "ports")
	cl.query = url.Values{"port": {strconv.Itoa(port)}}
	return c.done(ctx, cl)
}
