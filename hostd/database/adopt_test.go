package database

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	guestpg "github.com/berth-cloud/berth/guest/pg/agent"
	"github.com/berth-cloud/berth/guest/pg/pgtest"
	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/bucket"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/tier"
)

// withDisk is a database whose data came with a copied disk.
func withDisk(name string) hostapi.DatabaseSpec {
	s := spec(name)
	s.Restore = &hostapi.DatabaseRestore{WithDisk: true}
	return s
}

// copyOf is a guest on a copy of another one's disk, which stands still meanwhile.
func copyOf(t *testing.T, g *guest, change ...func(*guestpg.Config)) *guest {
	t.Helper()
	c := newGuest(t)
	c.stop()
	g.stop()
	for _, f := range change {
		f(&c.cfg)
	}
	must(t, os.RemoveAll(c.cfg.Postgres.Dir))
	out, err := exec.Command("cp", "-a", g.cfg.Postgres.Dir, c.cfg.Postgres.Dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.cfg.Postgres.Program = g.cfg.Postgres.Program
	c.run(t)
	return c
}

// A copy of a disk becomes a database of its own, also one of a database that was
// itself restored, and under the next daemon it still is.
func TestADatabaseThatCameWithItsDisk(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	written(t, h)
	from := h.database(t, idA, restoreOf(one, nil))
	h.await(t, idA, "restorable", restorable)
	h.boxes.remove(idA)
	objects := h.objects(t)

	g := copyOf(t, from)
	h.boxes.put(idB, g)
	own := strings.TrimSuffix(two, "1") + "2"
	_, err := h.Put(idB, withDisk(own))
	must(t, err)
	st := h.await(t, idB, "ready", ready)
	if st.Restore == nil || st.Restore.Phase != pgapi.RestoreDone || st.Restore.As != own {
		t.Errorf("restore = %+v", st.Restore)
	}
	if got := g.sql(t, "SELECT count(*) FROM t"); got != "2" {
		t.Errorf("%s rows, want 2", got)
	}
	h.await(t, idB, "restorable", restorable)
	h.stop()
	h.start()
	h.await(t, idB, "ready", ready)
	for key := range h.objects(t) {
		if !strings.HasPrefix(key, "pg/"+own+"/") && !objects[key] {
			t.Errorf("%s was written", key)
		}
	}
}

// A copy of a disk without room becomes a database of its own, although it takes no writes
// until it is one.
func TestADatabaseThatCameWithAFullDisk(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	h := newHost(t)
	g := copyOf(t, newGuest(t), func(c *guestpg.Config) { c.Reserve = guestpg.Reserve{Limit: 1 << 60, Stop: 1 << 59, Ballast: 1} })
	client := pgapi.NewClient(func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", g.addr()) })
	pgtest.Await(t, "a standby", func() bool {
		st, err := client.Status(t.Context())
		return err == nil && st.Server != nil && st.Server.InRecovery
	})
	h.boxes.put(idB, g)
	_, err := h.Put(idB, withDisk(two))
	must(t, err)
	h.await(t, idB, "ready", ready)
	_, err = h.SetCredentials(t.Context(), idB, app)
	must(t, err)
}

// objects are the keys in the bucket.
func (h *host) objects(t *testing.T) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	must(t, h.bucket.Walk(t.Context(), "", func(o bucket.Object) error { keys[o.Key] = true; return nil }))
	return keys
}

// What the guest tells of the other database's restore is not the new one's.
func TestAnothersRestoreIsNotItsOwn(t *testing.T) {
	t.Parallel()
	st := pgapi.Status{State: pgapi.StateReady, Ready: true, Server: &pgapi.ServerStatus{}, Restore: &pgapi.RestoreStatus{Phase: pgapi.RestoreDone, As: "other/1", WALFiles: 7}}
	for own, want := range map[string]bool{one: false, "other/1": true} {
		s := withDisk(own)
		a := seen(time.Unix(100000, 0), &boxes{}, st)
		a.spec = &s
		got := a.state()
		if got.Ready != want || (got.Restore.Phase == pgapi.RestoreDone) != want || (got.Restore.WALFiles == 7) != want {
			t.Errorf("%s: %+v, %+v", own, got, got.Restore)
		}
	}
}

// Data that a guest's own program cannot adopt is never the database's.
func TestAGuestThatAdoptsNothing(t *testing.T) {
	t.Parallel()
	guest := httptest.NewServer(http.NotFoundHandler())
	defer guest.Close()
	a := seen(time.Unix(100000, 0), &boxes{}, pgapi.Status{State: pgapi.StateReady, Ready: true})
	a.cfg.Log = slog.New(slog.DiscardHandler)
	s := withDisk(one)
	a.spec = &s
	a.client = pgapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", guest.Listener.Addr().String())
	})
	done, err := a.adoptStep(t.Context(), &s, &a.seen.status)
	if _, final := errors.AsType[errRestoreFailed](err); done || !final {
		t.Errorf("%t, %v", done, err)
	}
}
