package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/scripts/devstack/stack"
)

func (c *tenant) snapshot(t *testing.T, id, name string) *api.Snapshot {
	t.Helper()
	snap, err := c.CreateSnapshot(t.Context(), id, api.CreateSnapshot{Name: name}, rand.Text())
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.DeleteSnapshot(ctx, snap.ID); err != nil && api.StatusOf(err) != 404 {
			t.Errorf("delete snapshot: %v", err)
		}
	})
	return snap
}

// other is the host that is not this one.
func other(t *testing.T, id string) *stack.Process {
	t.Helper()
	for _, p := range theStack.HostProc {
		if p.ID != id {
			return p
		}
	}
	t.Fatal("there is one host only")
	return nil
}

func TestSnapshotIsRestoredAnywhereAndOften(t *testing.T) {
	c := newTenant(t)
	source := c.make(t, api.CreateSandbox{Env: api.StringMap{"KEPT": "yes"}})
	c.exec(t, source.ID, survivor)
	c.livesOn(t, source.ID, 1)
	c.exec(t, source.ID, "echo on-disk > /root/f")
	snap := c.snapshot(t, source.ID, "before")
	if snap.SandboxID != source.ID || snap.Template != stack.BaseTemplate || snap.Name != "before" || snap.Status != api.SnapshotReady ||
		!snap.Stored || snap.AgentID != source.AgentID || snap.PauseMS <= 0 || snap.MemoryBytes <= 0 || snap.DiskBytes <= 0 ||
		snap.SizeBytes != snap.MemoryBytes+snap.DiskBytes {
		t.Errorf("it is %+v", snap)
	}
	t.Logf("the sandbox stood still for %d ms; %d MB", snap.PauseMS, snap.SizeBytes>>20)
	// It ran on, and what it does now is not in the snapshot.
	c.livesOn(t, source.ID, 2)
	c.exec(t, source.ID, "echo later > /root/f; pkill -f '[s]urvivor.py'")

	restored := func(host string) *api.Sandbox {
		t.Helper()
		s := c.make(t, api.CreateSandbox{FromSnapshot: snap.ID, Env: api.StringMap{"MORE": "too"}})
		if s.FromSnapshot == nil || *s.FromSnapshot != snap.ID || s.AgentID != host {
			t.Errorf("it is from %v on %s, want %s", s.FromSnapshot, s.AgentID, host)
		}
		c.livesOn(t, s.ID, 2)
		if got := c.run(t, s.ID, "cat /root/f; echo $KEPT $MORE"); got != "on-disk\nyes too" {
			t.Errorf("it has %q", got)
		}
		if m := metadataOf(t, c.events(t, s.ID)[0]); m["from_snapshot"] != snap.ID {
			t.Errorf("its first event says %v", m)
		}
		return s
	}
	ids := map[string]bool{c.run(t, source.ID, "cat /etc/machine-id"): true}
	away := other(t, source.AgentID)
	t.Run("on its own host", func(t *testing.T) {
		onlyOn(t, source.AgentID)
		for range 2 {
			ids[c.run(t, restored(source.AgentID).ID, "cat /etc/machine-id")] = true
		}
	})
	t.Run("on another host", func(t *testing.T) {
		onlyOn(t, away.ID)
		ids[c.run(t, restored(away.ID).ID, "cat /etc/machine-id")] = true
	})
	if len(ids) != 4 {
		t.Errorf("four machines have %d machine ids", len(ids))
	}

	// The list, its filter, and the end.
	second := c.snapshot(t, restored0(t, c, snap).ID, "")
	listed, _, err := c.ListSnapshots(t.Context(), "", api.Page{})
	if err != nil || len(listed) != 2 || listed[0].ID != second.ID || listed[1].ID != snap.ID {
		t.Errorf("listed %+v, %v", listed, err)
	}
	listed, _, err = c.ListSnapshots(t.Context(), source.ID, api.Page{})
	if err != nil || len(listed) != 1 || listed[0].ID != snap.ID {
		t.Errorf("of the sandbox: %+v, %v", listed, err)
	}
	_, err = newTenant(t, "stranger").GetSnapshot(t.Context(), snap.ID)
	refusal(t, err, 404, "not found")
	if err := c.DeleteSnapshot(t.Context(), snap.ID); err != nil {
		t.Error(err)
	}
	refusal(t, c.DeleteSnapshot(t.Context(), snap.ID), 404, "not found")
	_, err = c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate, FromSnapshot: snap.ID}, "")
	refusal(t, err, 404, "not found")
	if _, err := os.Stat(filepath.Join(snapshotStore(), "snapshots", snap.ID)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its stored copy: %v", err)
	}
	c.agrees(t, 20*time.Second)
}

