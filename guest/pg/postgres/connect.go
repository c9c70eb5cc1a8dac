package postgres

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// platformOptions of a session: nothing that a tenant set for a database or a role
// has a say in it (what a client asks for comes last), its statements and their
// secrets get into no log, and it waits for no lock for long.
const platformOptions = "-c search_path=pg_catalog -c default_transaction_read_only=off -c log_min_error_statement=panic" +
	" -c pg_stat_statements.track=none -c lock_timeout=5s -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"

// Connect opens a session of the platform's in the platform's database. It never
// enters a tenant's: there, a function of the tenant's could be called as superuser.
func (s *Server) Connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(s.cfg.local(Superuser, "postgres"))
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["options"] = platformOptions
	return pgx.ConnectConfig(ctx, cfg)
}

// ConnectReplication opens a session that speaks the replication protocol.
func (s *Server) ConnectReplication(ctx context.Context) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(s.cfg.local(Superuser, "postgres") + " replication=true")
	if err != nil {
		return nil, err
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

// Local is the configuration of a session of any role by the local socket.
func (c Config) Local(role, database string) (*pgconn.Config, error) {
	return pgconn.ParseConfig(c.local(role, database))
}

// LogIn opens a session as a client does: by TCP, with a password.
func (c Config) LogIn(ctx context.Context, role, database, password string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(keywords(c.Listen.String(), c.Port, role, database) + " password=" + quote(password))
	if err != nil {
		return nil, err
	}
	return pgconn.ConnectConfig(ctx, cfg)
}

// Addr is where clients connect to.
func (c Config) Addr() netip.AddrPort { return netip.AddrPortFrom(c.Listen, c.Port) }

func (c Config) local(role, database string) string { return keywords(c.Run, c.Port, role, database) }

// keywords is a connection string that leaves nothing to the environment.
func keywords(host string, port uint16, role, database string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable application_name=%s passfile=/dev/null servicefile=/dev/null connect_timeout=20",
		quote(host), port, quote(role), quote(database), AppName)
}

func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
