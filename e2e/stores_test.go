package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/eventstore/postgrestest"
	"github.com/berth-cloud/berth/hostd/bucket/s3test"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// standOn starts a second stack beside the first, which everything in the test
// uses in its place. The test must not be a parallel one.
func standOn(t *testing.T, o stack.Options) {
	t.Helper()
	s, err := stack.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	first := theStack
	theStack = s
	t.Cleanup(func() {
		theStack = first
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// baseAlone is the stack's template store in links, with the base template and
// nothing of any other.
func baseAlone(t *testing.T) string {
	t.Helper()
	dir := templateCopy(t)
	build := currentBuild(t, dir)
	raw, err := os.ReadFile(filepath.Join(build, "template.json"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Layers []string `json:"layers"`
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	for part, kept := range map[string][]string{
		"names": {stack.BaseTemplate + ".json"}, "builds": {filepath.Base(build)}, "layers": manifest.Layers,
	} {
		entries, err := os.ReadDir(filepath.Join(dir, part))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if slices.Contains(kept, e.Name()) {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, part, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// The other event store and the other snapshot store, in the place of files:
// one PostgreSQL for all replicas, one S3 bucket for all hosts. The second host
// has nothing of the snapshots' template but what the bucket has.
func TestPostgreSQLAndS3(t *testing.T) {
	atLength(t)
	database, err := postgrestest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(database.Remove)
	if err := database.CreateDatabase(t.Context(), "events"); err != nil {
		t.Fatal(err)
	}
	bucket := s3test.New(t)
	host := []string{"BERTH_SNAPSHOT_STORE=" + s3test.URL(bucket.Addr)}
	for name, value := range s3test.Credentials() {
		host = append(host, name+"="+value)
	}
	bare := baseAlone(t)
	dir := stack.Cache(theStack.Root, "e2e", "stores")
	standOn(t, stack.Options{
		Root: theStack.Root, Dir: filepath.Join(dir, "run"), Logs: filepath.Join(dir, "log"),
		PortBase: stack.DefaultPortBase + 400, HostPrefix: "s", HostRange: 4, HostMemoryMB: 2560,
		ReplicaEnv: []string{"BERTH_EVENT_STORE=" + database.URL("events")},
		HostEnv:    map[string][]string{"s1": host, "s2": append(slices.Clone(host), "BERTH_TEMPLATE_DIR="+bare)},
	})
	c := newTenant(t)
	c.knownEverywhere(t)

	source := c.of(t, "python")
	builds := func() int {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(bare, "builds"))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if source.AgentID != "s1" || builds() != 1 {
		t.Fatalf("it is on %s; s2 has %d templates", source.AgentID, builds())
	}
	c.exec(t, source.ID, survivor)
	c.livesOn(t, source.ID, 1)
	c.exec(t, source.ID, "echo on-disk > /root/f")
	began := time.Now()
	snap := c.snapshot(t, source.ID, "in the bucket")
	t.Logf("stored in %s", time.Since(began).Round(100*time.Millisecond))
	object := filepath.Join(bucket.Dir, "snapshots", snap.ID)
	if _, err := os.Stat(object); err != nil || !snap.Stored {
		t.Errorf("the snapshot is %+v; in the bucket: %v", snap, err)
	}
	restore := func(t *testing.T, snap *api.Snapshot, host string, asked int) *api.Sandbox {
		t.Helper()
		onlyOn(t, host)
		began := time.Now()
		s := c.make(t, api.CreateSandbox{Template: "python", FromSnapshot: snap.ID})
		t.Logf("restored in %s", time.Since(began).Round(100*time.Millisecond))
		if s.AgentID != host {
			t.Errorf("it is on %s, want %s", s.AgentID, host)
		}
		c.livesOn(t, s.ID, asked)
		if got := c.run(t, s.ID, "cat /root/f; python -c 'print(6*7)'"); got != "on-disk\n42" {
			t.Errorf("it says %q", got)
		}
		return s
	}
	t.Run("a snapshot on a host that lacks its template", func(t *testing.T) {
		s := restore(t, snap, "s2", 2)
		if n := builds(); n < 2 {
			t.Errorf("s2 has %d templates, want base and what it fetched", n)
		}
		moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
		moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))
		c.counts(t, api.SandboxMetrics{Sandboxes: 2, Starts: 2, Wakes: 1})
	})
	t.Run("PostgreSQL away", func(t *testing.T) {
		database.Stop()
		s := c.of(t, "python")
		moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
		moved(t, api.SandboxRunning)(c.WakeSandbox(t.Context(), s.ID))
		for i := range theStack.URLs {
			_, err := c.through(t, i).SandboxMetrics(t.Context(), "", "", "")
			if status := api.StatusOf(err); status != 503 {
				t.Errorf("replica %d: %v, want 503", i+1, err)
			}
		}
		if err := database.Start(); err != nil {
			t.Fatal(err)
		}
		// What the hosts have told nobody meanwhile, they tell now.
		c.counts(t, api.SandboxMetrics{Sandboxes: 3, Starts: 3, Wakes: 2})
	})
	t.Run("S3 away", func(t *testing.T) {
		bucket.Stop()
		unstored := c.snapshot(t, source.ID, "")
		if unstored.Status != api.SnapshotReady || unstored.Stored {
			t.Errorf("it is %+v", unstored)
		}
		t.Run("on its host", func(t *testing.T) { restore(t, unstored, "s1", 2) })
		t.Run("elsewhere", func(t *testing.T) {
			onlyOn(t, "s2")
			_, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: "python", FromSnapshot: unstored.ID}, "")
			refusal(t, err, 502, "no available compute node")
		})
		bucket.Start()
		if again := c.snapshot(t, source.ID, ""); !again.Stored {
			t.Errorf("after the bucket is back: %+v", again)
		}
	})
	t.Run("a template that only another host has built", func(t *testing.T) {
		onlyOn(t, "s2")
		eventually(t, 5*time.Minute, "s2 has fetched it", func(ctx context.Context) error {
			s, err := c.CreateSandbox(ctx, api.CreateSandbox{Template: "node"}, "")
			if err != nil {
				return err
			}
			c.deleteAtEnd(t, s.ID)
			if got := c.run(t, s.ID, "node -p 6*7"); s.AgentID != "s2" || got != "42" {
				t.Errorf("on %s it says %q", s.AgentID, got)
			}
			return nil
		})
	})
	if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(object); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the deleted snapshot is in the bucket: %v", err)
	}

	// Nothing has gone where it goes without the settings.
	if _, err := os.Stat(snapshotStore()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory for snapshots: %v", err)
	}
	for _, r := range theStack.Replicas {
		if _, err := os.Stat(filepath.Join(theStack.DataDir(r.ID), "events")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the SQLite of %s: %v", r.ID, err)
		}
	}
	c.wrote(t, database.URL("events"), source.ID)
	c.agrees(t, 20*time.Second)
}

// counts waits until every replica says that so much has happened today to the
// tenant's sandboxes of the python template.
func (c *tenant) counts(t *testing.T, want api.SandboxMetrics) {
	t.Helper()
	for i := range theStack.URLs {
		via := c.through(t, i)
		eventually(t, 30*time.Second, "replica "+fmt.Sprint(i+1)+" has counted it", func(ctx context.Context) error {
			days, err := via.SandboxMetrics(ctx, "", "", "python")
			if err != nil {
				return err
			}
			var sum api.SandboxMetrics
			for _, d := range days {
				sum.Sandboxes += d.Sandboxes
				sum.Starts += d.Starts
				sum.Wakes += d.Wakes
				if d.Starts != d.Boot.Count || d.Wakes != d.Wake.Count || d.Starts > 0 && d.Boot.P50 <= 0 {
					return fmt.Errorf("it measured %+v", d)
				}
			}
			// Across midnight a sandbox is counted on both days.
			if sum.Sandboxes != want.Sandboxes && len(days) == 1 || sum.Starts != want.Starts || sum.Wakes != want.Wakes {
				return fmt.Errorf("%+v", days)
			}
			return nil
		})
	}
}

// wrote wants the database itself to have each event of a sandbox once.
func (c *tenant) wrote(t *testing.T, url, id string) {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all, err := c.Events(t.Context(), id, api.EventQuery{Tail: new(512)})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the database has the sandbox's events", func(ctx context.Context) error {
		var n int
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM events WHERE sandbox_id = $1", id).Scan(&n); err != nil {
			return err
		}
		if n != len(all) {
			return fmt.Errorf("it has %d, and the host %d", n, len(all))
		}
		return nil
	})
}
