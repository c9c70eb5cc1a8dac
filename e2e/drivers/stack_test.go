package drivers

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
)

// stack is a running Berth, and a database of it for these tests.
type stack struct {
	client *api.Client
	id     string
}

// newStack makes a database in the Berth that BERTH_URL names.
func newStack(t *testing.T) *stack {
	t.Helper()
	urls := strings.Split(cmp.Or(os.Getenv("BERTH_URLS"), os.Getenv("BERTH_URL")), ",")
	client, err := api.NewClient(nil, os.Getenv("BERTH_TOKEN"), urls...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	client.Patience = 10 * time.Second
	db, err := client.CreateDatabase(t.Context(), api.CreateDatabase{Label: "drivers"}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.DeleteDatabase(context.Background(), db.ID); err != nil {
			t.Errorf("delete the database: %v", err)
		}
	})
	return &stack{client, db.ID}
}

// await waits until the database has a status.
func (s *stack) await(t *testing.T, status api.DatabaseStatus) *api.Database {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		db, err := s.client.GetDatabase(ctx, s.id)
		if err == nil && db.Status == status {
			return db
		}
		if err == nil && db.Status == api.DatabaseFailed {
			t.Fatalf("the database failed: %s", db.Error)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the database is not %s: %+v, %v", status, db, err)
		}
	}
}

// target is how the database is reached once it runs.
func (s *stack) target(t *testing.T) target {
	t.Helper()
	db := s.await(t, api.DatabaseRunning)
	return target{
		url: db.ConnectionURL, addr: cmp.Or(os.Getenv("BERTH_DB_ADDR"), fmt.Sprintf("%s:%d", db.Host, db.Port)),
		ca: cmp.Or(os.Getenv("BERTH_DB_CA"), "/etc/ssl/certs/ca-certificates.crt"),
	}
}

// sleep waits until the database sleeps, on a stack where that is soon.
func (s *stack) sleep(t *testing.T) {
	t.Helper()
	if idle, err := time.ParseDuration(os.Getenv("BERTH_DB_IDLE")); err != nil || idle > time.Minute {
		t.Log("left out: sleep, for which BERTH_DB_IDLE must be known and at most 1m")
		return
	}
	s.await(t, api.DatabaseHibernated)
}

func (s *stack) rotate(t *testing.T) string {
	t.Helper()
	fresh, err := s.client.ResetDatabaseCredentials(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	return fresh.ConnectionURL
}
