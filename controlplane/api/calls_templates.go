package api

import (
	"context"
	"iter"
)

// ListTemplates returns one page of the templates, newest first, and the cursor of
// the next page, which is empty after the last.
func (c *Client) ListTemplates(ctx context.Context, p Page) ([]Template, string, error) {
	return page[Template](ctx, c, p, Version, "templates")
}

// Templates iterates over all templates, newest first, page by page.
func (c *Client) Templates(ctx context.Context) iter.Seq2[Template, error] {
	return all(func(p Page) ([]Template, string, error) { return c.ListTemplates(ctx, p) })
}

// GetTemplate reads one template.
func (c *Client) GetTemplate(ctx context.Context, name string) (*Template, error) {
	return into[Template](ctx, c, get(Version, "templates", name))
}

// BuildTemplate starts a build. Follow it with FollowBuild. idempotencyKey may be
// empty, as in CreateSandbox.
func (c *Client) BuildTemplate(ctx context.Context, in BuildTemplate, idempotencyKey string) (*Build, error) {
	return create[Build](ctx, c, in, idempotencyKey, Version, "templates", "build")
}

// DeleteTemplate deletes a template of the workspace and its builds.
func (c *Client) DeleteTemplate(ctx context.Context, name string) error {
	return c.done(ctx, remove(Version, "templates", name))
}

// Builds iterates over the builds of a template, newest first, page by page.
func (c *Client) Builds(ctx context.Context, template string) iter.Seq2[Build, error] {
	return all(func(p Page) ([]Build, string, error) {
		return page[Build](ctx, c, p, Version, "templates", template, "builds")
	})
}

// GetBuild reads one build.
func (c *Client) GetBuild(ctx context.Context, id string) (*Build, error) {
	return into[Build](ctx, c, get(Version, "builds", id))
}

// CreatePreviewToken creates a token for the ports of a private sandbox.
func (c *Client) CreatePreviewToken(ctx context.Context, id string, in CreatePreviewToken) (*PreviewAccess, error) {
	cl, err := post(in, Version, "sandboxes", id, "preview-tokens")
	if err != nil {
		return nil, err
	}
	return into[PreviewAccess](ctx, c, cl)
}
