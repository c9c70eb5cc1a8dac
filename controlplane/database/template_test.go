package database_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

var postgresSource = hostapi.TemplateSource{Name: "postgres-16", Recipe: "r1", CPU: 8, MemoryMB: 1024, DiskMB: 10240}

// bare adds a host that has no database template but can build one.
func (r *rig) bare(sources ...hostapi.TemplateSource) *fakehost.Host {
	h := r.Plane.Host("h1", 8<<10)
	h.SetArchives(r.archives)
	h.SetSources(sources...)
	r.hosts = append(r.hosts, h)
	return h
}

// unbuilt waits until the template is known and not built.
func (r *rig) unbuilt() {
	r.t.Helper()
	testcluster.Await(r.t, "the template", func() bool {
		tpl, ok := template.Operators(r.Leader().Store.View(), "postgres-16")
		return ok && tpl.Status == record.TemplateUnbuilt
	})
}

// The first database has its template built, and says that it waits for it.
func TestADatabaseWaitsForItsTemplate(t *testing.T) {
	r := newRig(t, 1, 0, nil)
	h := r.bare(postgresSource)
	release := make(chan struct{})
	h.SetBuild(func(id string, spec hostapi.BuildSpec) hostapi.Build {
		select {
		case <-release:
			return hostapi.Build{ID: id, Template: spec.Template, Status: hostapi.BuildSucceeded, BuildID: "built"}
		default:
			return hostapi.Build{ID: id, Template: spec.Template, Status: hostapi.BuildBuilding}
		}
	})
	r.unbuilt()
	d := r.create(api.CreateDatabase{})
	testcluster.Await(t, "the word that it waits", func() bool {
		got, err := r.get(d.ID)
		return err == nil && got.Status == api.DatabaseProvisioning && got.Error == "its template, postgres-16, is being built"
	})
	close(release)
	h.Change(func(_ *hostapi.Capacity, ts *[]hostapi.TemplateState, _ map[string]hostapi.Box) {
		*ts = append(*ts, hostapi.TemplateState{Name: "postgres-16", BuildID: "built", Status: "ready", CPU: 8, MemoryMB: 1024, DiskMB: 10240})
	})
	r.becomes(d.ID, api.DatabaseRunning)
}

func TestADatabaseWithoutATemplate(t *testing.T) {
	r := newRig(t, 1, 0, nil)
	h := r.bare()
	_, err := r.databases().Create(t.Context(), caller, api.CreateDatabase{}, core.Idempotency{})
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
	h.SetBuild(func(id string, spec hostapi.BuildSpec) hostapi.Build {
		return hostapi.Build{ID: id, Template: spec.Template, Status: hostapi.BuildFailed, Error: "run[1]: exit code 2"}
	})
	h.SetSources(postgresSource)
	r.unbuilt()
	d := r.becomes(r.create(api.CreateDatabase{}).ID, api.DatabaseFailed)
	if !strings.HasPrefix(d.Error, "template could not be built: postgres-16: ") {
		t.Errorf("%+v", d)
	}
}

// An earlier incarnation's archive is removed once it is older than the retention and a
// later one covers the whole retention.
func TestOldArchivesAreRemoved(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	old := time.Now().Add(-30 * 24 * time.Hour)
	r.archives.Fill(d.ID+"/1", old, time.Now(), "0/5000060")
	r.had(d.ID, []archive{
		{"a", old, old.Add(time.Hour)},                        // before the retention
		{"b", old.Add(2 * time.Hour), time.Now()},             // reaches into the retention
		{"c", old.Add(3 * time.Hour), old.Add(4 * time.Hour)}, // covered by the current archive
		{"d", time.Time{}, time.Time{}},                       // its incarnation ended before its first base backup
	})
	testcluster.Await(t, "the prune", func() bool { return len(r.row(d.ID).Archives) == 2 })
	if row := r.row(d.ID); row.Archives[0].Name != d.ID+"/b" || row.Archives[1].Name != d.ID+"/1" {
		t.Errorf("%+v", row.Archives)
	}
	if names := r.archives.Names(); len(names) != 2 {
		t.Errorf("%q", names)
	}
}

// A clone that begins while archives are being checked keeps what it needs until it runs.
func TestOldArchivesOutliveAClone(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	r.archiveOnly()
	d := r.running()
	old := time.Now().Add(-30 * 24 * time.Hour)
	r.archived(d.ID, old, time.Now())
	reached, proceed := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.hosts[0].SetFault(func(ctx context.Context, c fakehost.Call) error {
		if c.Op == "archive.prune" && c.Done {
			once.Do(func() { close(reached) })
			select {
			case <-proceed:
			case <-ctx.Done():
			}
		}
		return nil
	})
	r.had(d.ID, []archive{{"a", old, old.Add(time.Hour)}})
	<-reached
	r.slow(true)
	clone, err := r.clone(d.ID, api.CloneDatabase{})
	if err != nil {
		t.Fatal(err)
	}
	deleted := make(chan struct{}, 8)
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "archive.delete" {
			deleted <- struct{}{}
		}
		return nil
	})
	close(proceed)
	testcluster.Await(t, "its sandbox", func() bool { return r.flow(clone.ID, "ready") != nil })
	select {
	case <-deleted:
		t.Error("an archive was deleted")
	case <-time.After(1500 * time.Millisecond): // longer than a prune and the pause between two
	}
	if n := len(r.row(d.ID).Archives); n != 2 {
		t.Errorf("%d archives", n)
	}
	r.hosts[0].SetFault(nil)
	if err := r.databases().Delete(t.Context(), caller, clone.ID); err != nil {
		t.Fatal(err)
	}
	testcluster.Await(t, "the prune", func() bool { return len(r.row(d.ID).Archives) == 1 })
	if names := r.archives.Names(); len(names) != 1 {
		t.Errorf("%q", names)
	}
}

