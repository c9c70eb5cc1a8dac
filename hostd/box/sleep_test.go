package box_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
)

// echoing has every port of a guest send back what it is sent.
func echoing(w *boxtest.World) {
	w.Port = func(context.Context, int, int) (net.Conn, error) {
		host, guest := net.Pipe()
		go func() {
			defer guest.Close()
			_, _ = io.Copy(guest, guest)
		}()
		return host, nil
	}
}

func quiet(context.Context) error { return nil }

func TestSleepIsRefusedWhileSomebodyIsConnected(t *testing.T) {
	w, d, _ := world(t)
	echoing(w)
	put(t, d, idA)
	conn, err := d.DialPort(t.Context(), idA, 5432)
	must(t, err)
	if _, err := d.Sleep(t.Context(), idA, quiet); !errors.Is(err, hosterr.ErrDatabaseBusy) {
		t.Errorf("sleep = %v, want ErrDatabaseBusy", err)
	}
	if open, ended := d.Tunnels(idA); open != 1 || !ended.IsZero() {
		t.Errorf("%d tunnels, the last one ended %s", open, ended)
	}
	must(t, conn.Close())
	if open, ended := d.Tunnels(idA); open != 0 || ended.IsZero() {
		t.Errorf("%d tunnels, the last one ended %s", open, ended)
	}
	for range 2 { // one that sleeps is left as it is
		b, err := d.Sleep(t.Context(), idA, quiet)
		must(t, err)
		if b.Status != hostapi.StatusHibernated {
			t.Errorf("status = %s", b.Status)
		}
	}
	_, err = d.Wake(t.Context(), idA)
	must(t, err)
	conn, err = d.DialPort(t.Context(), idA, 5432)
	must(t, err)
	must(t, conn.Close())
}

// Whoever comes while a box is put to sleep is refused before anything, and the box
// then stays awake. A wake waits for what becomes of it.
func TestWhoComesDuringASleepKeepsTheBoxAwake(t *testing.T) {
	w, d, _ := world(t)
	echoing(w)
	put(t, d, idA)
	var woken sync.WaitGroup
	_, err := d.Sleep(t.Context(), idA, func(ctx context.Context) error {
		if _, err := d.DialPort(ctx, idA, 5432); !errors.Is(err, hosterr.ErrNotRunning) {
			t.Errorf("dial = %v, want ErrNotRunning", err)
		}
		own, err := d.DialOwn(ctx, idA, 998) // the host's own calls go on
		must(t, err)
		must(t, own.Close())
		begun := make(chan struct{})
		woken.Go(func() {
			close(begun)
			if b, err := d.Wake(t.Context(), idA); err != nil || b.Status != hostapi.StatusRunning {
				t.Errorf("wake = %s, %v", b.Status, err)
			}
		})
		<-begun
		return nil
	})
	if !errors.Is(err, hosterr.ErrDatabaseBusy) {
		t.Errorf("sleep = %v, want ErrDatabaseBusy", err)
	}
	woken.Wait()
	wantStatus(t, d, idA, hostapi.StatusRunning)
	if _, err := d.Sleep(t.Context(), idA, func(context.Context) error { return boxtest.ErrInjected }); !errors.Is(err, boxtest.ErrInjected) {
		t.Errorf("sleep = %v", err)
	}
	conn, err := d.DialPort(t.Context(), idA, 5432)
	must(t, err)
	must(t, conn.Close())
}

// What is made sure of before a sleep may take long: whoever comes does not wait for it.
func TestWhoComesEndsThePreparationOfASleep(t *testing.T) {
	w, d, _ := world(t)
	echoing(w)
	put(t, d, idA)
	_, err := d.Sleep(t.Context(), idA, func(ctx context.Context) error {
		if _, err := d.DialPort(t.Context(), idA, 5432); !errors.Is(err, hosterr.ErrNotRunning) {
			t.Errorf("dial = %v, want ErrNotRunning", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Minute):
			return errors.New("it goes on, and the ports are shut")
		}
	})
	if !errors.Is(err, hosterr.ErrDatabaseBusy) {
		t.Errorf("sleep = %v, want ErrDatabaseBusy", err)
	}
	conn, err := d.DialPort(t.Context(), idA, 5432)
	must(t, err)
	must(t, conn.Close())
	b, err := d.Sleep(t.Context(), idA, func(ctx context.Context) error { return ctx.Err() })
	must(t, err)
	if b.Status != hostapi.StatusHibernated {
		t.Errorf("status = %s", b.Status)
	}
}

