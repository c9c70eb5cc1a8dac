package api

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Version returns the version of a replica.
func (c *Client) Version(ctx context.Context) (*VersionInfo, error) {
	return into[VersionInfo](ctx, c, get("version"))
}

// Healthz reports whether a replica is healthy.
func (c *Client) Healthz(ctx context.Context) error { return c.done(ctx, get("healthz")) }

// Readyz reports whether a replica can serve requests now. The error's detail names what
// is missing.
func (c *Client) Readyz(ctx context.Context) error { return c.done(ctx, get("readyz")) }

// CreateSandbox creates a sandbox and waits until it runs. If idempotencyKey is not
// empty, repeating the call within 24 hours returns the first answer. Without it, a
// create whose answer was lost may have created a sandbox.
func (c *Client) CreateSandbox(ctx context.Context, in CreateSandbox, idempotencyKey string) (*Sandbox, error) {
	return create[Sandbox](ctx, c, in, idempotencyKey, Version, "sandboxes")
}

// GetSandbox reads one sandbox.
func (c *Client) GetSandbox(ctx context.Context, id string) (*Sandbox, error) {
	return into[Sandbox](ctx, c, get(Version, "sandboxes", id))
}

// DeleteSandbox deletes a sandbox; if it is already gone, the error is a 404.
func (c *Client) DeleteSandbox(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "sandboxes", id))
}

// Exec runs a command in a sandbox and waits until it ends. An exit code other than
// 0, or a timeout, is not an error. Cancelling ctx kills the command's process
// group.
func (c *Client) Exec(ctx context.Context, id string, in Exec) (*ExecResult, error) {
	cl, err := post(in, Version, "sandboxes", id, "exec")
	if err != nil {
		return nil, err
	}
	return into[ExecResult](ctx, c, cl)
}

// Page selects a part of a list. The zero value is the first page, with the default
// limit.
type Page struct {
	Limit  int    // at most MaxListLimit; 0 means DefaultListLimit
	Cursor string // from the previous page
}

func (p Page) query() url.Values {
	q := url.Values{}
	if p.Limit != 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	return q
}

// ListSandboxes returns one page, newest first, and the cursor of the next page,
// which is empty after the last.
func (c *Client) ListSandboxes(ctx context.Context, p Page) ([]Sandbox, string, error) {
	return page[Sandbox](ctx, c, p, Version, "sandboxes")
}

// Sandboxes iterates over all sandboxes, newest first, page by page.
func (c *Client) Sandboxes(ctx context.Context) iter.Seq2[Sandbox, error] {
	return all(func(p Page) ([]Sandbox, string, error) { return c.ListSandboxes(ctx, p) })
}

// SandboxesWith iterates over the sandboxes whose metadata has a member, newest first,
// page by page.
func (c *Client) SandboxesWith(ctx context.Context, name, value string) iter.Seq2[Sandbox, error] {
	return all(func(p Page) ([]Sandbox, string, error) {
		cl := get(Version, "sandboxes")
		cl.query = p.query()
		cl.query.Set("metadata", name+"="+value)
		return pageOf[Sandbox](ctx, c, cl)
	})
}

// Me returns the user of the JWT.
func (c *Client) Me(ctx context.Context) (*Me, error) {
	return into[Me](ctx, c, get(Version, "me"))
}

// SetCurrentOrg chooses the workspace in which the JWT acts from now on.
func (c *Client) SetCurrentOrg(ctx context.Context, orgID string) (*Me, error) {
	cl, err := post(SetCurrentOrg{OrgID: orgID}, Version, "me", "current-org")
	if err != nil {
		return nil, err
	}
	return into[Me](ctx, c, cl)
}

// CreateToken creates an API key of the current workspace (JWT only).
func (c *Client) CreateToken(ctx context.Context, in CreateToken) (*NewToken, error) {
	cl, err := post(in, Version, "me", "tokens")
	if err != nil {
		return nil, err
	}
	return into[NewToken](ctx, c, cl)
}

// ListTokens returns one page of the current workspace's API keys (JWT only).
func (c *Client) ListTokens(ctx context.Context, p Page) ([]Token, string, error) {
	return page[Token](ctx, c, p, Version, "me", "tokens")
}

// RevokeToken revokes the API key with this prefix (JWT only).
func (c *Client) RevokeToken(ctx context.Context, prefix string) error {
	return c.done(ctx, remove(Version, "me", "tokens", prefix))
}

// page returns one page of a list and the cursor of the next.
func page[T any](ctx context.Context, c *Client, p Page, segments ...string) ([]T, string, error) {
	cl := get(segments...)
	cl.query = p.query()
	return pageOf[T](ctx, c, cl)
}

func pageOf[T any](ctx context.Context, c *Client, cl call) ([]T, string, error) {
	resp, err := c.do(ctx, cl)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	var items []T
	if err := decode(resp, &items); err != nil {
		return nil, "", err
	}
	next, err := nextCursor(resp.Header)
	if err != nil {
		return nil, "", err
	}
	return items, next, nil
}

// all iterates over every page of a list.
func all[T any](list func(Page) ([]T, string, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		p := Page{Limit: MaxListLimit}
		for {
			items, next, err := list(p)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			p.Cursor = next
		}
	}
}

// nextCursor returns the cursor from a Link header with rel="next".
func nextCursor(h http.Header) (string, error) {
	for _, line := range h.Values("Link") {
		for _, link := range strings.Split(line, ",") {
			target, params, ok := strings.Cut(link, ";")
			if !ok || !strings.Contains(strings.ReplaceAll(params, " ", ""), `rel="next"`) {
				continue
			}
			u, err := url.Parse(strings.Trim(strings.TrimSpace(target), "<>"))
			if err != nil {
				return "", fmt.Errorf("link to the next page: %w", err)
			}
			return u.Query().Get("cursor"), nil
		}
	}
	return "", nil
}
