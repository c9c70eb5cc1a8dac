package api

import (
	"context"
	"iter"
	"net/url"
)

// ListTemplates reads one page of the templates, newest first, and the cursor
// of the next: empty after the last.
func (c *Client) ListTemplates(ctx context.Context, p Page) ([]Template, string, error) {
	return page[Template](ctx, c, p, Version, "templates")
}

// Templates reads every template, newest first, page by page.
func (c *Client) Templates(ctx context.Context) iter.Seq2[Template, error] {
	return all(func(p Page) ([]Template, string, error) { return c.ListTemplates(ctx, p) })
}

// GetTemplate reads one template.
func (c *Client) GetTemplate(ctx context.Context, name string) (*Template, error) {
	return into[Template](ctx, c, get(Version, "templates", name))
}

// BuildTemplate begins a build, which goes on by itself: follow it with
// FollowBuild. The idempotency key may be empty, as in CreateSandbox.
func (c *Client) BuildTemplate(ctx context.Context, in BuildTemplate, idempotencyKey string) (*Build, error) {
	return create[Build](ctx, c, in, idempotencyKey, Version, "templates", "build")
}

// DeleteTemplate removes a template of the workspace and its builds.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.done(ctx, remove(Version, "templates", name))
}

// Builds reads every build of a template, newest first, page by page.
func (c *Client) Builds(ctx context.Context, template string) iter.Seq2[Build, error] {
	return all(func(p Page) ([]Build, string, error) {
		return page[Build](ctx, c, p, Version, "templates", template, "builds")
	})
}

// GetBuild reads one build.
func (c *Client) GetBuild(ctx context.Context, id string) (*Build, error) {
	return into[Build](ctx, c, get(Version, "builds", id))
}

// CreatePreviewToken makes a token that shows a private sandbox's ports.
func (c *Client) CreatePreviewToken(ctx context.Context, id string, in CreatePreviewToken) (*PreviewAccess, error) {
	cl, err := post(in, Version, "sandboxes", id, "preview-tokens")
	if err != nil {
		return nil, err
	}
	return into[PreviewAccess](ctx, c, cl)
}

// SandboxMetrics counts and measures the workspace's sandboxes by day and
// template. Days are written 2006-01-02; empty ones are the last 30 days.
func (c *Client) SandboxMetrics(ctx context.Context, from, to, template string) ([]SandboxMetrics, error) {
	cl := get(Version, "metrics", "sandboxes")
	cl.query = url.Values{}
	for name, v := range map[string]string{"from": from, "to": to, "template": template} {
		if v != "" {
			cl.query.Set(name, v)
		}
	}
	out, err := into[[]SandboxMetrics](ctx, c, cl)
	if err != nil {
		return nil, err
	}
	return *out, nil
}
