package limits_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/limits"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// Many create, delete, hibernate and wake at once while leaders come and go. No state
// that any replica ever has exceeds a quota, and the counter of the hour is in the end
// what was created.
// Without an hourly quota, no row that all creates write puts them in order.
func TestQuotasHoldWhateverHappensAtOnce(t *testing.T) {
	tier.Slow(t)
	t.Run("with an hourly quota", func(t *testing.T) { quotasHold(t, new(70)) })
	t.Run("without one", func(t *testing.T) { quotasHold(t, nil) })
}

func quotasHold(t *testing.T, hourly *int) {
	const most, memory, disk = 6, 40, 70
	c := testcluster.New(t, 3)
	ws := &record.Workspace{Meta: record.Meta{ID: "ws"}, Quotas: record.Quotas{
		Sandboxes: new(most), MemoryMB: new(memory), CreatesPerHour: hourly, DiskMB: new(disk),
	}}
	c.Update(func(tx *raftstore.Tx) error { raftstore.Put(tx, record.Workspaces, ws); return nil })
	tiers, err := limits.Load("", "")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var watchers, workers sync.WaitGroup
	for _, rep := range c.Replicas {
		watchers.Go(func() {
			for {
				view := rep.Store.View()
				if u := limits.UsageOf(view, "ws"); u.Sandboxes > most || u.MemoryMB > memory {
					t.Errorf("over: %+v", u)
				}
				if mb := limits.DiskOf(view, "ws"); mb > disk {
					t.Errorf("over: %d MB of disk", mb)
				}
				select {
				case <-view.Changed(record.Sandboxes.Name, record.Volumes.Name, record.Snapshots.Name):
				case <-stop:
					return
				}
			}
		})
	}
	watchers.Go(func() {
		for i := 0; ; i++ {
			if l := c.Leader(); i%2 == 0 {
				_ = l.Store.TransferLeadership(t.Context(), "")
			} else {
				c.Cut(l)
				testcluster.Await(t, "another leader", func() bool { return c.Leader() != l })
				c.Heal(l)
			}
			select {
			case <-time.After(300 * time.Millisecond):
			case <-stop:
				return
			}
		}
	})
	var refused atomic.Int64
	for w := range 8 {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(w)))
			for i, done := 0, 0; done < 40 && t.Context().Err() == nil; i++ {
				err := step(c.Leader().Store, tiers, t, r, fmt.Sprintf("sb-%d-%d", w, i))
				var e *apierror.Error
				switch {
				case errors.As(err, &e):
					refused.Add(1)
					done++
				case err == nil:
					done++
				} // otherwise the leader was lost, and what became of it is unknown
			}
		})
	}
	workers.Wait()
	close(stop)
	watchers.Wait()
	view := c.Leader().Store.View()
	created := len(raftstore.All(view, record.IdempotencyKeys))
	if hourly != nil {
		row, _ := raftstore.Get(view, record.WorkspaceCreates, "ws")
		if counted := limits.ReadHour(row.Seconds).Total(); counted != created || created > *hourly {
			t.Errorf("%d were counted, %d created, %d allowed", counted, created, *hourly)
		}
	}
	if refused.Load() == 0 || created < most {
		t.Errorf("%d created, %d refused: the test shows nothing", created, refused.Load())
	}
}

// step creates something, or changes what is there.
func step(store *raftstore.Store, tiers *limits.Tiers, t *testing.T, r *rand.Rand, id string) error {
	create, pick := r.IntN(2) == 0, r.IntN(100)
	if r.IntN(3) == 0 {
		return stepDisk(store, tiers, t, create, pick, id)
	}
	return store.Update(t.Context(), func(tx *raftstore.Tx) error {
		ws, _ := raftstore.Get(tx, record.Workspaces, "ws")
		if create {
			if err := tiers.Admit(tx, ws, limits.Need{Sandboxes: 1, CPU: 1, MemoryMB: 8, DiskMB: 9}); err != nil {
				return err
			}
			raftstore.Put(tx, record.Sandboxes, &record.Sandbox{
				Meta: record.Meta{ID: id}, WorkspaceID: "ws", Status: record.SandboxStarting, CPU: 1, MemoryMB: 8, DiskMB: 9,
			})
			raftstore.Put(tx, record.IdempotencyKeys, &record.IdempotencyKey{Meta: record.Meta{ID: id}})
			return nil
		}
		rows := raftstore.Find(tx, record.Sandboxes, "workspace", "ws")
		if len(rows) == 0 {
			return nil
		}
		row := rows[pick%len(rows)].Clone()
		switch row.Status {
		case record.SandboxStarting:
			row.Status = record.SandboxRunning
		case record.SandboxRunning:
			row.Status = record.SandboxHibernated
		default:
			raftstore.Delete(tx, record.Sandboxes, row.ID)
			return nil
		}
		raftstore.Put(tx, record.Sandboxes, row)
		return nil
	})
}

// stepDisk does so with volumes and snapshots.
func stepDisk(store *raftstore.Store, tiers *limits.Tiers, t *testing.T, create bool, pick int, id string) error {
	return store.Update(t.Context(), func(tx *raftstore.Tx) error {
		ws, _ := raftstore.Get(tx, record.Workspaces, "ws")
		volumes, snapshots := raftstore.Find(tx, record.Volumes, "workspace", "ws"), raftstore.Find(tx, record.Snapshots, "workspace", "ws")
		switch {
		case create && pick%2 == 0:
			if err := tiers.Admit(tx, ws, limits.Need{DiskMB: 11}); err != nil {
				return err
			}
			raftstore.Put(tx, record.Volumes, &record.Volume{Meta: record.Meta{ID: "vol-" + id}, WorkspaceID: "ws", Name: id, Status: record.ResourceCreating, SizeMB: 11})
		case create:
			if err := tiers.Admit(tx, ws, limits.Need{Snapshots: 1, DiskMB: 17}); err != nil {
				return err
			}
			raftstore.Put(tx, record.Snapshots, &record.Snapshot{
				Meta: record.Meta{ID: "snap-" + id}, WorkspaceID: "ws", Status: record.ResourceCreating, MemoryMB: 8, DiskMB: 9,
			})
		case pick%2 == 0 && len(volumes) > 0:
			raftstore.Delete(tx, record.Volumes, volumes[pick%len(volumes)].ID)
		case len(snapshots) > 0:
			row := snapshots[pick%len(snapshots)].Clone()
			if row.Status == record.ResourceReady {
				raftstore.Delete(tx, record.Snapshots, row.ID)
				return nil
			}
			row.Status, row.MemoryBytes, row.DiskBytes = record.ResourceReady, 3<<20, 1
			raftstore.Put(tx, record.Snapshots, row)
		}
		return nil
	})
}
