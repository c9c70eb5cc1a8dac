package sandbox

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// The disk of a box is kept only where a database that is still there was restored in
// another one.
func TestWhichDisksAreKept(t *testing.T) {
	c := testcluster.New(t, 1)
	for id, statuses := range map[string][]record.DatabaseStatus{
		"ready":     {record.DatabaseProvisioning, record.DatabaseReady},
		"restoring": {record.DatabaseProvisioning, record.DatabaseReady, record.DatabaseRestoring},
		"deleting":  {record.DatabaseProvisioning, record.DatabaseDeleting},
	} {
		for _, status := range statuses {
			c.Update(func(tx *raftstore.Tx) error {
				row := &record.Database{Meta: record.Meta{ID: id}, WorkspaceID: "ws"}
				if before, ok := raftstore.Get(tx, record.Databases, id); ok {
					row = before.Clone()
				}
				row.Status, row.SandboxID = status, "now-"+id
				raftstore.Put(tx, record.Databases, row)
				return nil
			})
		}
	}
	view := c.Leader().Store.View()
	for name, o := range map[string]struct {
		orphan
		kept bool
	}{
		"restored elsewhere":  {orphan{id: "before", archive: "ready/1"}, true},
		"being restored":      {orphan{id: "before", archive: "restoring/1764400000"}, true},
		"moved":               {orphan{id: "now-ready", archive: "ready/1"}, false},
		"being deleted":       {orphan{id: "before", archive: "deleting/1"}, false},
		"deleted":             {orphan{id: "before", archive: "gone/1"}, false},
		"no database's":       {orphan{id: "before"}, false},
		"a host that is old":  {orphan{id: "now-ready"}, false},
		"a name that is none": {orphan{id: "before", archive: "/"}, false},
	} {
		if got := wasDatabase(view, o.orphan); got != o.kept {
			t.Errorf("%s: %t", name, got)
		}
	}
	lost := record.HostLoss{At: time.Now()}
	for name, s := range map[string]struct {
		record.Sandbox
		kept bool
	}{
		"its host returns during the failover": {record.Sandbox{Owner: &record.Owner{Type: OwnerDatabase, ID: "restoring"}, Lost: lost}, true},
		"a failover of what ran":               {record.Sandbox{Owner: &record.Owner{Type: OwnerDatabase, ID: "restoring"}}, false},
		"a delete":                             {record.Sandbox{Owner: &record.Owner{Type: OwnerDatabase, ID: "deleting"}, Lost: lost}, false},
		"an app's":                             {record.Sandbox{Owner: &record.Owner{Type: OwnerApp, ID: "restoring"}, Lost: lost}, false},
		"nobody's":                             {record.Sandbox{Lost: lost}, false},
	} {
		if got := lostDatabase(view, &s.Sandbox); got != s.kept {
			t.Errorf("%s: %t", name, got)
		}
	}
}
