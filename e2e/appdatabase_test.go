package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

// An app finds its database by one variable, and wakes it.
func TestAppFindsItsDatabase(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "dbapp")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "./testdata/dbapp")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the app's program: %v: %s", err, out)
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	c := newTenant(t)
	db := c.database(t, `{}`)
	repo := newRepository(t)
	repo.commit("A program", map[string]string{"dbapp": string(raw), "Procfile": "web: chmod +x dbapp && exec ./dbapp\n"})
	app := c.app(t, map[string]any{
		"name": "visits", "git_url": repo.url, "auto_hibernate": false,
		"env": map[string]string{"DATABASE_URL": db.ConnectionURL + "?sslmode=verify-full"},
	})
	c.deploy(t, app.ID, `{}`, api.DeploymentLive)
	// A visit that was counted may be answered with an error all the same.
	last := 0
	visit := func() {
		t.Helper()
		eventually(t, databaseWait, "the app counts one more", func(context.Context) error {
			a := asks(t, 0, app, "/visit")
			n, err := strconv.Atoi(a.body)
			if a.status != 200 || err != nil || n <= last {
				return fmt.Errorf("%d %s, after %d", a.status, a.body, last)
			}
			last = n
			return nil
		})
	}
	visit()
	c.databaseBecomes(t, db.ID, databaseWait, "hibernated")
	visit()
	c.databaseRuns(t, db.ID, databaseWait)
	if n := query[int](t, db.connect(t), "SELECT count(*) FROM visits"); n < 2 || n < last {
		t.Errorf("it has %d visits, and the app told of %d", n, last)
	}
}

// handshake is a client's, in the guest: it resolves a database's name, asks for TLS as
// PostgreSQL's clients do, and verifies the certificate by what the guest trusts soon
// after its start.
const handshake = `timeout 60 sh -c "until [ -e /usr/local/share/ca-certificates/berth-databases.crt ]; do sleep 0.1; done"; python3 -c '
import socket, ssl, struct, sys
host, port = sys.argv[1], int(sys.argv[2])
print(socket.gethostbyname(host))
s = socket.create_connection((host, port), 10)
s.sendall(struct.pack("!ii", 8, 80877103))
assert s.recv(1) == b"S", "no TLS"
s = ssl.create_default_context().wrap_socket(s, server_hostname=host)
print(s.getpeercert()["subjectAltName"])
' `

// The router of databases is all that a sandbox reaches of its host. There is no
// database of this name, which the router does not tell to who has no password.
func TestSandboxReachesTheRouterOfDatabases(t *testing.T) {
	const id = "00000000-0000-4000-8000-000000000000"
	c := newTenant(t)
	s := c.create(t)
	domain, routers := stack.DBDomain, theStack.Routers()
	_, port, _ := strings.Cut(routers[0], ":")
	reached := func() {
		t.Helper()
		got := c.exec(t, s.ID, handshake+id+"."+domain+" "+port)
		if !strings.HasPrefix(got, "198.18.0.1\n") || !strings.Contains(got, "*."+domain) {
			t.Errorf("the handshake with the router: %q", got)
		}
	}
	reached()
	var others []string
	for _, r := range routers[1:] {
		_, other, _ := strings.Cut(r, ":")
		others = append(others, "198.18.0.1:"+other)
	}
	if got := c.exec(t, s.ID, reach+strings.Join(others, " ")); strings.Contains(got, "open") {
		t.Errorf("the guest reaches %s", got)
	}
	if got := c.exec(t, s.ID, "getent ahostsv4 "+domain+" other.invalid || echo none"); got != "none\n" {
		t.Errorf("names that are no database's are %q", got)
	}

	// A fork has what its parent has, and a daemon that restarts answers again.
	host := theStack.Process(s.AgentID)
	restartAtEnd(t, host)
	if err := host.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	healthy(t)
	reached()
	s = &c.fork(t, s.ID, api.Fork{}).Children[0]
	reached()
}
