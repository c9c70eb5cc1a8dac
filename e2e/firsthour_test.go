package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-cloud/berth/controlplane/api"
)

// A user's first hour with three replicas and two hosts. `make test` runs this test
// alone on real guests; `make test-all` has one for each of its promises.
func TestFirstHour(t *testing.T) {
	t.Run("sandboxes", firstSandboxes)
	t.Run("database", firstDatabase)
	t.Run("app", firstApp)
}

func firstSandboxes(t *testing.T) {
	c := newTenant(t)
	s := c.create(t)
	if got := c.run(t, s.ID, "uname -s; python3 -c 'print(6*7)'"); got != "Linux\n42" {
		t.Errorf("its first command wrote %q", got)
	}
	if _, err := c.WriteFile(t.Context(), s.ID, "/root/note", "", strings.NewReader("kept\n"), 5); err != nil {
		t.Fatal(err)
	}
	file, err := c.ReadFile(t.Context(), s.ID, "/root/note")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(file)
	file.Close()
	if err != nil || string(raw) != "kept\n" {
		t.Errorf("the file holds %q, %v", raw, err)
	}

	// A process and a file in memory show what a fork and a sleep keep.
	c.exec(t, s.ID, "echo in-memory > /dev/shm/note; setsid sleep 3600 </dev/null >/dev/null 2>&1 &")
	const kept = "cat /root/note /dev/shm/note; pgrep -c sleep"
	const keeps = "kept\nin-memory\n1"
	tree, err := c.ForkTree(t.Context(), s.ID, api.ForkTree{Count: new(2)}, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(tree.Children) != 2 || len(tree.Failed) != 0 {
		t.Fatalf("the fork is %+v", tree)
	}
	for _, child := range tree.Children {
		c.deleteAtEnd(t, child.ID)
		if got := c.run(t, child.ID, kept); got != keeps {
			t.Errorf("a child has %q", got)
		}
	}

	moved(t, api.SandboxHibernated)(c.HibernateSandbox(t.Context(), s.ID))
	if got := c.run(t, s.ID, kept); got != keeps {
		t.Errorf("woken by a command it has %q", got)
	}

	c.serves(t, s.ID, 8080, "0")
	c.isServed(t, s.ID, 8080)

	snap := c.snapshot(t, s.ID, "first")
	c.exec(t, s.ID, "echo later > /root/note")
	again := c.make(t, api.CreateSandbox{FromSnapshot: snap.ID})
	if got := c.run(t, again.ID, kept); got != keeps {
		t.Errorf("made of the snapshot it has %q", got)
	}

	leader := theStack.Leader(t.Context())
	if leader == nil {
		t.Fatal("there is no leader")
	}
	restartAtEnd(t, leader)
	if err := leader.Kill9(); err != nil {
		t.Fatal(err)
	}
	// A call that meets the election gets 503, one that the killed leader had already got
	// 502, and one on a connection to it no answer. Each is repeated.
	repeat := func(what string, call func(context.Context) error) {
		t.Helper()
		eventually(t, time.Minute, what, func(ctx context.Context) error {
			err := call(ctx)
			var answer *api.Error
			if errors.As(err, &answer) && answer.Message != "control plane unavailable" {
				t.Errorf("%s: %v", what, err)
				return nil
			}
			return err
		})
	}
	repeat("a command without the first leader", func(ctx context.Context) error {
		got, err := c.Exec(ctx, again.ID, api.Exec{Cmd: api.Shell(kept)})
		if err == nil && strings.TrimSpace(got.Stdout) != keeps {
			t.Errorf("without the first leader it has %q", got.Stdout)
		}
		return err
	})
	for _, id := range []string{s.ID, again.ID, tree.Children[0].ID, tree.Children[1].ID} {
		repeat("a delete", func(ctx context.Context) error {
			err := c.DeleteSandbox(ctx, id)
			if api.StatusOf(err) == http.StatusNotFound { // a repeated one
				return nil
			}
			return err
		})
		c.gone(t, id, time.Minute)
	}
}

func firstDatabase(t *testing.T) {
	c := newTenant(t)
	db := c.database(t, `{"label":"shop"}`)
	conn := db.connect(t)
	statement(t, conn, "CREATE TABLE t (x int); INSERT INTO t VALUES (41)")
	if a := db.broker("SELECT x + $1 FROM t WHERE x > $1", 1).send(t); a.status != http.StatusOK || !strings.Contains(a.body, `[[42]]`) {
		t.Errorf("the broker answers %d %s", a.status, a.body)
	}

	old := db.connectConfig(t)
	c.call(t, "POST", "/v1/databases/"+db.ID+"/reset-credentials", "{}", http.StatusOK, nil)
	if _, err := pgx.ConnectConfig(t.Context(), old); sqlState(err) != "28P01" {
		t.Errorf("with the old password: %v", err)
	}
	db = c.databaseIs(t, db.ID)

	// Nobody is connected: it sleeps, and a connection wakes it.
	_ = conn.Close(context.Background()) // the reset has cut it
	// (The stack's idle window is short.)
	asleep := c.databaseBecomes(t, db.ID, databaseWait, "hibernated")
	if asleep.Password != "" {
		t.Errorf("asleep it shows %+v", asleep)
	}
	if x := query[int](t, db.connect(t), "SELECT x FROM t"); x != 41 {
		t.Errorf("woken it has %d", x)
	}
	if err := c.DeleteDatabase(t.Context(), db.ID); err != nil {
		t.Errorf("delete: %v", err)
	}
}

func firstApp(t *testing.T) {
	c := newTenant(t)
	app := c.app(t, map[string]any{"name": "hello", "source": "upload"})
	folder := packed(t, server("one"))
	if _, err := c.PutAppSource(t.Context(), app.ID, bytes.NewReader(folder), int64(len(folder))); err != nil {
		t.Fatal(err)
	}
	first := c.deploy(t, app.ID, `{}`, api.DeploymentLive)
	c.appServes(t, app, time.Minute, "one")
	if log := c.buildLog(t, first); !strings.Contains(log, "Detected node") {
		t.Errorf("the log of the deployment is\n%s", log)
	}
	c.call(t, "PUT", "/v1/apps/"+app.ID+"/env/GREETING", `{"value":"hi","secret":true}`, http.StatusOK, nil)
	folder = packed(t, server("two"))
	if _, err := c.PutAppSource(t.Context(), app.ID, bytes.NewReader(folder), int64(len(folder))); err != nil {
		t.Fatal(err)
	}
	c.deploy(t, app.ID, `{}`, api.DeploymentLive)
	c.appServes(t, app, time.Minute, "two")
	eventually(t, appWait, "the app has its variable", func(context.Context) error {
		if a := asks(t, 0, app, "/env?name=GREETING"); a.body != "hi" {
			return fmt.Errorf("it is %q", a.body)
		}
		return nil
	})
	var back api.Deployment
	c.call(t, "POST", "/v1/apps/"+app.ID+"/rollback", `{}`, http.StatusAccepted, &back)
	c.deployed(t, back, api.DeploymentLive)
	c.appServes(t, app, time.Minute, "one")
}

// packed packs files as an upload of an app's source.
func packed(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for name, content := range files {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
