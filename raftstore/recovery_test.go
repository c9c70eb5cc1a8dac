package raftstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/raftstore/internal/plaintcp"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestRestartOfEach(t *testing.T) {
	c := newCluster(t, 3, nil)
	for i, r := range c.all {
		c.update(putWorkspace(fmt.Sprintf("before-%d", i), "x"))
		c.stop(r)
		c.update(putWorkspace(fmt.Sprintf("without-%d", i), "x"))
		c.start(r)
		c.converged()
	}
	// All at once: what was acknowledged is on disk.
	want := dump(c.leader().View())
	for _, r := range c.all {
		c.stop(r)
	}
	for _, r := range c.all {
		c.start(r)
	}
	if got := dump(c.leader().View()); got != want {
		t.Errorf("after a restart of all:\n%s\nbefore:\n%s", got, want)
	}
	c.converged()
	// A cluster that has state is not bootstrapped again.
	if err := c.all[0].Bootstrap([]Server{{"other", "127.0.0.1:1"}}); err != nil {
		t.Error(err)
	}
	if n := len(c.all[0].Status().Peers); n != 3 {
		t.Errorf("%d peers", n)
	}
}

// small makes snapshots frequent and logs short.
func small(cfg *Config) {
	cfg.SnapshotThreshold = 32
	cfg.SnapshotInterval = 20 * time.Millisecond
	cfg.TrailingLogs = 8
}

func TestFollowerFarBehindGetsASnapshot(t *testing.T) {
	c := newCluster(t, 3, small)
	c.update(putWorkspace("first", ""))
	behind := c.followers()[0]
	c.stop(behind)
	for i := range 200 {
		c.update(putWorkspace(fmt.Sprintf("w%03d", i%50), strings.Repeat("v", i)))
	}
	lead := c.leader()
	await(t, "a snapshot past what the follower has", func() bool { return lead.Status().LastSnapshotIndex > 100 })
	c.start(behind)
	c.converged()
	if n := behind.Status().Counters.Restores; n == 0 {
		t.Error("the follower replayed a log that should have gone")
	}
	// And it restarts from the snapshot it was given.
	c.stop(behind)
	c.start(behind)
	c.converged()
}

// A damaged snapshot on disk is not taken for the state.
func TestDamagedSnapshotOnDisk(t *testing.T) {
	c := newCluster(t, 3, small)
	r := c.followers()[0]
	for i := 0; r.Status().Counters.Snapshots < 2; i++ {
		c.update(putWorkspace(fmt.Sprintf("w%03d", i), ""))
	}
	c.stop(r)
	files, err := filepath.Glob(filepath.Join(r.dir, "snapshots", "*", "state.bin"))
	if err != nil || len(files) != 2 {
		t.Fatalf("snapshots %v: %v", files, err)
	}
	// The newest alone, whose predecessor the log does not reach back to, and
	// then both.
	slices.SortFunc(files, func(a, b string) int { return modTime(t, b).Compare(modTime(t, a)) })
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		stream, err := plaintcp.Listen(r.addr)
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{ID: r.id, Dir: r.dir, Tables: RecordTables(), StreamLayer: stream, Logger: quietLog()}
		if s, err := Open(bg, cfg); err == nil {
			_ = s.Close()
			t.Fatal("opened")
		} else if !strings.Contains(err.Error(), "start raft") {
			t.Errorf("error %v", err)
		}
	}
	// The replica is replaced. It is taken out first: one that comes back with
	// its vote and its log forgotten must not be counted for what it said before.
	if err := c.leader().RemovePeer(bg, r.id); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(r.dir); err != nil {
		t.Fatal(err)
	}
	c.start(r)
	if err := c.leader().AddVoter(bg, Server{r.id, r.addr}); err != nil {
		t.Fatal(err)
	}
	c.converged()
}

