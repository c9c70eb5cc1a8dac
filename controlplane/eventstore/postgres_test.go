package eventstore

import (
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/berth-cloud/berth/controlplane/eventstore/postgrestest"
	"github.com/berth-cloud/berth/tier"
)

// server is the PostgreSQL server shared by this package's tests, started by the
// first that needs it; each test has a database of its own.
var server struct {
	once sync.Once
	*postgrestest.Server
	err  error
	next int
	mu   sync.Mutex
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.Server != nil {
		server.Remove()
	}
	os.Exit(code)
}

// postgres returns the DSN of a new database.
func postgres(t *testing.T) string {
	t.Helper()
	tier.Root(t)
	server.once.Do(func() { server.Server, server.err = postgrestest.New() })
	if server.err != nil {
		t.Fatal(server.err)
	}
	server.mu.Lock()
	server.next++
	name := "events" + strconv.Itoa(server.next)
	server.mu.Unlock()
	if err := server.CreateDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return server.URL(name)
}
