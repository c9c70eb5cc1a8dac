package api

import (
	"context"
	"iter"
	"net/http"
)

// CreateAppDomain claims a domain for an app. The answer says what to set in DNS.
// idempotencyKey may be empty, as in CreateSandbox.
func (c *Client) CreateAppDomain(ctx context.Context, id string, in CreateAppDomain, idempotencyKey string) (*AppDomain, error) {
	return create[AppDomain](ctx, c, in, idempotencyKey, Version, "apps", id, "domains")
}

// GetAppDomain returns a domain of an app.
func (c *Client) GetAppDomain(ctx context.Context, id, domain string) (*AppDomain, error) {
	return into[AppDomain](ctx, c, get(Version, "apps", id, "domains", domain))
}

// ListAppDomains returns one page of an app's domains, newest first, and the cursor of
// the next page, which is empty after the last.
func (c *Client) ListAppDomains(ctx context.Context, id string, p Page) ([]AppDomain, string, error) {
	return page[AppDomain](ctx, c, p, Version, "apps", id, "domains")
}

// AppDomains iterates over the domains of an app, newest first, page by page.
func (c *Client) AppDomains(ctx context.Context, id string) iter.Seq2[AppDomain, error] {
	return all(func(p Page) ([]AppDomain, string, error) { return c.ListAppDomains(ctx, id, p) })
}

// VerifyAppDomain looks into DNS now, and returns what has become of the domain: one
// whose record is not there is still pending, and its error says so.
func (c *Client) VerifyAppDomain(ctx context.Context, id, domain string) (*AppDomain, error) {
	cl, err := withBody(http.MethodPost, struct{}{}, Version, "apps", id, "domains", domain, "verify")
	if err != nil {
		return nil, err
	}
	return into[AppDomain](ctx, c, cl)
}

// DeleteAppDomain gives a domain up. It leads to the app no more.
func (c *Client) DeleteAppDomain(ctx context.Context, id, domain string) error {
	return c.done(ctx, remove(Version, "apps", id, "domains", domain))
}
