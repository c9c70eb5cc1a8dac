package raftstore

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

// Two of three replicas are lost. What was acknowledged is in the third's directory, in its
// snapshot or the log behind it, and is put into a new cluster.
func TestSalvageOfTheLastReplica(t *testing.T) {
	tier.Slow(t)
	for name, conf := range map[string]func(*Config){"log alone": nil, "snapshot and log": small} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, conf)
			last := c.followers()[0]
			for i := range 100 {
				c.update(putWorkspace(fmt.Sprintf("w%03d", i), strings.Repeat("v", i)))
			}
			if conf != nil {
				await(t, "a snapshot", func() bool { return last.Status().LastSnapshotIndex > 50 })
				c.update(putWorkspace("behind the snapshot", ""))
			}
			c.converged()
			want := dump(last.View())
			if _, err := Salvage(last.dir, RecordTables(), &bytes.Buffer{}, nil); err == nil || !strings.Contains(err.Error(), "stop it") {
				t.Fatalf("of a replica that runs: %v", err)
			}
			for _, r := range c.all {
				c.stop(r)
			}
			before := filesOf(t, last.dir)
			var backup bytes.Buffer
			if index, err := Salvage(last.dir, RecordTables(), &backup, nil); err != nil || index == 0 {
				t.Fatalf("up to %d, %v", index, err)
			}
			if after := filesOf(t, last.dir); after != before {
				t.Errorf("the directory had\n%s\nand has\n%s", before, after)
			}
			fresh := newCluster(t, 1, nil)
			if err := fresh.leader().RestoreBackup(bg, &backup, nil); err != nil {
				t.Fatal(err)
			}
			if got := dump(fresh.leader().View()); got != want {
				t.Errorf("the new cluster has\n%s\nthe old one had\n%s", got, want)
			}
			// The old one can go on, too: nothing was changed.
			for _, r := range c.all {
				c.start(r)
			}
			if got := dump(c.leader().View()); got != want {
				t.Errorf("the old cluster has\n%s\nand had\n%s", got, want)
			}
		})
	}
}

// What is salvaged says who the last members were, wherever they are told: the backup may
// have to name them.
func TestSalvageAmendsWhatItWritesByTheLastMembers(t *testing.T) {
	for name, conf := range map[string]func(*Config){"log alone": nil, "snapshot and log": small} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, conf)
			c.update(func(tx *Tx) error {
				Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: record.ClusterID}, Name: "old", Removed: []string{"z"}})
				return nil
			})
			gone, last := c.followers()[0], c.leader()
			if err := last.RemovePeer(bg, gone.id); err != nil {
				t.Fatal(err)
			}
			c.stop(gone)
			if conf != nil {
				after := last.Status().LastLogIndex
				for i := 0; last.Status().LastSnapshotIndex <= after; i++ {
					c.update(putWorkspace(fmt.Sprintf("w%03d", i), ""))
				}
			}
			var want []string
			for _, r := range c.up() {
				want = append(want, r.id)
				c.stop(r)
			}
			var backup bytes.Buffer
			_, err := Salvage(last.dir, RecordTables(), &backup, func(members []Server) []Amendment {
				return []Amendment{AmendBy(record.Clusters, record.ClusterID, func(was *record.Cluster, ok bool) *record.Cluster {
					if !ok {
						t.Fatal("the row that is there is not given")
					}
					row := was.Clone()
					for _, m := range members {
						row.Removed = append(row.Removed, m.ID)
					}
					return row
				})}
			})
			if err != nil {
				t.Fatal(err)
			}
			fresh := newCluster(t, 1, nil).leader()
			added := AmendBy(record.Clusters, "another", func(was *record.Cluster, ok bool) *record.Cluster {
				if ok || was != nil {
					t.Errorf("a row that is not there is %+v", was)
				}
				return &record.Cluster{Name: "added"}
			})
			if err := fresh.RestoreBackup(bg, &backup, nil, added); err != nil {
				t.Fatal(err)
			}
			row, _ := Get(fresh.View(), record.Clusters, record.ClusterID)
			if row == nil || row.Name != "old" || !slices.Equal(row.Removed, append([]string{"z"}, want...)) {
				t.Errorf("%+v, want %q removed", row, want)
			}
			if row, _ := Get(fresh.View(), record.Clusters, "another"); row == nil || row.Name != "added" {
				t.Errorf("what was added is %+v", row)
			}
		})
	}
}

// filesOf lists what is in a directory, and how much.
func filesOf(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			fmt.Fprintln(&out, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestSalvageSaysWhatIsMissing(t *testing.T) {
	salvaged := func(dir string) error {
		_, err := Salvage(dir, RecordTables(), &bytes.Buffer{}, nil)
		return err
	}
	if err := salvaged(t.TempDir()); err == nil || !strings.Contains(err.Error(), "raft.db") {
		t.Errorf("an empty directory: %v", err)
	}
	c := newCluster(t, 1, small)
	r := c.all[0]
	for i := 0; r.Status().Counters.Snapshots < 2; i++ {
		c.update(putWorkspace(fmt.Sprintf("w%03d", i), ""))
	}
	c.stop(r)
	all, err := filepath.Glob(filepath.Join(r.dir, "snapshots", "*", "state.bin"))
	if err != nil || len(all) != 2 {
		t.Fatalf("snapshots %v: %v", all, err)
	}
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := salvaged(r.dir); err == nil || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("damaged snapshots: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	if err := salvaged(r.dir); err == nil || !strings.Contains(err.Error(), "the log begins with entry") {
		t.Errorf("no snapshot, and a log that begins later: %v", err)
	}
	empty := newCluster(t, 1, nil).all[0]
	dir := empty.dir
	if err := empty.Close(); err != nil {
		t.Fatal(err)
	}
	empty.Store = nil
	if err := salvaged(dir); err == nil || !strings.Contains(err.Error(), "no records") {
		t.Errorf("a log without a record: %v", err)
	}
}
