package api

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// CreateDatabase starts the creation of a database. It returns at once, while the
// database is provisioning: poll GetDatabase until it runs. idempotencyKey may be
// empty, as in CreateSandbox.
func (c *Client) CreateDatabase(ctx context.Context, in CreateDatabase, idempotencyKey string) (*Database, error) {
	return create[Database](ctx, c, in, idempotencyKey, Version, "databases")
}

// GetDatabase returns a database, with its credentials while it runs.
func (c *Client) GetDatabase(ctx context.Context, id string) (*Database, error) {
	return into[Database](ctx, c, get(Version, "databases", id))
}

// ListDatabases returns one page, newest first and without credentials, and the
// cursor of the next page, which is empty after the last.
func (c *Client) ListDatabases(ctx context.Context, p Page) ([]Database, string, error) {
	return page[Database](ctx, c, p, Version, "databases")
}

// Databases iterates over all databases, newest first, page by page.
func (c *Client) Databases(ctx context.Context) iter.Seq2[Database, error] {
	return all(func(p Page) ([]Database, string, error) { return c.ListDatabases(ctx, p) })
}

// GetDatabaseConnection returns how clients connect to a database.
func (c *Client) GetDatabaseConnection(ctx context.Context, id string) (*DatabaseConnection, error) {
	return into[DatabaseConnection](ctx, c, get(Version, "databases", id, "connection"))
}

// PatchDatabase sets whether a database may sleep.
func (c *Client) PatchDatabase(ctx context.Context, id string, in PatchDatabase) (*Database, error) {
	b, err := encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return into[Database](ctx, c, call{
		method: http.MethodPatch, path: join([]string{Version, "databases", id}),
		header: http.Header{"Content-Type": {"application/json"}}, body: b, safe: true,
	})
}

// DeleteDatabase deletes a database, its data and its archive, for good. While it is
// being cloned, the error is a 409.
func (c *Client) DeleteDatabase(ctx context.Context, id string) error {
	return c.done(ctx, remove(Version, "databases", id))
}

// WakeDatabase starts waking a sleeping database.
func (c *Client) WakeDatabase(ctx context.Context, id string) (*DatabaseWake, error) {
	cl, err := post(struct{}{}, Version, "databases", id, "wake")
	if err != nil {
		return nil, err
	}
	return into[DatabaseWake](ctx, c, cl)
}

// ResetDatabaseCredentials replaces the password and the broker token of a running
// database and returns the new ones once they work. Clients that use the old ones
// are disconnected. After an error the old ones are in force, unless the outcome is
// unknown: then GetDatabase returns the current ones.
func (c *Client) ResetDatabaseCredentials(ctx context.Context, id string) (*DatabaseConnection, error) {
	cl, err := post(struct{}{}, Version, "databases", id, "reset-credentials")
	if err != nil {
		return nil, err
	}
	return into[DatabaseConnection](ctx, c, cl)
}

// CloneDatabase starts the creation of a database from another one's archive. Like
// CreateDatabase, it returns at once.
func (c *Client) CloneDatabase(ctx context.Context, id string, in CloneDatabase, idempotencyKey string) (*Database, error) {
	return create[Database](ctx, c, in, idempotencyKey, Version, "databases", id, "clone")
}

// FailoverDatabase starts restoring a database on another host from its archive. The
// answer says how much is lost because it was not archived.
func (c *Client) FailoverDatabase(ctx context.Context, id string, in FailoverDatabase) (*DatabaseFailover, error) {
	cl, err := post(in, Version, "databases", id, "failover")
	if err != nil {
		return nil, err
	}
	return into[DatabaseFailover](ctx, c, cl)
}

// GetDatabaseArchive returns what a database can be restored from.
func (c *Client) GetDatabaseArchive(ctx context.Context, id string) (*DatabaseArchive, error) {
	return into[DatabaseArchive](ctx, c, get(Version, "databases", id, "archive"))
}

// DatabaseLogs returns the last lines of PostgreSQL's log as text; tail 0 means all.
// The caller closes it.
func (c *Client) DatabaseLogs(ctx context.Context, id string, tail int) (io.ReadCloser, error) {
	resp, err := c.do(ctx, databaseLogs(id, tail))
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// FollowDatabaseLogs calls line with the existing lines and then with new ones, like
// FollowLogs.
func (c *Client) FollowDatabaseLogs(ctx context.Context, id string, tail int, line func(stream string, l LogLine) error) error {
	return c.followLines(ctx, databaseLogs(id, tail), line)
}

func databaseLogs(id string, tail int) call {
	cl := get(Version, "databases", id, "logs")
	cl.query = url.Values{}
	if tail > 0 {
		cl.query.Set("tail", strconv.Itoa(tail))
	}
	return cl
}
