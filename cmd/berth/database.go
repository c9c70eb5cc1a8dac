package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) database() *cobra.Command {
	g := group("db", "Create PostgreSQL databases and connect to them",
		`A database is PostgreSQL 16 in a microVM of its own. It sleeps when nobody is
connected, and wakes when somebody connects. It is archived as it is written, so
that it can be cloned as of a moment in the past, or restored elsewhere when its
host is lost.

Databases are named by their ids, or by their labels where only one has it.

Clients connect with TLS. Where the database's name does not resolve, or its
certificate is of an authority of your own, as on a local stack, these say how:

  BERTH_DB_ADDR      host:port of the router
  BERTH_DB_CA        file with the authority's certificate`,
		a.dbCreate(), a.dbList(), a.dbGet(), a.dbURL(), a.dbPsql(), a.dbQuery(), a.dbArchive(), a.dbClone(), a.dbFailover(), a.dbRotate(), a.dbWake(),
		a.dbAlwaysOn(), a.dbRemove(), a.dbLogs(), a.dbMetrics())
	g.Aliases = []string{"database", "databases"}
	return g
}

func (a *app) dbCreate() *cobra.Command {
	var in api.CreateDatabase
	var size string
	var detach bool
	cmd := &cobra.Command{
		Use:   "create [LABEL]",
		Short: "Create a database and print its id",
		Long: `Create a database, wait until it runs, and print its id. Ctrl-C ends the waiting;
the database is created all the same.`,
		Example: `  db=$(berth db create shop)
  berth db create orders --size 4g --always-on
  psql "$(berth db url $db)?sslmode=require"`,
		Args: wants(0, 1, "a label"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if in.Label != "" && in.Label != args[0] {
					return fmt.Errorf("the label is %q or %q: give one", args[0], in.Label)
				}
				in.Label = args[0]
			}
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			in.Size = sizeFlag(size)
			began := time.Now()
			db, err := c.CreateDatabase(cmd.Context(), in, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			return a.created(cmd.Context(), c, db, began, detach)
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Label, "label", "", "a name; it need not be unique")
	f.StringVar(&size, "size", "", "memory: 1g (default), 4g or 16g; it cannot be changed later, but a clone may have another")
	f.BoolVar(&in.AlwaysOn, "always-on", false, "never put it to sleep")
	f.BoolVarP(&detach, "detach", "d", false, "do not wait until it runs")
	return cmd
}

func sizeFlag(size string) *api.DatabaseSize {
	if size == "" {
		return nil
	}
	return new(api.DatabaseSize(size))
}

// created waits for a new database and prints it.
func (a *app) created(ctx context.Context, c *api.Client, db *api.Database, began time.Time, detach bool) (err error) {
	if !detach {
		id := db.ID
		if db, err = a.awaitDatabase(ctx, c, db, "creating the database"); err != nil {
			fmt.Fprintf(a.stderr, "the database's id is %s\n", id) // it exists all the same
			return err
		}
		a.note("%s after %s", db.Status, time.Since(began).Round(100*time.Millisecond))
	}
	if a.json {
		return a.printJSON(db)
	}
	fmt.Fprintln(a.stdout, db.ID)
	return nil
}

func (a *app) dbList() *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List databases, newest first",
		Example: `  berth db ls
  berth db ls --json | jq -r '.[] | select(.status == "failed") | .id'`,
		Args: wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			all := []api.Database{}
			for db, err := range c.Databases(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, db)
			}
			switch {
			case a.json:
				return a.printJSON(all)
			case quiet:
				for _, db := range all {
					fmt.Fprintln(a.stdout, db.ID)
				}
				return nil
			}
			rows := [][]string{{"ID", "STATUS", "SIZE", "LABEL", "AGE"}}
			for _, db := range all {
				rows = append(rows, []string{db.ID, string(db.Status), string(db.Size), orDash(db.Label), age(db.CreatedAt.Time)})
			}
			return a.table(rows)
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ids")
	return cmd
}

