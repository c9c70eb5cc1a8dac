package app

import (
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// A commit runs again if another transaction has changed what it read. It must do then what it
// would have done the first time.
func TestACommitThatRunsAgain(t *testing.T) {
	t.Parallel()
	const back, ago = "dep-back", time.Hour
	begun := func() deploy {
		return deploy{SandboxID: "box", Restored: true, Since: time.Now().Add(-ago)}
	}
	took := func(t *testing.T, r raftstore.Reader, phase string) {
		t.Helper()
		d, _ := raftstore.Get(r, record.Deployments, back)
		for _, p := range d.Phases {
			if p.Name == phase && p.DurationMS >= ago.Milliseconds() {
				return
			}
		}
		t.Errorf("its phases are %+v", d.Phases)
	}
	for name, tc := range map[string]struct {
		commit func(f *Flows, run flow.Run) (flow.Commit, error)
		check  func(t *testing.T, r raftstore.Reader)
	}{
		"a rollback whose host was lost": {
			func(f *Flows, run flow.Run) (flow.Commit, error) { return f.again(run, begun(), true), nil },
			func(t *testing.T, r raftstore.Reader) {
				if s, ok := raftstore.Get(r, record.Snapshots, "snap"); !ok || s.Status != record.ResourceReady {
					t.Errorf("the artifact of the deployment to roll back to is %+v", s)
				}
				if d, _ := raftstore.Get(r, record.Deployments, back); d.Status != record.DeploymentDeploying {
					t.Errorf("it is %s, and not restored once more", d.Status)
				}
			},
		},
		"a sandbox that runs": {
			func(f *Flows, run flow.Run) (flow.Commit, error) { return f.awaitBox(t.Context(), run) },
			func(t *testing.T, r raftstore.Reader) { took(t, r, phaseSandbox) },
		},
		"an app that answers": {
			func(f *Flows, run flow.Run) (flow.Commit, error) { return f.goLive(run, begun(), false), nil },
			func(t *testing.T, r raftstore.Reader) { took(t, r, phaseStart) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testcluster.New(t, 1)
			c.Update(func(tx *raftstore.Tx) error {
				raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
				raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-a"}, WorkspaceID: "ws", Status: record.AppCreated, DeploymentID: "dep-to"})
				for _, status := range []record.ResourceStatus{record.ResourceCreating, record.ResourceReady} {
					raftstore.Put(tx, record.Snapshots, &record.Snapshot{Meta: record.Meta{ID: "snap"}, WorkspaceID: "ws", Status: status})
				}
				for _, status := range []record.SandboxStatus{record.SandboxStarting, record.SandboxRunning} {
					raftstore.Put(tx, record.Sandboxes, &record.Sandbox{Meta: record.Meta{ID: "box"}, WorkspaceID: "ws", Status: status})
				}
				for _, status := range []record.DeploymentStatus{record.DeploymentQueued, record.DeploymentDeploying, record.DeploymentLive} {
					raftstore.Put(tx, record.Deployments, &record.Deployment{Meta: record.Meta{ID: "dep-to"}, WorkspaceID: "ws", AppID: "app-a", Status: status, SnapshotID: "snap"})
					if status != record.DeploymentLive {
						raftstore.Put(tx, record.Deployments, &record.Deployment{
							Meta: record.Meta{ID: back}, WorkspaceID: "ws", AppID: "app-a", Status: status, SnapshotID: "snap", RollbackTo: "dep-to", SandboxID: "box",
						})
					}
				}
				return flow.Begin(tx, flow.New{ID: "flow", Kind: KindDeploy, Subject: DeploymentSubject(back), Step: stepRestored, Data: begun()})
			})
			store := c.Leader().Store
			cfg := Config{}
			cfg.defaults()
			f := &Flows{Core: core.New(core.Core{Store: store, Clock: time.Now, Logger: testcluster.Log()}), cfg: cfg}
			fl, ok := raftstore.Get(store.View(), record.Flows, "flow")
			if !ok {
				t.Fatal("no flow")
			}
			commit, err := tc.commit(f, flow.Run{Flow: fl, View: store.View()})
			if err != nil {
				t.Fatal(err)
			}
			times := 0
			err = store.Update(t.Context(), func(tx *raftstore.Tx) error {
				if _, err := commit(tx); err != nil {
					return err
				}
				if times++; times > 1 {
					return nil
				}
				return store.Update(t.Context(), func(tx *raftstore.Tx) error { // somebody else
					a, _ := raftstore.Get(tx, record.Apps, "app-a")
					a = a.Clone()
					a.Name += "x"
					raftstore.Put(tx, record.Apps, a)
					d, _ := raftstore.Get(tx, record.Deployments, back)
					raftstore.Put(tx, record.Deployments, d.Clone())
					return nil
				})
			})
			if err != nil || times != 2 {
				t.Fatalf("committed after %d times: %v", times, err)
			}
			tc.check(t, store.View())
		})
	}
}

// A deployment that is asked for while its app gets another repository is of one of both.
func TestADeploymentWhileTheRepositoryChanges(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, 1)
	store := c.Leader().Store
	put := func(url, branch string) {
		err := store.Update(t.Context(), func(tx *raftstore.Tx) error {
			raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: "app-a"}, WorkspaceID: "ws", Status: record.AppCreated, GitURL: url, GitBranch: branch})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		return nil
	})
	put("https://git.example.com/old.git", "old")
	s := New(core.New(core.Core{Store: store, Clock: time.Now, Logger: testcluster.Log()}), Config{})
	times := 0
	out, err := s.begin(t.Context(), core.Caller{WorkspaceID: "ws"}, "app-a", &record.Deployment{Trigger: triggerAPI}, core.Idempotency{}, "",
		func(tx *raftstore.Tx, a *record.App, d *record.Deployment) error {
			if times++; times == 1 {
				put("https://git.example.com/new.git", "new")
			}
			return sourceOf(tx, a, d)
		})
	if err != nil || times != 2 {
		t.Fatalf("after %d times: %v", times, err)
	}
	if d, _ := raftstore.Get(store.View(), record.Deployments, out.ID); d.GitURL != "https://git.example.com/new.git" || d.GitRef != "new" || !d.OfBranch {
		t.Errorf("it builds %s of %s", d.GitRef, d.GitURL)
	}
}
