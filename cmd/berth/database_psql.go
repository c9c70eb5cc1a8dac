package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// The variables that say how a database is reached where its name and its
// certificate do not.
const (
	envDBAddr = "BERTH_DB_ADDR"
	envDBCA   = "BERTH_DB_CA"
)

func (a *app) dbPsql() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "psql DB [ARGUMENT…]",
		Short: "Open psql at a database",
		Long: `Run the psql of this machine at a database, which is woken first if it sleeps. The
connection is encrypted and the certificate verified: by the authority of
BERTH_DB_CA, or else by those that this machine trusts. With BERTH_DB_ADDR set,
psql connects there, whatever the database's name resolves to. Arguments after DB
are psql's.`,
		Example: `  berth db psql $db
  berth db psql $db -c 'SELECT version()'
  berth db psql $db -f schema.sql`,
		Args:              wants(1, -1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			program, err := exec.LookPath("psql")
			if err != nil {
				return fmt.Errorf("psql is not installed: it comes with PostgreSQL's client (Debian: apt-get install postgresql-client); other clients can use: berth db url %s", args[0])
			}
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			conn, err := a.awake(cmd.Context(), c, id)
			if err != nil {
				return err
			}
			settings, err := a.libpq(cmd.Context(), conn)
			if err != nil {
				return err
			}
			// In the place of this program: Ctrl-C, the terminal and the exit code are psql's.
			own := args[1:]
			if len(own) > 0 && own[0] == "--" {
				own = own[1:]
			}
			return syscall.Exec(program, append([]string{"psql"}, own...), environ(settings))
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// awake returns how a database is reached, once it can be.
func (a *app) awake(ctx context.Context, c *api.Client, id string) (*api.DatabaseConnection, error) {
	conn, err := c.GetDatabaseConnection(ctx, id)
	if err != nil || conn.Password != "" {
		return conn, err
	}
	began := time.Now()
	db := &api.Database{ID: id, Status: conn.Status, Error: conn.Error}
	if conn.Status == api.DatabaseHibernated {
		out, err := c.WakeDatabase(ctx, id)
		if err != nil {
			return nil, err
		}
		db.Status = out.Status
	}
	if _, err := a.awaitDatabase(ctx, c, db, "waiting until the database runs"); err != nil {
		return nil, err
	}
	a.note("it runs after %s", time.Since(began).Round(10*time.Millisecond))
	conn, err = c.GetDatabaseConnection(ctx, id)
	if err == nil && conn.Password == "" {
		err = notRunning(id, conn.Status, conn.Error)
	}
	return conn, err
}

// errNoRouter is of a service whose databases are reached by their brokers alone.
var errNoRouter = errors.New("this service has no router for databases: its operator sets BERTH_DB_DOMAIN")

// libpq returns the settings of a connection as libpq's variables: a command line
// would show the password to everybody on this machine.
func (a *app) libpq(ctx context.Context, conn *api.DatabaseConnection) (map[string]string, error) {
	if conn.Host == "" {
		return nil, errNoRouter
	}
	out := map[string]string{
		"PGHOST": conn.Host, "PGPORT": strconv.Itoa(conn.Port), "PGDATABASE": conn.Database, "PGUSER": conn.Username,
		"PGPASSWORD": conn.Password, "PGSSLMODE": "verify-full", "PGSSLROOTCERT": a.authorities(),
		// Emptied, because they may be set for another server.
		"PGSERVICE": "", "PGHOSTADDR": "", "PGREQUIRESSL": "", "PGSSLCERT": "", "PGSSLKEY": "", "PGSSLCRL": "",
	}
	addr := a.env(envDBAddr)
	if addr == "" {
		return out, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%s is %q: want host:port", envDBAddr, addr)
	}
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", envDBAddr, err)
	}
	out["PGHOSTADDR"], out["PGPORT"] = addrs[0], port
	return out, nil
}

// authorities is the file with those whose certificates psql takes. "system" is what
// libpq 16 and later know by themselves.
func (a *app) authorities() string {
	if ca := a.env(envDBCA); ca != "" {
		return ca
	}
	for _, file := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return "system"
}

// environ is this program's environment with some variables set, or, where they are
// empty, removed.
func environ(settings map[string]string) []string {
	var out []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if _, ok := settings[name]; !ok {
			out = append(out, kv)
		}
	}
	for name, value := range settings {
		if value != "" {
			out = append(out, name+"="+value)
		}
	}
	return out
}
