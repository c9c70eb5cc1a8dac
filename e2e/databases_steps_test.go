package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// database is what the API says of one, as a client reads it.
type database struct {
	ID                string `json:"id"`
	Status            string `json:"status"`
	Size              string `json:"size"`
	Label             string `json:"label"`
	ClonedFrom        string `json:"cloned_from"`
	Host              string `json:"host"`
	Port              int    `json:"port"`
	Database          string `json:"database"`
	Username          string `json:"username"`
	Password          string `json:"password"`
	ConnectionURL     string `json:"connection_url"`
	BrokerToken       string `json:"broker_token"`
	BrokerURL         string `json:"broker_url"`
	FailoverAvailable *bool  `json:"failover_available"`
	FailoverReason    string `json:"failover_reason"`
	Error             string `json:"error"`
	Detail            string `json:"detail"`
}

// The templates of databases are built when the first is created.
const databaseCreate = 10 * time.Minute

// databaseWait is the patience with what takes seconds on a machine that has time for it.
const databaseWait = 8 * time.Minute

// call makes a request of the API's and decodes its answer.
func (c *tenant) call(t *testing.T, method, path, body string, want int, out any) answer {
	t.Helper()
	a := request{method: method, path: path, token: c.token, body: body}.send(t)
	if a.status != want {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, a.status, want, a.body)
	}
	if out != nil {
		if err := json.Unmarshal([]byte(a.body), out); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, a.body)
		}
	}
	return a
}

// database makes one, waits until it runs, and deletes it at the end of the test.
func (c *tenant) database(t *testing.T, body string) database {
	t.Helper()
	var db database
	c.call(t, "POST", "/v1/databases", body, 202, &db)
	if db.Status != "provisioning" || db.ConnectionURL != "" || db.Password != "" {
		t.Errorf("a new database is %+v", db)
	}
	c.deleteDatabaseAtEnd(t, db.ID)
	return c.databaseRuns(t, db.ID, databaseCreate)
}

func (c *tenant) deleteDatabaseAtEnd(t *testing.T, id string) {
	t.Cleanup(func() {
		// Not t.Context(), which has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		eventually(t, 2*time.Minute, "database "+id+" is deleted", func(context.Context) error {
			if err := c.DeleteDatabase(ctx, id); err != nil && api.StatusOf(err) != http.StatusNotFound {
				return err
			}
			return nil
		})
	})
}

func (c *tenant) databaseIs(t *testing.T, id string) database {
	t.Helper()
	var db database
	c.call(t, "GET", "/v1/databases/"+id, "", 200, &db)
	return db
}

// databaseBecomes waits for a status.
func (c *tenant) databaseBecomes(t *testing.T, id string, most time.Duration, want ...string) database {
	t.Helper()
	var db database
	eventually(t, most, "database "+id+" is "+strings.Join(want, " or "), func(context.Context) error {
		db = c.databaseIs(t, id)
		if !slices.Contains(want, db.Status) {
			return fmt.Errorf("it is %s: %s", db.Status, db.Error)
		}
		return nil
	})
	if t.Failed() {
		t.FailNow()
	}
	return db
}

func (c *tenant) databaseRuns(t *testing.T, id string, most time.Duration) database {
	t.Helper()
	db := c.databaseBecomes(t, id, most, "running")
	if db.Username == "" || db.Password == "" || db.Database == "" || db.BrokerToken == "" || db.ConnectionURL == "" {
		t.Fatalf("it runs without credentials: %+v", db)
	}
	return db
}

// connectConfig is that of a driver with its defaults, verify-full and the CA. The
// host name is resolved here: *.localhost is not in every machine's resolver.
func (db database) connectConfig(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	u, err := url.Parse(db.ConnectionURL)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(theStack.DBCA())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no certificate in the CA's file")
	}
	u.RawQuery = "sslmode=require"
	cfg, err := pgx.ParseConfig(u.String())
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLSConfig = &tls.Config{ServerName: db.Host, RootCAs: roots}
	cfg.ConnectTimeout = 2 * time.Minute
	cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	return cfg
}

func (db database) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.connectConfig(t))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var out T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&out); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

func statement(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// sqlState is the code of PostgreSQL's refusal.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// archived waits until the archive can restore to a moment.
func (c *tenant) archived(t *testing.T, id string, moment time.Time) {
	t.Helper()
	eventually(t, databaseWait, "the archive reaches "+moment.Format(time.RFC3339), func(context.Context) error {
		var a struct {
			First *time.Time `json:"first_restorable"`
			Last  *time.Time `json:"last_restorable"`
		}
		answer := request{method: "GET", path: "/v1/databases/" + id + "/archive", token: c.token}.send(t)
		if err := json.Unmarshal([]byte(answer.body), &a); err != nil || answer.status != 200 {
			return fmt.Errorf("%d %s", answer.status, answer.body)
		}
		if a.First == nil || a.Last == nil || a.Last.Before(moment) {
			return fmt.Errorf("it is %s", answer.body)
		}
		return nil
	})
}

// managedSandbox is the sandbox of a database.
func (c *tenant) managedSandbox(t *testing.T, databaseID string) string {
	t.Helper()
	var list []struct {
		ID    string `json:"id"`
		Owner *struct{ Type, ID string }
	}
	c.call(t, "GET", "/v1/sandboxes?limit=1000", "", 200, &list)
	for _, s := range list {
		if s.Owner != nil && s.Owner.Type == "database" && s.Owner.ID == databaseID {
			return s.ID
		}
	}
	t.Fatalf("database %s has no sandbox", databaseID)
	return ""
}

// killVMM ends a box's VMM by SIGKILL.
func killVMM(t *testing.T, sandboxID string) {
	t.Helper()
	boxes, err := theStack.Boxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range boxes {
		for _, b := range list {
			if b.ID == sandboxID && b.VMMPID > 0 {
				p, err := os.FindProcess(b.VMMPID)
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Kill(); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatal("no host runs the database")
}

// hostOf is the daemon of the host that has a box.
func hostOf(t *testing.T, sandboxID string) *stack.Process {
	t.Helper()
	boxes, err := theStack.Boxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, list := range boxes {
		if slices.ContainsFunc(list, func(b hostapi.Box) bool { return b.ID == sandboxID }) {
			return theStack.Process(id)
		}
	}
	t.Fatalf("no host has %s", sandboxID)
	return nil
}

// broker is a statement for a database's broker.
func (db database) broker(sql string, params ...any) request {
	body, err := json.Marshal(map[string]any{"sql": sql, "params": params})
	if err != nil {
		panic(err) // of what a test wrote
	}
	return request{method: "POST", path: "/v1/databases/" + db.ID + "/proxy/query", token: db.BrokerToken, body: string(body)}
}
