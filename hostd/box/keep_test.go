package box_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/box/boxtest"
	"github.com/berth-cloud/berth/hostd/hostapi"
)

func keeping(d time.Duration) func(*box.Config, *box.Deps) {
	return func(c *box.Config, _ *box.Deps) { c.KeepDisks = d }
}

// lost makes a box a database's with a disk, and ends its VMM, as a fence does.
func lost(t *testing.T, w *boxtest.World, d *daemon, id string) {
	t.Helper()
	put(t, d, id)
	must(t, os.WriteFile(w.Paths.Overlay(id), []byte("rows"), 0o600))
	must(t, d.SetDatabase(id, &hostapi.DatabaseSpec{Archive: hostapi.Archive{Name: "db/1", Key: make([]byte, 32)}}))
	w.VMM(id).Die(syscall.SIGKILL)
	await(t, func() bool { b, _ := d.Get(id); return b.Status == hostapi.StatusFailed })
}

func kept(t *testing.T, w *boxtest.World) (ids []string) {
	t.Helper()
	entries, err := os.ReadDir(w.Paths.Kept())
	must(t, err)
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// Of a database that was restored elsewhere the disk stays, with a note of what it is, for
// so long, and nothing else of its box.
func TestTheDiskOfALostDatabaseIsKept(t *testing.T) {
	now := time.Now()
	w, d, failing := boxtest.Faulty(t, keeping(time.Hour), func(_ *box.Config, deps *box.Deps) { deps.Now = func() time.Time { return now } })
	lost(t, w, d, idA)
	if b, _ := d.Get(idA); b.Archive != "db/1" || b.State().Archive != "db/1" {
		t.Errorf("the leader is told of %+v", b)
	}
	failing.At("remove-cgroup") // what is begun goes on as it was begun
	if err := d.DeleteKeepingDisk(t.Context(), idA, 1); err == nil {
		t.Fatal("a delete succeeds whose step fails")
	}
	failing.At("")
	must(t, d.Delete(t.Context(), idA, 1))
	nothingLeft(t, w, d)
	raw, err := os.ReadFile(filepath.Join(w.Paths.KeptDisk(idA), "overlay.img"))
	if err != nil || string(raw) != "rows" {
		t.Errorf("disk %q, %v", raw, err)
	}
	var note box.KeptDisk
	raw, err = os.ReadFile(filepath.Join(w.Paths.KeptDisk(idA), "kept.json"))
	must(t, err)
	must(t, json.Unmarshal(raw, &note))
	if note.DatabaseArchive != "db/1" || note.WorkspaceID != "ws" || note.BuildID == "" || !note.KeptAt.Equal(now) {
		t.Errorf("%+v", note)
	}
	now = now.Add(time.Hour - time.Second)
	d.RemoveKeptDisks()
	if got := kept(t, w); len(got) != 1 {
		t.Errorf("too early only %q are there", got)
	}
	now = now.Add(time.Second)
	d.RemoveKeptDisks()
	if got := kept(t, w); len(got) != 0 {
		t.Errorf("%q are still there", got)
	}
}

func TestDisksThatAreNotKept(t *testing.T) {
	w, d, _ := boxtest.Faulty(t, keeping(time.Hour))
	put(t, d, idA)
	must(t, d.DeleteKeepingDisk(t.Context(), idA, 1)) // it is no database
	lost(t, w, d, idB)
	must(t, d.Delete(t.Context(), idB, 1))
	nothingLeft(t, w, d)
	if got := kept(t, w); len(got) != 0 {
		t.Errorf("%q are kept", got)
	}
	w, d, _ = boxtest.Faulty(t) // by a host that is told to keep none
	lost(t, w, d, idA)
	must(t, d.DeleteKeepingDisk(t.Context(), idA, 1))
	if got := kept(t, w); len(got) != 0 {
		t.Errorf("%q are kept", got)
	}
}
