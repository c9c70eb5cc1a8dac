package controlplane

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/edge"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestURLsOfApps(t *testing.T) {
	for _, c := range []struct{ suffix, pattern, want string }{
		{"app.example.com", "", "https://a.app.example.com/"},
		{"app.localhost", "http://{id}.app.localhost:8080/", "http://a.app.localhost:8080/"},
		{"", "https://{id}.elsewhere.example/", "https://a.elsewhere.example/"},
	} {
		cfg := Config{AppSuffix: c.suffix, AppURL: c.pattern}
		if got := cfg.appURL()("a"); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	if (&Config{}).appURL() != nil {
		t.Error("without a suffix there is no URL")
	}
}

// ACME has certificates for all names that the public port serves.
func TestNamesOfCertificates(t *testing.T) {
	cfg := Config{ACMENames: []string{"api.example.com"}, PreviewSuffix: "Preview.example.com", AppSuffix: "App.example.com"}
	if got := cfg.acmeNames(); !slices.Equal(got, []string{"api.example.com", "*.preview.example.com", "*.app.example.com"}) {
		t.Error(got)
	}
}

func TestWhatTheEdgeKnowsOfAnApp(t *testing.T) {
	c := testcluster.New(t, 1)
	c.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "good"}})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "bad"}, Suspended: true})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "spent"}, PausedAt: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)})
		for id, row := range map[string]record.App{
			"created":   {WorkspaceID: "good"},
			"suspended": {WorkspaceID: "bad", DeploymentID: "d"},
			"paused":    {WorkspaceID: "good", DeploymentID: "d", Paused: true},
			"pausing":   {WorkspaceID: "spent", DeploymentID: "d"}, // no loop has seen it
			"running": {WorkspaceID: "good", DeploymentID: "d2", Port: 8000,
				Instances: []record.AppInstance{{SandboxID: "s1", DeploymentID: "d1"}, {SandboxID: "s2", DeploymentID: "gone"}},
				Draining:  []record.AppInstance{{SandboxID: "s0", DeploymentID: "d1"}}},
		} {
			row.ID, row.Status = id, record.AppCreated
			raftstore.Put(tx, record.Apps, &row)
		}
		raftstore.Put(tx, record.Deployments, &record.Deployment{Meta: record.Meta{ID: "d1"}, AppID: "running", Status: record.DeploymentQueued, Port: 3000})
		return nil
	})
	view := c.Leader().Store.View()
	for id, want := range map[string]edge.App{
		"created":   {Status: record.AppCreated},
		"suspended": {Status: record.AppCreated, Live: true, Suspended: true},
		"paused":    {Status: record.AppCreated, Live: true, Suspended: true},
		"pausing":   {Status: record.AppCreated, Live: true, Suspended: true},
		// A change of the port counts from the next deployment on.
		"running": {Status: record.AppCreated, Live: true, Instances: []edge.Instance{{SandboxID: "s1", Port: 3000}, {SandboxID: "s2", Port: 8000}}},
	} {
		if got, ok := findApp(view, id); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	if _, ok := findApp(view, "none"); ok {
		t.Error("an app that is none")
	}
}
