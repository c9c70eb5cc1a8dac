package stack

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/controlplane/api"
)

// DatabaseConfig returns how a client on this machine connects to a database by the
// stack's first router, with the certificate verified.
func (s *Stack) DatabaseConfig(db *api.Database) (*pgx.ConnConfig, error) {
	u := url.URL{Scheme: "postgres", Host: s.Routers()[0], Path: db.Database, User: url.UserPassword(db.Username, db.Password)}
	u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {s.DBCA()}}.Encode()
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		return nil, fmt.Errorf("configure a client of database %s: %w", db.ID, err)
	}
	cfg.TLSConfig.ServerName = db.Host // the router is at an address
	return cfg, nil
}

// AwaitDatabase waits until a database has a status. The first that is made may have
// to wait for its template.
func AwaitDatabase(ctx context.Context, client *api.Client, id string, want api.DatabaseStatus, limit time.Duration) (*api.Database, error) {
	var db *api.Database
	err := Await(ctx, limit, 50*time.Millisecond, fmt.Sprintf("database %s is %s", id, want), func(ctx context.Context) (err error) {
		if db, err = client.GetDatabase(ctx, id); err == nil && db.Status != want {
			err = fmt.Errorf("it is %s: %s", db.Status, cmp.Or(db.Error, "no reason"))
		}
		return err
	})
	return db, err
}