// restored0 is a sandbox that is made from a snapshot, wherever.
func restored0(t *testing.T, c *tenant, snap *api.Snapshot) *api.Sandbox {
	t.Helper()
	return c.make(t, api.CreateSandbox{FromSnapshot: snap.ID})
}

// snapshotStore is the directory that the stack's hosts share.
func snapshotStore() string { return filepath.Join(theStack.Dir, "snapshots") }

// chunksSince are the store's pieces of content that are younger than a moment.
func chunksSince(t *testing.T, since time.Time) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join(snapshotStore(), "chunks"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".attrs") {
			return err
		}
		info, err := d.Info()
		if err == nil && info.ModTime().After(since) {
			out = append(out, path)
		}
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d new chunks, %v", len(out), err)
	}
	return out
}

func TestDamagedSnapshotIsRefusedByName(t *testing.T) {
	c := newTenant(t)
	source := c.create(t)
	away := other(t, source.AgentID)
	manifest := func(snap *api.Snapshot) string { return filepath.Join(snapshotStore(), "snapshots", snap.ID) }
	for name, spoil := range map[string]func(*testing.T, *api.Snapshot, []string) (file string){
		"a bit of a chunk flipped": func(t *testing.T, _ *api.Snapshot, chunks []string) string {
			replaceFile(t, chunks[0], func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b })
			return chunks[0]
		},
		"a chunk cut short": func(t *testing.T, _ *api.Snapshot, chunks []string) string {
			replaceFile(t, chunks[0], func(b []byte) []byte { return b[:len(b)/2] })
			return chunks[0]
		},
		"a chunk gone": func(t *testing.T, _ *api.Snapshot, chunks []string) string {
			if err := os.Remove(chunks[0]); err != nil {
				t.Fatal(err)
			}
			return chunks[0]
		},
		"a byte of the manifest changed": func(t *testing.T, snap *api.Snapshot, _ []string) string {
			replaceFile(t, manifest(snap), func(b []byte) []byte { b[len(b)*2/3]++; return b })
			return manifest(snap)
		},
		"the manifest cut short": func(t *testing.T, snap *api.Snapshot, _ []string) string {
			replaceFile(t, manifest(snap), func(b []byte) []byte { return b[:len(b)-10] })
			return manifest(snap)
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Bytes that no earlier snapshot has, in memory and on the disk.
			c.exec(t, source.ID, "head -c 3000000 /dev/urandom > /dev/shm/x; head -c 3000000 /dev/urandom > /x; sync")
			began := time.Now()
			snap := c.snapshot(t, source.ID, "")
			spoiled := spoil(t, snap, chunksSince(t, began))
			onlyOn(t, away.ID)
			s, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: stack.BaseTemplate, FromSnapshot: snap.ID}, "")
			if err == nil {
				c.deleteAtEnd(t, s.ID)
			}
			e := refusal(t, err, 422, "snapshot cannot be restored")
			if !strings.Contains(e.Detail, filepath.Base(spoiled)) && !strings.Contains(e.Detail, snap.ID) {
				t.Errorf("the detail %q does not name %s", e.Detail, filepath.Base(spoiled))
			}
		})
	}
	// Where it was taken nothing is missing.
	c.agrees(t, 20*time.Second)
}