// A client either hears that the box does not run, before anything, or is served to
// the end.
func TestNoSleepCutsAConnection(t *testing.T) {
	w, d, _ := world(t)
	echoing(w)
	put(t, d, idA)
	ctx, cancel := context.WithCancel(t.Context())
	var sleeps, served atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				conn, err := d.DialPort(t.Context(), idA, 5432)
				if errors.Is(err, hosterr.ErrNotRunning) {
					_, err = d.Wake(t.Context(), idA)
					must(t, err)
					continue
				}
				must(t, err)
				for range 3 {
					_, err := conn.Write([]byte("x"))
					if err == nil {
						_, err = io.ReadFull(conn, make([]byte, 1))
					}
					if err != nil {
						t.Errorf("a connection was cut: %v (%v)", err, conn.Err())
					}
				}
				must(t, conn.Close())
				served.Add(1)
			}
		})
	}
	for sleeps.Load() < 20 || served.Load() < 100 {
		b, err := d.Sleep(t.Context(), idA, quiet)
		switch {
		case err == nil:
			if b.Status == hostapi.StatusHibernated {
				sleeps.Add(1)
			}
		case !errors.Is(err, hosterr.ErrDatabaseBusy):
			t.Errorf("sleep = %v", err)
		}
	}
	cancel()
	group.Wait()
}

func TestABoxBecomesADatabaseOnce(t *testing.T) {
	_, d, _ := world(t)
	put(t, d, idA)
	put(t, d, idB)
	of := func() *hostapi.DatabaseSpec {
		return &hostapi.DatabaseSpec{
			Archive:                hostapi.Archive{Name: "db/1", Key: make([]byte, 32)},
			Restore:                &hostapi.DatabaseRestore{From: hostapi.Archive{Name: "db/0", Key: make([]byte, 32)}},
			ArchiveIntervalSeconds: 60,
		}
	}
	must(t, d.SetDatabase(idA, of()))
	must(t, d.SetDatabase(idA, of()))
	changed := of()
	changed.BackupIntervalSeconds = 7
	must(t, d.SetDatabase(idA, changed))
	for what, other := range map[string]func(*hostapi.DatabaseSpec){
		"another archive": func(s *hostapi.DatabaseSpec) { s.Archive.Name = "db/2" },
		"another key":     func(s *hostapi.DatabaseSpec) { s.Archive.Key[0] = 1 },
		"another source":  func(s *hostapi.DatabaseSpec) { s.Restore.From.Name = "db/9" },
		"no source":       func(s *hostapi.DatabaseSpec) { s.Restore = nil },
	} {
		s := of()
		other(s)
		if err := d.SetDatabase(idA, s); !errors.Is(err, hosterr.ErrIllegalState) {
			t.Errorf("%s: %v, want ErrIllegalState", what, err)
		}
	}
	if _, err := d.Database(idB); !errors.Is(err, hosterr.ErrNotFound) {
		t.Errorf("a box that is none: %v", err)
	}
	if rec, _ := d.Ledger.Get(idA); rec.Database == nil || rec.Database.BackupIntervalSeconds != 7 {
		t.Errorf("ledger = %+v", rec.Database)
	}
	db, err := d.Database(idA)
	must(t, err)
	if len(d.Databases()) != 1 || db.Run == nil || db.MemoryMB != 512 || db.Spec.BackupIntervalSeconds != 7 {
		t.Errorf("database = %+v", db)
	}
	_, err = d.Pause(t.Context(), idA)
	must(t, err)
	if db, _ := d.Database(idA); db.Run != nil {
		t.Error("a paused one runs")
	}
}

// A sleep archives all that was written, a hibernation alone does not: what is archived
// after the wake depends on it, also where the daemon was started again meanwhile.
func TestADatabaseKnowsWhetherItSleptInOrder(t *testing.T) {
	_, d, _ := world(t)
	put(t, d, idA)
	must(t, d.SetDatabase(idA, &hostapi.DatabaseSpec{}))
	for _, settled := range []bool{true, false} {
		var err error
		if settled {
			_, err = d.Sleep(t.Context(), idA, quiet)
		} else {
			_, err = d.Hibernate(t.Context(), idA)
		}
		must(t, err)
		if rec, _ := d.Ledger.Get(idA); rec.Settled != settled {
			t.Errorf("the ledger says %t, want %t", rec.Settled, settled)
		}
		_, err = d.Wake(t.Context(), idA)
		must(t, err)
		if db, err := d.Database(idA); err != nil || db.Settled != settled || db.Since.IsZero() {
			t.Errorf("settled: %+v, %v", db, err)
		}
	}
}
