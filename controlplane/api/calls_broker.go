package api

import "context"

// The calls for SQL over HTTP require the database's own credential,
// Database.BrokerToken. They wake a sleeping database.

// QueryDatabase runs one SQL statement. An error of PostgreSQL is an *Error with its
// sqlstate in Fields.
func (c *Client) QueryDatabase(ctx context.Context, id, brokerToken string, in SQLQuery) (*SQLResult, error) {
	return broker[SQLResult](ctx, c, id, brokerToken, "query", in)
}

// BatchDatabase runs SQL statements, each in its own transaction.
func (c *Client) BatchDatabase(ctx context.Context, id, brokerToken string, in SQLQueries) (*SQLBatchResults, error) {
	return broker[SQLBatchResults](ctx, c, id, brokerToken, "batch", in)
}

// TransactDatabase runs SQL statements in one transaction.
func (c *Client) TransactDatabase(ctx context.Context, id, brokerToken string, in SQLQueries) (*SQLBatchResults, error) {
	return broker[SQLBatchResults](ctx, c, id, brokerToken, "transaction", in)
}

// GetDatabaseSchema returns the tables of a database.
func (c *Client) GetDatabaseSchema(ctx context.Context, id, brokerToken string) (*DatabaseSchema, error) {
	cl := get(Version, "databases", id, "proxy", "schema")
	cl.token = brokerToken
	return into[DatabaseSchema](ctx, c, cl)
}

func broker[T any](ctx context.Context, c *Client, id, brokerToken, operation string, in any) (*T, error) {
	cl, err := post(in, Version, "databases", id, "proxy", operation)
	if err != nil {
		return nil, err
	}
	cl.token = brokerToken
	return into[T](ctx, c, cl)
}
