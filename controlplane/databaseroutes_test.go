package controlplane

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

// Before its first base backup a database can neither be cloned nor be failed over, and
// after it both.
func TestTheRoutesOfADatabaseBeforeItsFirstBaseBackup(t *testing.T) {
	r := testplane.NewRig(t, 3)
	r.H1.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*ts = append(*ts, hostapi.TemplateState{Name: "postgres-16", BuildID: "pg", Status: "ready", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
	})
	testcluster.Await(t, "the template", func() bool {
		tpl, ok := template.Operators(r.Leader().Store.View(), "postgres-16")
		return ok && tpl.BuildID != ""
	})
	url := publicAPI(t, r.Node).URL + "/v1/databases"
	call := func(method, path, body string, status int) string {
		t.Helper()
		resp, got := raw(t, method, url+path, "key", body)
		if resp.StatusCode != status {
			t.Fatalf("%s %s: %d %s, want %d", method, path, resp.StatusCode, got, status)
		}
		return strings.TrimSpace(got)
	}
	read := func(text string) (d api.Database) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return d
	}
	d := read(call("POST", "", "{}", 202))
	if d.Status != api.DatabaseProvisioning {
		t.Errorf("%+v", d)
	}
	testcluster.Await(t, "the database", func() bool {
		d = read(call("GET", "/"+d.ID, "", 200))
		return d.Status == api.DatabaseRunning
	})
	const none = `{"detail":"the first base backup is yet to be made","error":"no restorable archive"}`
	for path, body := range map[string]string{"/clone": "{}", "/failover": `{"force":true}`} {
		if got := call("POST", "/"+d.ID+path, body, 412); got != none {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := call("POST", "/"+d.ID+"/wake", "{}", 202); got != `{"status":"waking","detail":"it runs already"}` {
		t.Error(got)
	}
	if again := read(call("GET", "/"+d.ID, "", 200)); again.Status != api.DatabaseRunning {
		t.Errorf("the refusals changed it: %+v", again)
	}

	row, _ := raftstore.Get(r.Leader().Store.View(), record.Databases, d.ID)
	r.H1.Archives().Fill(row.Archive().Name, time.Now().Add(-time.Hour), time.Now(), "0/5000060")
	if clone := read(call("POST", "/"+d.ID+"/clone", `{"label":"copy"}`, 202)); clone.Status != api.DatabaseProvisioning || clone.ClonedFrom != d.ID {
		t.Errorf("%+v", clone)
	}
	if got := read(call("POST", "/"+d.ID+"/failover", `{"force":true}`, 202)); got.Status != api.DatabaseRestoring {
		t.Errorf("%+v", got)
	}
}