func (a *app) dbGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get DB",
		Short: "Show one database and what it can be restored from",
		Example: `  berth db get $db
  berth db get $db --json | jq -r .archive.last_restorable`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			db, err := c.GetDatabase(cmd.Context(), id)
			if err != nil {
				return err
			}
			// What is known of the database is worth showing without its archive.
			archive, archiveErr := c.GetDatabaseArchive(cmd.Context(), id)
			if a.json {
				return a.printJSON(struct {
					*api.Database
					Archive *api.DatabaseArchive `json:"archive,omitempty"`
				}{db, archive})
			}
			out := describeDatabase(db)
			if archiveErr == nil {
				out = append(out, describeArchive(archive)...)
			} else {
				out = append(out, "archive", archiveErr.Error())
			}
			return a.fields(out...)
		},
	}
}

func (a *app) dbArchive() *cobra.Command {
	return &cobra.Command{
		Use:   "archive DB",
		Short: "Show what a database can be restored from",
		Long: `Show from when to when a database can be restored, how far its archive trails its
writes, why it does not go on, and its base backups.`,
		Example: `  berth db archive $db
  berth db archive $db --json | jq -r .last_restorable`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			archive, err := c.GetDatabaseArchive(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(archive)
			}
			return a.fields(describeBackups(archive)...)
		},
	}
}

func (a *app) dbURL() *cobra.Command {
	return &cobra.Command{
		Use:   "url DB",
		Short: "Print the URL with which clients connect, password included",
		Long: `Print the URL with which clients connect, password included. It says nothing of
sslmode: the router takes TLS alone, so use at least sslmode=require, and
verify-full where you have the certificate's authority.`,
		Example: `  psql "$(berth db url $db)?sslmode=require"
  export DATABASE_URL=$(berth db url $db)`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			conn, err := c.GetDatabaseConnection(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(conn)
			}
			return a.printURL(id, conn)
		},
	}
}

func (a *app) printURL(id string, conn *api.DatabaseConnection) error {
	switch {
	case conn.ConnectionURL != "":
		fmt.Fprintln(a.stdout, conn.ConnectionURL)
		return nil
	case conn.Password != "":
		return errNoRouter
	}
	return notRunning(id, conn.Status, conn.Error)
}

func notRunning(id string, status api.DatabaseStatus, why string) error {
	text := fmt.Sprintf("the database is %s%s", status, orNothing(": ", why))
	switch status {
	case api.DatabaseHibernated:
		text += "; wake it: berth db wake " + id
	case api.DatabaseFailed:
		text += "; restore it: berth db failover " + id
	}
	return fmt.Errorf("%s", text)
}

func (a *app) dbClone() *cobra.Command {
	var in api.CloneDatabase
	var at, size string
	var detach bool
	cmd := &cobra.Command{
		Use:   "clone DB",
		Short: "Make a database of another as it is, or was, and print its id",
		Long: `Make a database of what is archived of another, and print its id. The other one
is left as it is, and may be asleep or failed. With --at, the clone is as the other
was at that moment; without, as it was at its latest archived write.`,
		Example: `  clone=$(berth db clone $db)
  berth db clone $db --at 2026-11-24T10:30:00Z --label before-the-migration
  berth db clone $db --at 15m                  # fifteen minutes ago
  berth db clone $db --size 4g                 # also the way to more memory`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if at != "" {
				in.TargetTime = new(moment(at, time.Now()))
			}
			in.Size = sizeFlag(size)
			began := time.Now()
			db, err := c.CloneDatabase(cmd.Context(), id, in, "berth-"+rand.Text())
			if err != nil {
				return err
			}
			return a.created(cmd.Context(), c, db, began, detach)
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "at", "", "moment in RFC 3339, or how long ago, such as 15m (default: the latest that is archived)")
	f.StringVar(&size, "size", "", "1g, 4g or 16g (default: the other's)")
	f.StringVar(&in.Label, "label", "", `a name (default: the other's with " (clone)")`)
	f.BoolVarP(&detach, "detach", "d", false, "do not wait until it runs")
	return cmd
}

// moment is a time as it was given, or that long before now.
func moment(s string, now time.Time) string {
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d).UTC().Format(time.RFC3339Nano)
	}
	return s
}