func modTime(t *testing.T, path string) time.Time {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

func TestMembership(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.update(putWorkspace("w1", ""))
	fourth := c.place()
	c.start(fourth)
	lead := c.leader()
	if err := lead.AddVoter(bg, Server{fourth.id, fourth.addr}); err != nil {
		t.Fatal(err)
	}
	c.converged()
	old := c.followers()[0]
	if old == fourth {
		old = c.followers()[1]
	}
	if err := lead.RemovePeer(bg, old.id); err != nil {
		t.Fatal(err)
	}
	if err := lead.RemovePeer(bg, old.id); err != nil {
		t.Errorf("removed again: %v", err)
	}
	c.stop(old)
	c.all = slices.DeleteFunc(c.all, func(r *replica) bool { return r == old })
	c.update(putWorkspace("w2", ""))
	st := c.leader().Status()
	if len(st.Peers) != 3 {
		t.Errorf("peers %+v", st.Peers)
	}
	await(t, "contact with every peer", func() bool {
		return !slices.ContainsFunc(c.leader().Status().Peers, func(p Peer) bool {
			return !p.Voter || p.LastContact.IsZero() || p.LastLogIndex == 0
		})
	})
	// The leader removes itself.
	lead = c.leader()
	if err := lead.RemovePeer(bg, lead.id); err != nil {
		t.Fatal(err)
	}
	await(t, "the removed leader to step down", func() bool { return !lead.IsLeader() })
	c.stop(lead)
	c.all = slices.DeleteFunc(c.all, func(r *replica) bool { return r == lead })
	c.update(putWorkspace("w3", ""))
	c.converged()
	if st := c.leader().Status(); len(st.Peers) != 2 || st.State != "leader" || st.LeaderID != st.NodeID || st.Term == 0 || st.AppliedIndex == 0 {
		t.Errorf("status %+v", st)
	}
}

// A restore leaves the log room to grow, and nothing of the backup stays.
func TestABackupThatTheDiskHasNoRoomForIsRefused(t *testing.T) {
	dir := smallDisk(t, "72m")
	c := newCluster(t, 1, func(cfg *Config) { cfg.Dir = dir })
	c.update(putWorkspace("w", "as it was"))
	var backup bytes.Buffer
	if err := c.leader().Backup(&backup); err != nil {
		t.Fatal(err)
	}
	c.update(putWorkspace("w", "changed"))
	before, err := c.leader().DiskFree()
	if err != nil || before <= logRoom || before > 72<<20 {
		t.Fatalf("%d bytes are free, %v", before, err)
	}
	if err := c.leader().RestoreBackup(bg, io.MultiReader(bytes.NewReader(backup.Bytes()), zeros{}), nil); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a backup without an end: %v", err)
	}
	if after, err := c.leader().DiskFree(); err != nil || after < before-1<<20 {
		t.Errorf("%d bytes are free, %v; before, %d were", after, err, before)
	}
	if err := c.leader().RestoreBackup(bg, &backup, nil); err != nil {
		t.Fatal(err)
	}
	if w, _ := Get(c.leader().View(), record.Workspaces, "w"); w.Name != "as it was" {
		t.Errorf("restored is %+v", w)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestBackupAndRestore(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.update(putWorkspace("kept", "as it was"))
	var backup bytes.Buffer
	if err := c.leader().Backup(&backup); err != nil {
		t.Fatal(err)
	}
	c.update(putWorkspace("kept", "changed"))
	c.update(putWorkspace("later", ""))
	good := backup.Bytes()
	before := dump(c.leader().View())
	for name, b := range map[string][]byte{"empty": nil, "truncated": good[:len(good)-1], "not one": []byte(strings.Repeat("x", 4096))} {
		if err := c.leader().RestoreBackup(bg, bytes.NewReader(b), nil); !errors.Is(err, ErrBadBackup) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if dump(c.leader().View()) != before {
		t.Fatal("a bad backup changed something")
	}
	if err := c.followers()[0].RestoreBackup(bg, bytes.NewReader(good), nil); !errors.Is(err, ErrNotLeader) {
		t.Errorf("on a follower: %v", err)
	}
	if err := c.leader().RestoreBackup(bg, bytes.NewReader(good), nil); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		v := c.leader().View()
		if w, ok := Get(v, record.Workspaces, "kept"); !ok || w.Name != "as it was" {
			t.Errorf("kept: %+v", w)
		}
		if _, ok := Get(v, record.Workspaces, "later"); ok {
			t.Error("what came after the backup is there")
		}
		c.converged()
	}
	check()
	c.update(putWorkspace("next", ""))
	for _, r := range c.all {
		c.stop(r)
	}
	for _, r := range c.all {
		c.start(r)
	}
	check()
	if left, _ := filepath.Glob(filepath.Join(c.all[0].dir, "restore-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	// Into another cluster.
	d := newCluster(t, 1, nil)
	if err := d.leader().RestoreBackup(bg, bytes.NewReader(good), nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := Get(d.leader().View(), record.Workspaces, "kept"); !ok {
		t.Error("not in the other cluster")
	}
	d.update(putWorkspace("next", ""))
}

// An entry that no replica understands stops all of them, with a reason and
// without a panic, and again after a restart.
func TestEntryNotUnderstoodStopsTheStore(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.update(putWorkspace("w", ""))
	before := dump(c.leader().View())
	lead := c.leader()
	if err := lead.raft.Apply([]byte{99}, 0).Error(); err != nil {
		t.Fatal(err)
	}
	// Whoever writes meanwhile is not told that it worked.
	if err := lead.Update(bg, putWorkspace("late", "")); err == nil {
		t.Error("a failed replica acknowledged a write")
	}
	// Each that applies it stops. The last one may be left without a majority
	// to tell it that the entry is committed.
	stopped := func() (out []*replica) {
		for _, r := range c.all {
			select {
			case <-r.Failed():
				out = append(out, r)
			default:
			}
		}
		return out
	}
	await(t, "a majority to stop", func() bool { return len(stopped()) >= 2 })
	for _, r := range stopped() {
		if err := r.Err(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "unknown format version 99") {
			t.Errorf("%s: %v", r.id, err)
		}
		await(t, "raft to stop", func() bool { return r.Status().State == "shutdown" })
		if dump(r.View()) != before {
			t.Errorf("%s changed", r.id)
		}
		if err := r.Update(bg, putWorkspace("w2", "")); !errors.Is(err, ErrNotLeader) || !errors.Is(err, ErrFailed) {
			t.Errorf("update on a failed replica: %v", err)
		}
	}
	for _, r := range c.all {
		c.stop(r)
	}
	for _, r := range c.all {
		c.start(r)
	}
	await(t, "a majority to stop again", func() bool { return len(stopped()) >= 2 })
}

// A leader that is cut off answers nothing once the others may have another.
func TestIsolatedLeader(t *testing.T) {
	streams := map[string]*plaintcp.Stream{}
	c := newCluster(t, 3, func(cfg *Config) { streams[cfg.ID] = cfg.StreamLayer.(*plaintcp.Stream) })
	c.update(putWorkspace("w", "old"))
	lead := c.leader()
	streams[lead.id].Cut(true)
	ctx, cancel := context.WithTimeout(bg, 5*time.Second)
	defer cancel()
	if _, err := lead.VerifiedView(ctx); !errors.Is(err, ErrNotLeader) {
		t.Errorf("verified view: %v", err)
	}
	if err := lead.Update(ctx, putWorkspace("w", "lost")); !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrLeadershipLost) {
		t.Errorf("update: %v", err)
	}
	// fn's own decision, made on what may be out of date, is not returned.
	if err := lead.Update(ctx, func(*Tx) error { return errors.New("not found") }); !errors.Is(err, ErrNotLeader) {
		t.Errorf("update that decides: %v", err)
	}
	c.update(putWorkspace("w", "new"))
	streams[lead.id].Cut(false)
	c.converged()
	if w, _ := Get(lead.View(), record.Workspaces, "w"); w.Name != "new" {
		t.Errorf("%+v", w)
	}
}

// What a restored state is to have beyond the backup it has from its first
// moment, on every replica.
func TestAmendmentsArePartOfARestore(t *testing.T) {
	c := newCluster(t, 3, nil)
	leader := c.leader()
	put := func(id, name string) {
		t.Helper()
		err := leader.Update(t.Context(), func(tx *Tx) error {
			Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: id}, Name: name})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put(record.ClusterID, "old")
	put("other", "stays")
	var backup bytes.Buffer
	if err := leader.Backup(&backup); err != nil {
		t.Fatal(err)
	}
	put(record.ClusterID, "later")
	amended := AmendBy(record.Clusters, record.ClusterID, func(was *record.Cluster, _ bool) *record.Cluster {
		if was.Name != "old" {
			t.Errorf("the backup has %q", was.Name)
		}
		return &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Name: "new", Keep: time.Hour}
	})
	if err := leader.RestoreBackup(t.Context(), &backup, nil, amended); err != nil {
		t.Fatal(err)
	}
	for _, r := range c.all {
		await(t, "restored state of "+r.id, func() bool {
			got, ok := Get(r.View(), record.Clusters, record.ClusterID)
			other, there := Get(r.View(), record.Clusters, "other")
			return ok && there && got.Name == "new" && got.Keep == time.Hour && other.Name == "stays"
		})
	}
	put(record.ClusterID, "and on")
}
