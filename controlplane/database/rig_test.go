package database_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var caller = testplane.Caller

// rig is a control plane whose hosts have the database templates and share a bucket.
type rig struct {
	*testplane.Plane
	t        *testing.T
	archives *fakehost.Archives
	hosts    []*fakehost.Host
}

// newRig returns a rig with the given numbers of replicas and hosts.
func newRig(t *testing.T, replicas, hosts int, fault func(f *record.Flow, at flow.Point) error) *rig {
	t.Helper()
	r := &rig{Plane: testplane.New(t, replicas, fault), t: t, archives: fakehost.NewArchives()}
	r.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "ws"}})
		raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: "other"}})
		return nil
	})
	for i := range hosts {
		h := r.Plane.Host("h"+string(rune('1'+i)), 8<<10)
		h.SetArchives(r.archives)
		giveTemplates(h)
		r.hosts = append(r.hosts, h)
	}
	testcluster.Await(t, "the templates", func() bool {
		view := r.Leader().Store.View()
		for _, name := range []string{"postgres-16", "postgres-16-4g", "postgres-16-16g"} {
			if tpl, ok := template.Operators(view, name); hosts > 0 && (!ok || tpl.BuildID == "") {
				return false
			}
		}
		sessions := r.LeaderNode().Hosts.Sessions()
		for _, h := range r.hosts {
			if len(sessions[h.ID].Heartbeat.Templates) < 4 {
				return false
			}
		}
		return true
	})
	return r
}

func giveTemplates(h *fakehost.Host) {
	h.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		for name, mb := range map[string]int{"postgres-16": 1024, "postgres-16-4g": 4096, "postgres-16-16g": 16384} {
			*ts = append(*ts, hostapi.TemplateState{Name: name, BuildID: "of-" + name, Status: "ready", CPU: 8, MemoryMB: mb, DiskMB: 10240})
		}
	})
}

// databases returns the leader's Databases.
func (r *rig) databases() *database.Databases {
	r.t.Helper()
	return r.LeaderNode().Databases
}

// create begins to create a database.
func (r *rig) create(in api.CreateDatabase) api.Database {
	r.t.Helper()
	d, err := r.databases().Create(r.t.Context(), caller, in, core.Idempotency{})
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// running creates a database and waits until it runs.
func (r *rig) running() api.Database {
	r.t.Helper()
	return r.becomes(r.create(api.CreateDatabase{Label: "orders"}).ID, api.DatabaseRunning)
}

// get reads a database on the leader, whichever replica that is.
func (r *rig) get(id string) (api.Database, error) {
	var out api.Database
	var err error
	testcluster.Await(r.t, "a leader that answers", func() bool {
		out, err = r.databases().Get(r.t.Context(), caller, id)
		return !retriable(err)
	})
	return out, err
}

// becomes waits until a database has a status.
func (r *rig) becomes(id string, want api.DatabaseStatus) api.Database {
	r.t.Helper()
	var d api.Database
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var err error
		if d, err = r.get(id); err != nil {
			r.t.Fatal(err)
		}
		if d.Status == want {
			return d
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("it is %s, not %s: %+v", d.Status, want, d)
		}
		<-tick.C
	}
}

// row returns a database's row.
func (r *rig) row(id string) *record.Database {
	r.t.Helper()
	d, ok := raftstore.Get(r.Leader().Store.View(), record.Databases, id)
	if !ok {
		r.t.Fatal("no such database")
	}
	return d
}

// box returns a database's sandbox and its host.
func (r *rig) box(id string) (*record.Sandbox, *fakehost.Host) {
	r.t.Helper()
	box, ok := r.Sandbox(r.row(id).SandboxID)
	if !ok {
		r.t.Fatal("it has no sandbox")
	}
	for _, h := range r.hosts {
		if h.ID == box.HostID {
			return box, h
		}
	}
	r.t.Fatalf("its sandbox is on %q", box.HostID)
	return nil, nil
}

// archived gives a database's current archive a base backup, and waits until the row
// shows it.
func (r *rig) archived(id string, first, last time.Time) {
	r.t.Helper()
	box, h := r.box(id)
	r.archives.Fill(r.row(id).Archive().Name, first, last, "0/5000060")
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) {
		s.Archive = hostapi.ArchiveState{LastLSN: "0/5000060", LastAt: last, FirstRestorable: first, LastRestorable: last, BaseBackups: 1, LagSeconds: 12, SizeBytes: 3 << 20}
	})
	testcluster.Await(r.t, "the archive in the row", func() bool { return !r.row(id).Archive().FirstRestorable.IsZero() })
}

// edit changes a database's row directly, without a flow or an API call.
func (r *rig) edit(id string, change func(d *record.Database)) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		d, ok := raftstore.Get(tx, record.Databases, id)
		if !ok {
			return errors.New("no such database")
		}
		d = d.Clone()
		change(d)
		raftstore.Put(tx, record.Databases, d)
		return nil
	})
}

// settled waits until nothing is under way, then checks that there are the boxes and
// archives of the given number of databases.
func (r *rig) settled(databases int) {
	r.t.Helper()
	rows := r.Settled(r.hosts...)
	if len(rows) != databases {
		r.t.Errorf("%d sandboxes, want %d", len(rows), databases)
	}
	names := map[string]bool{}
	all := raftstore.All(r.Leader().Store.View(), record.Databases)
	for _, d := range all {
		for _, a := range d.Archives {
			names[a.Name] = true
		}
	}
	for _, name := range r.archives.Names() {
		if !names[name] {
			r.t.Errorf("archive %s is nobody's", name)
		}
	}
}

// flow returns the live flow on a database if it is at a step, or nil.
func (r *rig) flow(id, step string) *record.Flow {
	r.t.Helper()
	f, ok := flow.Live(r.Leader().Store.View(), database.Subject(id))
	if !ok || f.Step != step {
		return nil
	}
	return f
}

// late moves the deadline of a database's live flow into the past. It retries until the
// change holds, because the flow moves on meanwhile.
func (r *rig) late(id string) {
	r.t.Helper()
	r.Update(func(tx *raftstore.Tx) error {
		f, ok := flow.Live(tx, database.Subject(id))
		if !ok {
			return nil
		}
		f = f.Clone()
		f.Deadline = time.Now().Add(-time.Second)
		raftstore.Put(tx, record.Flows, f)
		return nil
	})
}
