package flow_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// What takes as long as a guest wants is its workspace's.
func TestFlowsOfGuestsHaveAWorkspace(t *testing.T) {
	p := testplane.New(t, 1, nil)
	n := p.LeaderNode()
	meta := record.Meta{ID: "x"}
	err := p.Leader().Store.Update(t.Context(), func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Sandboxes, &record.Sandbox{Meta: meta, WorkspaceID: "ws", Status: record.SandboxStarting})
		raftstore.Put(tx, record.Snapshots, &record.Snapshot{Meta: meta, WorkspaceID: "ws", Status: record.ResourceCreating})
		raftstore.Put(tx, record.Volumes, &record.Volume{Meta: meta, WorkspaceID: "ws", Name: "v", Status: record.ResourceCreating})
		raftstore.Put(tx, record.Databases, &record.Database{Meta: meta, WorkspaceID: "ws", Status: record.DatabaseProvisioning})
		raftstore.Put(tx, record.Apps, &record.App{Meta: meta, WorkspaceID: "ws", Status: record.AppCreated})
		raftstore.Put(tx, record.Deployments, &record.Deployment{Meta: meta, WorkspaceID: "ws", AppID: "x", Status: record.DeploymentQueued})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	forked, err := json.Marshal(fork.Fork{ParentID: "gone", Children: []fork.Child{{ID: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	flows := map[string]record.Flow{
		sandbox.Resource.CreateKind():  {Subject: sandbox.Resource.Subject("x")},
		sandbox.Resource.DeleteKind():  {Subject: sandbox.Resource.Subject("x")},
		snapshot.Resource.CreateKind(): {Subject: snapshot.Resource.Subject("x")},
		volume.Resource.CreateKind():   {Subject: volume.Resource.Subject("x")},
		fork.KindFork:                  {Subject: fork.Subject("fork-1"), Data: forked},
		database.KindCreate:            {Subject: database.Subject("x")},
		database.KindFailover:          {Subject: database.Subject("x")},
		app.KindDeploy:                 {Subject: app.DeploymentSubject("x")},
		app.KindWake:                   {Subject: app.Subject("x")},
	}
	view := p.Leader().Store.View()
	for _, k := range slices.Concat(n.Volumes.Kinds(), n.Sandboxes.Flows.Kinds(), n.Snapshots.Kinds(), n.Forks.Kinds(), n.Databases.Kinds(), n.Apps.Kinds()) {
		f, ok := flows[k.Name]
		if !ok {
			continue
		}
		delete(flows, k.Name)
		if k.Workspace == nil || k.Workspace(view, &f) != "ws" {
			t.Errorf("%s is nobody's", k.Name)
		}
	}
	for name := range flows {
		t.Errorf("there is no kind %s", name)
	}
}