// Nothing is restored from an archive that is being removed. The archive goes even though
// its first removal did not finish.
func TestAnArchiveThatIsBeingRemoved(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 1, nil)
	r.archiveOnly()
	d := r.running()
	first := time.Now().Add(-time.Hour)
	r.archived(d.ID, first, time.Now().Add(-3*time.Minute))
	r.had(d.ID, []archive{{"a", first.Add(-2 * time.Hour), first.Add(-time.Hour)}})
	moment := first.Add(-90 * time.Minute)
	r.hosts[0].SetFault(func(_ context.Context, c fakehost.Call) error {
		if c.Op == "archive.delete" {
			return &hostapi.Error{Code: hostapi.CodeInternal, Message: "no"}
		}
		return nil
	})
	r.edit(d.ID, func(row *record.Database) { row.Archives[0].Removing = true })
	_, err := r.clone(d.ID, api.CloneDatabase{TargetTime: at(moment)})
	testplane.Want(t, err, apierror.ENoArchive, "no restorable archive")
	r.hosts[0].SetFault(nil)
	testcluster.Await(t, "its end", func() bool { return len(r.row(d.ID).Archives) == 1 })
}

// archive is an earlier incarnation's archive. Without a first moment it has no base
// backup.
type archive struct {
	name        string
	first, last time.Time
}

// had gives a database earlier incarnations.
func (r *rig) had(id string, archives []archive) {
	r.t.Helper()
	sealer := testplane.Sealer{}
	raw, err := sealer.Open(r.row(id).Archives[0].KeySealed, []byte("database.archive/"+id+"/1"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.edit(id, func(row *record.Database) {
		now := row.Archives[0]
		row.Archives = nil
		for _, a := range archives {
			name := id + "/" + a.name
			r.archives.Add(name, raw)
			if !a.first.IsZero() {
				r.archives.Fill(name, a.first, a.last, "0/1000")
			}
			sealed, _ := sealer.Seal(raw, []byte("database.archive/"+name))
			row.Archives = append(row.Archives, record.DatabaseArchive{
				Name: name, KeySealed: sealed, CreatedAt: a.first, ClosedAt: a.last.Add(time.Minute), FirstRestorable: a.first, LastRestorable: a.last,
			})
		}
		row.Archives = append(row.Archives, now)
	})
}

// At most two hosts ask a bucket that hangs, however many archives there are.
func TestABucketThatHangs(t *testing.T) {
	tier.Slow(t)
	t.Parallel()
	r := newRig(t, 3, 3, nil)
	d := r.running()
	first := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	r.archived(d.ID, first.Add(time.Hour), time.Now())
	r.had(d.ID, []archive{{"a", first, first.Add(time.Minute)}, {"b", first.Add(time.Minute), first.Add(time.Hour)}})
	var asked atomic.Int64
	for _, h := range r.hosts {
		h.SetFault(func(ctx context.Context, c fakehost.Call) error {
			if c.Op == "archive.info" && !c.Done {
				asked.Add(1)
				<-ctx.Done()
			}
			return nil
		})
	}
	a, err := r.databases().Archive(t.Context(), caller, d.ID)
	if err != nil || a.Error == nil || a.FirstRestorable == nil || a.LastArchivedLSN == nil {
		t.Fatalf("%+v, %v", a, err)
	}
	if !strings.HasPrefix(*a.Error, "no host answers") || !a.FirstRestorable.Equal(first) || *a.LastArchivedLSN != "0/5000060" {
		t.Errorf("%+v: %s", a, *a.Error)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("%d hosts were asked, want 2", n)
	}
	asked.Store(0)
	_, err = r.clone(d.ID, api.CloneDatabase{})
	testplane.Want(t, err, apierror.EBadGateway, "no available compute node")
	if n := asked.Load(); n != 2 {
		t.Errorf("%d hosts were asked for a clone, want 2", n)
	}
}

// A host without a bucket has not asked it, so the next host is asked.
func TestTheOneHostThatReachesTheBucket(t *testing.T) {
	r := newRig(t, 1, 4, nil)
	d := r.running()
	first := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	r.archived(d.ID, first, time.Now())
	for _, with := range r.hosts {
		for _, h := range r.hosts {
			h.SetFault(func(_ context.Context, c fakehost.Call) error {
				if c.Op == "archive.info" && h != with {
					return &hostapi.Error{Code: hostapi.CodeNoStore, Message: "this host has no snapshot store"}
				}
				return nil
			})
		}
		if a, err := r.databases().Archive(t.Context(), caller, d.ID); err != nil || a.Error != nil || len(a.BaseBackups) != 1 {
			t.Errorf("with %s alone: %+v, %v", with.ID, a, err)
		}
	}
}

// A running database cannot be failed over forever, because each failover leaves an
// archive. A failed database always can.
func TestTooManyFailovers(t *testing.T) {
	tier.Slow(t)
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	var before []archive
	for i := range 31 {
		at := time.Now().Add(time.Duration(i-100) * time.Minute)
		before = append(before, archive{"x" + strconv.Itoa(i), at, at.Add(time.Minute)})
	}
	r.had(d.ID, before)
	_, err := r.failOver(d.ID, true)
	e := testplane.Want(t, err, apierror.ERateLimited, "too many failovers")
	if e.Fields["max"] != 32 || e.Fields["active"] != 32 || !strings.Contains(e.Detail, "the last 7 days") {
		t.Errorf("%+v", e)
	}
	_, h := r.box(d.ID)
	h.Silence(true)
	r.becomes(d.ID, api.DatabaseFailed)
	if _, err := r.failOver(d.ID, false); err != nil {
		t.Error(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
}
