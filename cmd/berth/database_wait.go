package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

// databasePoll is how often a database that changes is looked at.
const databasePoll = 200 * time.Millisecond

// While looking fails, because the service is busy or a replica is away, it is tried
// again this often, and for this long: the database is made meanwhile.
const (
	databasePause    = time.Second
	databasePatience = time.Minute
)

// awaitDatabase waits until a database runs, and shows what it is at meanwhile.
func (a *app) awaitDatabase(ctx context.Context, c *api.Client, db *api.Database, what string) (*api.Database, error) {
	stop := spin(a.stderr, what)
	defer func() { stop() }()
	told, woken := "", db.Status == api.DatabaseWaking
	pause, failing := databasePoll, time.Time{}
	for {
		switch {
		case db.Status == api.DatabaseRunning:
			return db, nil
		case db.Status == api.DatabaseHibernated && woken: // the wake is over, and has not succeeded
			return nil, notRunning(db.ID, db.Status, db.Error)
		case db.Status == api.DatabaseHibernated: // it has run, and sleeps already
			return db, nil
		case db.Status == api.DatabaseFailed:
			return nil, notRunning(db.ID, db.Status, db.Error)
		}
		if db.Error != "" && db.Error != told {
			told = db.Error
			stop()
			a.note("%s: %s", db.Status, told)
			stop = spin(a.stderr, what)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		next, err := c.GetDatabase(ctx, db.ID)
		if ctx.Err() == nil && passing(err) {
			if failing.IsZero() {
				failing = time.Now()
			}
			if pause = pauseAfter(err); time.Since(failing)+pause > databasePatience {
				return nil, err
			}
			continue
		}
		pause, failing = databasePoll, time.Time{}
		switch {
		case err == nil:
			db = next
		case api.StatusOf(err) == http.StatusNotFound && db.Status == api.DatabaseRestoring: // for a moment
		default:
			return nil, err
		}
	}
}

// passing reports whether a look that failed may succeed later: no answer came, or
// one that says so.
func passing(err error) bool {
	status := api.StatusOf(err)
	return err != nil && (status == 0 || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError)
}

// pauseAfter is how long to wait after a look that failed.
func pauseAfter(err error) time.Duration {
	var e *api.Error
	if errors.As(err, &e) {
		return max(e.RetryAfter, databasePause)
	}
	return databasePause
}

// theDatabase returns a client and the id of the database that an argument names.
func (a *app) theDatabase(ctx context.Context, name string) (*api.Client, string, error) {
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, "", err
	}
	id, err := findDatabase(ctx, c, name)
	return c, id, err
}

// databaseID is the form of the ids of databases.
var databaseID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// findDatabase returns the id of a database, which is named by it, or by a label that it
// alone has.
func findDatabase(ctx context.Context, c *api.Client, name string) (string, error) {
	if databaseID.MatchString(name) {
		return name, nil
	}
	var found []api.Database
	for db, err := range c.Databases(ctx) {
		if err != nil {
			return "", err
		}
		if db.Label == name && name != "" {
			found = append(found, db)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("there is no database %q: berth db ls shows those that there are", name)
	case 1:
		return found[0].ID, nil
	}
	text := fmt.Sprintf("%d databases are labelled %q; name one by its id:", len(found), name)
	for _, db := range found {
		text += "\n  " + db.ID + "  " + string(db.Status)
	}
	return "", errors.New(text)
}

// completeDatabases completes the ids of databases.
func (a *app) completeDatabases(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := a.client(envToken, envJWT)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	page, _, err := c.ListDatabases(ctx, api.Page{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, db := range page {
		out = append(out, db.ID+"\t"+orDash(db.Label)+", "+string(db.Status)+", "+age(db.CreatedAt.Time))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
