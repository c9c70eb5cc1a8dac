package hosts

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// Pause stops a running box's CPUs.
func (c *Client) Pause(ctx context.Context, id string) (hostapi.Box, error) {
	box, err := c.api.Pause(ctx, c.call(ctx), id)
	return box, c.explain(err)
}

// Resume lets a paused box run on.
func (c *Client) Resume(ctx context.Context, id string) (hostapi.Box, error) {
	box, err := c.api.Resume(ctx, c.call(ctx), id)
	return box, c.explain(err)
}

// Hibernate writes a running box's memory to disk and ends its VMM.
func (c *Client) Hibernate(ctx context.Context, id string) (hostapi.Box, error) {
	box, err := c.api.Hibernate(ctx, c.call(ctx), id)
	return box, c.explain(err)
}

// Wake lets a hibernated box go on. One that runs is left as it is.
func (c *Client) Wake(ctx context.Context, id string) (hostapi.Box, error) {
	box, err := c.api.Wake(ctx, c.call(ctx), id)
	return box, c.explain(err)
}

// UpdateBox changes what may change while a box lives.
func (c *Client) UpdateBox(ctx context.Context, id string, u hostapi.BoxUpdate) (hostapi.Box, error) {
	box, err := c.api.Update(ctx, c.call(ctx), id, u)
	return box, c.explain(err)
}

// Ports returns what in the guest listens.
func (c *Client) Ports(ctx context.Context, id string) ([]hostapi.Port, error) {
	ports, err := c.api.Ports(ctx, c.call(ctx), id)
	return ports, c.explain(err)
}

// FS passes one request on to the guest's file system; see hostapi.Client.FS.
func (c *Client) FS(ctx context.Context, method, id, sub string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	resp, err := c.api.FS(ctx, c.call(ctx), method, id, sub, query, header, body)
	return resp, c.explain(err)
}

// ExecStream starts a process whose streams are the frames of the connection.
func (c *Client) ExecStream(ctx context.Context, id string, req hostapi.ExecStream) (*hostapi.Stream, error) {
	s, err := c.api.ExecStream(ctx, c.call(ctx), id, req)
	return s, c.explain(err)
}

// Dial connects to a TCP port of the guest.
func (c *Client) Dial(ctx context.Context, id string, port int) (*hostapi.Stream, error) {
	s, err := c.api.Dial(ctx, c.call(ctx), id, port)
	return s, c.explain(err)
}

// Logs returns the lines that are there, as text.
func (c *Client) Logs(ctx context.Context, id string, q hostapi.LogQuery) (io.ReadCloser, error) {
	body, err := c.api.Logs(ctx, c.call(ctx), id, q)
	return body, c.explain(err)
}

// FollowLogs returns the lines that are there and those to come.
func (c *Client) FollowLogs(ctx context.Context, id string, q hostapi.LogQuery) (*hostapi.Follower[hostapi.LogLine], error) {
	f, err := c.api.FollowLogs(ctx, c.call(ctx), id, q)
	return f, c.explain(err)
}

// Events returns a sandbox's events, oldest first. admit is asked before many are
// read; see hostapi.Call.
func (c *Client) Events(ctx context.Context, id string, q hostapi.EventQuery, admit func(ctx context.Context, bytes int64) error) ([]hostapi.Event, error) {
	call := c.call(ctx)
	call.Admit = admit
	events, err := c.api.Events(ctx, call, id, q)
	return events, c.explain(err)
}

// FollowEvents returns the events asked for and then those to come.
func (c *Client) FollowEvents(ctx context.Context, id string, q hostapi.EventQuery) (*hostapi.Follower[hostapi.Event], error) {
	f, err := c.api.FollowEvents(ctx, c.call(ctx), id, q)
	return f, c.explain(err)
}

// PutBuild begins a build and does not wait for it.
func (c *Client) PutBuild(ctx context.Context, id string, spec hostapi.BuildSpec) (hostapi.Build, error) {
	b, err := c.api.PutBuild(ctx, c.call(ctx), id, spec)
	return b, c.explain(err)
}

// Build returns one build.
func (c *Client) Build(ctx context.Context, id string) (hostapi.Build, error) {
	b, err := c.api.Build(ctx, c.call(ctx), id)
	return b, c.explain(err)
}

// DeleteBuild ends a build that goes on and forgets it.
func (c *Client) DeleteBuild(ctx context.Context, id string) error {
	return c.explain(c.api.DeleteBuild(ctx, c.call(ctx), id))
}

// BuildLogs returns what a build has said until now, as text.
func (c *Client) BuildLogs(ctx context.Context, id string) (io.ReadCloser, error) {
	body, err := c.api.BuildLogs(ctx, c.call(ctx), id)
	return body, c.explain(err)
}

// FollowBuildLogs returns what a build has said and will say, until it ends.
func (c *Client) FollowBuildLogs(ctx context.Context, id string) (*hostapi.Follower[hostapi.LogLine], error) {
	f, err := c.api.FollowBuildLogs(ctx, c.call(ctx), id)
	return f, c.explain(err)
}

// DeleteTemplate removes a template from the host's store.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.explain(c.api.DeleteTemplate(ctx, c.call(ctx), name))
}