func (a *app) dbFailover() *cobra.Command {
	var in api.FailoverDatabase
	var detach bool
	cmd := &cobra.Command{
		Use:   "failover DB",
		Short: "Restore a failed database on another host",
		Long: `Restore a database on another host from its archive, under the same name and with
the same credentials. Writes of about the last minute, which were not archived, are
lost; the command says how much. With --force, a database that runs is stopped and
restored too.`,
		Example: `  berth db failover $db
  berth db failover $db --force`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			began := time.Now()
			out, err := c.FailoverDatabase(cmd.Context(), id, in)
			if err != nil {
				return err
			}
			if detach && a.json {
				return a.printJSON(out)
			}
			if out.Error != "" {
				a.note("%s", out.Error)
			}
			if detach {
				return nil
			}
			return a.changed(cmd.Context(), c, &api.Database{ID: out.ID, Status: out.Status}, began, "restoring the database")
		},
	}
	cmd.Flags().BoolVar(&in.Force, "force", false, "also if it runs; what is not archived is lost")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait until it runs")
	return cmd
}

// changed waits until a database runs again, and says so.
func (a *app) changed(ctx context.Context, c *api.Client, db *api.Database, began time.Time, what string) error {
	db, err := a.awaitDatabase(ctx, c, db, what)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(db)
	}
	a.note("%s is %s after %s", db.ID, db.Status, time.Since(began).Round(100*time.Millisecond))
	return nil
}

func (a *app) dbWake() *cobra.Command {
	return &cobra.Command{
		Use:   "wake DB",
		Short: "Wake a database that sleeps",
		Long: `Wake a database that sleeps, and wait until it runs. There is no need to: a client
that connects wakes it.`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			began := time.Now()
			if _, err := c.WakeDatabase(cmd.Context(), id); err != nil {
				return err
			}
			return a.changed(cmd.Context(), c, &api.Database{ID: id, Status: api.DatabaseWaking}, began, "waking the database")
		},
	}
}

func (a *app) dbRotate() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate DB",
		Short: "Change a database's password and broker token, and print its new URL",
		Long: `Change a database's password and the token of its broker, and print the URL with
the new password. Clients with the old ones are cut off. If the command fails, the
old ones are in force, or will be as soon as the database's host answers. If no
control plane answers meanwhile, "berth db url" says afterwards which are.`,
		Example:           `  export DATABASE_URL=$(berth db rotate $db)`,
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			stop := spin(a.stderr, "changing the password")
			conn, err := c.ResetDatabaseCredentials(cmd.Context(), id)
			if err == nil && conn.Password == "" { // they are changed all the same
				conn, err = c.GetDatabaseConnection(cmd.Context(), id)
			}
			stop()
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(conn)
			}
			if conn.ConnectionURL == "" {
				a.note("they are changed: berth db get %s --json shows them while it runs", id)
				return nil
			}
			fmt.Fprintln(a.stdout, conn.ConnectionURL)
			return nil
		},
	}
}

func (a *app) dbAlwaysOn() *cobra.Command {
	return &cobra.Command{
		Use:               "always-on DB [on|off]",
		Short:             "Say whether a database may be put to sleep",
		Example:           "  berth db always-on $db on",
		Args:              wants(1, 2, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			on := len(args) == 1 || args[1] == "on"
			if !on && args[1] != "off" {
				return usage(cmd, "%q is neither on nor off", args[1])
			}
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			db, err := c.PatchDatabase(cmd.Context(), id, api.PatchDatabase{AlwaysOn: on})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(db)
			}
			a.note("%s is %s; always on: %s", db.ID, db.Status, yes(db.AlwaysOn))
			return nil
		},
	}
}

func (a *app) dbRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm DB…", Aliases: []string{"delete"}, Short: "Delete databases with their data and archives, for good",
		Args:              wants(1, -1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) error {
				id, err := findDatabase(cmd.Context(), c, name)
				if err != nil {
					return err
				}
				return c.DeleteDatabase(cmd.Context(), id)
			})
		},
	}
}

func (a *app) dbLogs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:               "logs DB",
		Short:             "Show PostgreSQL's log",
		Example:           "  berth db logs $db --tail 50 -f",
		Args:              wants(1, 1, "DB"),
		ValidArgsFunction: a.completeDatabases,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, id, err := a.theDatabase(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if follow {
				return c.FollowDatabaseLogs(cmd.Context(), id, tail, a.printLogLine)
			}
			body, err := c.DatabaseLogs(cmd.Context(), id, tail)
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(a.stdout, body)
			return err
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new lines, until Ctrl-C")
	cmd.Flags().IntVar(&tail, "tail", 0, "number of existing lines to show (default: all that are kept)")
	return cmd
}
