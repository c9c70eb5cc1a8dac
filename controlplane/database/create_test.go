package database_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/tier"
)

func retriable(err error) bool {
	var e *apierror.Error
	return errors.As(err, &e) && e.Code == apierror.EUnavailable && e.Message == "control plane unavailable"
}

func TestADatabaseFromItsCreateToItsEnd(t *testing.T) {
	r := newRig(t, 1, 2, nil)
	for _, h := range r.hosts {
		h.SlowDatabases(true)
	}
	cpu := 3
	d := r.create(api.CreateDatabase{Label: "orders", AlwaysOn: true, CPU: &cpu, MemoryMB: &cpu})
	if d.Status != api.DatabaseProvisioning || d.Template != "postgres-16" || d.Size != "1g" || d.Label != "orders" || !d.AlwaysOn || d.CPU != 3 || d.MemoryMB != 3 ||
		d.Host != d.ID+".db.test" || d.Port != 5432 || d.Password != "" || d.ConnectionURL != "" || d.BrokerToken != "" || d.Username != "" ||
		d.BrokerURL != "/v1/databases/"+d.ID+"/proxy" || d.FailoverAvailable != nil {
		t.Errorf("%+v", d)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(d.ID) {
		t.Errorf("%q is no UUID", d.ID)
	}
	testcluster.Await(t, "the database on its host", func() bool {
		if r.row(d.ID).SandboxID == "" {
			return false
		}
		for _, h := range r.hosts {
			if _, ok := h.DatabaseSpec(r.row(d.ID).SandboxID); ok {
				return true
			}
		}
		return false
	})
	box, h := r.box(d.ID)
	if box.Owner.Type != "database" || box.Owner.ID != d.ID || !box.Exclusive || !box.Persistent || box.TTLSeconds != nil || box.Template != "postgres-16" || box.WorkspaceID != "ws" {
		t.Errorf("%+v", box)
	}
	spec, _ := h.DatabaseSpec(box.ID)
	if spec.Archive.Name != d.ID+"/1" || len(spec.Archive.Key) != 32 || spec.Restore != nil || spec.FirstBackupSeconds != 120 || spec.ArchiveIntervalSeconds != 60 || spec.BackupIntervalSeconds != 86400 {
		t.Errorf("%+v", spec)
	}
	if s := h.Spec(box.ID); !s.Exclusive || !s.Persistent {
		t.Errorf("%+v", s)
	}
	h.ChangeDatabase(box.ID, func(s *hostapi.DatabaseState) { s.Ready = true })
	d = r.becomes(d.ID, api.DatabaseRunning)
	u, err := url.Parse(d.ConnectionURL)
	if err != nil || d.Error != "" || d.Username != "app" || d.Database != "app" || u.Scheme != "postgres" || u.Host != d.Host+":5432" || u.Path != "/app" || u.RawQuery != "" {
		t.Errorf("%+v, %v", d, err)
	}
	if p, _ := u.User.Password(); p != d.Password || h.Credentials(box.ID).Password != d.Password || len(d.Password) < 26 {
		t.Errorf("passwords %q, %q and %q", p, d.Password, h.Credentials(box.ID).Password)
	}
	row := r.row(d.ID)
	if sum := sha256.Sum256([]byte(d.BrokerToken)); string(row.Credentials.BrokerTokenHash) != string(sum[:]) || !strings.HasPrefix(row.Credentials.Verifier, "SCRAM-SHA-256$4096:") {
		t.Errorf("%+v", row.Credentials)
	}
	conn, err := r.databases().Connection(t.Context(), caller, d.ID)
	if err != nil || conn.Password != d.Password || conn.BrokerToken != d.BrokerToken || conn.Status != api.DatabaseRunning {
		t.Errorf("%+v, %v", conn, err)
	}
	list, _, err := r.databases().List(t.Context(), caller, core.ListOptions{})
	if err != nil || len(list) != 1 || list[0].ID != d.ID || list[0].Password != "" || list[0].BrokerToken != "" || list[0].ConnectionURL != "" || list[0].Username != "app" {
		t.Errorf("%+v, %v", list, err)
	}
	if d, err = r.databases().Patch(t.Context(), caller, d.ID, api.PatchDatabase{}); err != nil || d.AlwaysOn {
		t.Errorf("%+v, %v", d, err)
	}
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := r.get(d.ID); apierror.CodeOf(err) != apierror.ENotFound {
		t.Errorf("after its delete: %v", err)
	}
	r.settled(0)
	if names := r.archives.Names(); len(names) != 0 {
		t.Errorf("archives %q", names)
	}
}

func TestDatabasesOfOtherWorkspacesAreUnknown(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d, s, c := r.running(), r.databases(), testplane.Stranger
	ctx := t.Context()
	_, err := s.Get(ctx, c, d.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.Connection(ctx, c, d.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.Patch(ctx, c, d.ID, api.PatchDatabase{AlwaysOn: true})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	testplane.Want(t, s.Delete(ctx, c, d.ID), apierror.ENotFound, "not found")
	_, err = s.Wake(ctx, c, d.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.ResetCredentials(ctx, c, d.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	bad := "never"
	_, err = s.Clone(ctx, c, d.ID, api.CloneDatabase{TargetTime: &bad}, core.Idempotency{})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.Failover(ctx, c, d.ID, api.FailoverDatabase{})
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.Archive(ctx, c, d.ID)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	_, err = s.Logs(ctx, c, d.ID, 1)
	testplane.Want(t, err, apierror.ENotFound, "not found")
	list, _, err := s.List(ctx, c, core.ListOptions{})
	if err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestCreatesThatAreRefused(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	s := r.databases()
	create := func(in api.CreateDatabase) error {
		_, err := s.Create(t.Context(), caller, in, core.Idempotency{})
		return err
	}
	for _, size := range []api.DatabaseSize{"2g", "", "1G"} {
		testplane.Want(t, create(api.CreateDatabase{Size: &size}), apierror.EInvalid, "size must be 1g, 4g or 16g")
	}
	testplane.Want(t, create(api.CreateDatabase{Label: strings.Repeat("x", 101)}), apierror.EInvalid, "invalid label")
	testplane.Want(t, create(api.CreateDatabase{Label: "a\x01"}), apierror.EInvalid, "invalid label")
	least := -1
	testplane.Want(t, create(api.CreateDatabase{CPU: &least}), apierror.EInvalid, "invalid cpu")
	most := 1_000_000_001
	testplane.Want(t, create(api.CreateDatabase{CPU: &most}), apierror.EInvalid, "invalid cpu")
	testplane.Want(t, create(api.CreateDatabase{MemoryMB: &most}), apierror.EInvalid, "invalid memory_mb")
	big := api.Database16G
	testplane.Want(t, create(api.CreateDatabase{Size: &big}), apierror.EBadGateway, "no available compute node") // the host has 8 GiB
	r.Update(func(tx *raftstore.Tx) error {
		ws, _ := raftstore.Get(tx, record.Workspaces, "ws")
		c := *ws
		c.Suspended = true
		raftstore.Put(tx, record.Workspaces, &c)
		return nil
	})
	testplane.Want(t, create(api.CreateDatabase{}), apierror.EForbidden, "account suspended")
	r.settled(0)
}

// A workspace's limit counts databases of every kind, and a deleted database makes room.
func TestAWorkspaceHasSoManyDatabases(t *testing.T) {
	r := newRig(t, 3, 2, nil)
	d := r.running()
	r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
	var rows []*record.Database
	for i := 1; i < 99; i++ {
		rows = append(rows, &record.Database{Meta: record.Meta{ID: fmt.Sprint("d", i)}, WorkspaceID: "ws", Size: "1g", Status: record.DatabaseProvisioning})
	}
	r.Update(func(tx *raftstore.Tx) error {
		for _, row := range rows {
			raftstore.Put(tx, record.Databases, row.Clone())
		}
		return nil
	})
	// Of two concurrent requests for the last place, one succeeds.
	var wg sync.WaitGroup
	var made atomic.Int64
	s := r.databases()
	for i := range 2 {
		wg.Go(func() {
			var err error
			if i == 0 {
				_, err = s.Create(t.Context(), caller, api.CreateDatabase{}, core.Idempotency{})
			} else {
				_, err = s.Clone(t.Context(), caller, d.ID, api.CloneDatabase{}, core.Idempotency{})
			}
			if err == nil {
				made.Add(1)
				return
			}
			e := testplane.Want(t, err, apierror.ERateLimited, "max databases reached")
			if e.Fields["max"] != 100 || e.Fields["active"] != 100 {
				t.Errorf("%+v", e.Fields)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("%d were made, want 1", made.Load())
	}
	if _, err := s.Create(t.Context(), testplane.Stranger, api.CreateDatabase{}, core.Idempotency{}); err != nil {
		t.Errorf("of another workspace: %v", err)
	}
	r.Update(func(tx *raftstore.Tx) error { raftstore.Delete(tx, record.Databases, "d1"); return nil })
	if _, err := s.Create(t.Context(), caller, api.CreateDatabase{}, core.Idempotency{}); err != nil {
		t.Error(err)
	}
}

// If the room is gone by the time the database is placed, the database fails and says
// why.
func TestACreateWithoutRoomFails(t *testing.T) {
	var first sync.Once
	var r *rig
	r = newRig(t, 1, 1, func(f *record.Flow, at flow.Point) error {
		if f.Kind == database.KindCreate && at == flow.BeforeAct {
			first.Do(func() {
				r.hosts[0].Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 512 })
			})
		}
		return nil
	})
	d := r.becomes(r.create(api.CreateDatabase{}).ID, api.DatabaseFailed)
	if !strings.HasPrefix(d.Error, "no available compute node") || d.FailoverAvailable == nil || *d.FailoverAvailable || d.FailoverETASeconds != 180 {
		t.Errorf("%+v", d)
	}
	r.settled(0)
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	r.settled(0)
}

// A create, clone or failover that loses its host goes on with another one. What the lost
// host has is removed when it returns.
func TestAHostThatIsLostWhileADatabaseIsMade(t *testing.T) {
	tier.Slow(t)
	for name, begin := range map[string]func(r *rig, now func()) string{
		"create": func(r *rig, now func()) string {
			now()
			return r.create(api.CreateDatabase{}).ID
		},
		"clone": func(r *rig, now func()) string {
			src := r.running()
			r.archived(src.ID, time.Now().Add(-time.Hour), time.Now())
			now()
			clone, err := r.clone(src.ID, api.CloneDatabase{})
			if err != nil {
				r.t.Fatal(err)
			}
			return clone.ID
		},
		"failover": func(r *rig, now func()) string {
			d := r.running()
			r.archived(d.ID, time.Now().Add(-time.Hour), time.Now())
			now()
			if _, err := r.failOver(d.ID, true); err != nil {
				r.t.Fatal(err)
			}
			return d.ID
		},
	} {
		for _, step := range []string{"tell", "ready", "login"} {
			t.Run(name+" "+step, func(t *testing.T) {
				t.Parallel()
				var r *rig
				var once sync.Once
				var lost atomic.Pointer[fakehost.Host]
				var armed atomic.Bool
				var crashed sync.Map // the engine stops twice at each point of the steps that start again
				r = newRig(t, 3, 2, func(f *record.Flow, at flow.Point) error {
					if lost.Load() != nil && (f.Step == "fence" || f.Step == "fenced") {
						if n, _ := crashed.LoadOrStore(f.Step+string(at), new(atomic.Int64)); n.(*atomic.Int64).Add(1) <= 2 {
							return errors.New("crash")
						}
					}
					if f.Step != step || at != flow.BeforeAct || !armed.Load() {
						return nil
					}
					once.Do(func() {
						row, _ := raftstore.Get(r.Leader().Store.View(), record.Databases, strings.TrimPrefix(f.Subject, record.Databases.Name+"/"))
						box, _ := r.Sandbox(row.SandboxID)
						for _, h := range r.hosts {
							if h.ID == box.HostID {
								h.SetFault(func(context.Context, fakehost.Call) error { return fakehost.ErrDrop })
								h.Silence(true)
								lost.Store(h)
							}
						}
					})
					return nil
				})
				id := begin(r, func() { armed.Store(true) })
				testcluster.Await(t, "the loss", func() bool { return lost.Load() != nil })
				if name != "failover" {
					testcluster.Await(t, "the cause", func() bool {
						d, err := r.get(id)
						return err == nil && (strings.Contains(d.Error, "host was lost") || d.Status == api.DatabaseRunning)
					})
				}
				d := r.becomes(id, api.DatabaseRunning)
				box, now := r.box(id)
				if now == lost.Load() || d.Error != "" || now.Credentials(box.ID).Password != d.Password {
					t.Errorf("%+v", d)
				}
				for i, a := range r.row(id).Archives {
					if last := i == len(r.row(id).Archives)-1; a.ClosedAt.IsZero() != last {
						t.Errorf("archive %d of %d: %+v", i, len(r.row(id).Archives), a)
					}
				}
				for _, h := range r.hosts {
					h.SetFault(nil)
				}
				lost.Load().Silence(false)
				r.settled(len(raftstore.All(r.Leader().Store.View(), record.Databases)))
			})
		}
	}
}

// While no other host can take the database, the create waits, and says why.
func TestTheHostOfACreateIsLostAndNoOtherHasRoom(t *testing.T) {
	tier.Slow(t)
	for name, hosts := range map[string]int{"full": 2, "none": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, hosts, nil)
			for _, h := range r.hosts {
				h.SlowDatabases(true)
			}
			d := r.create(api.CreateDatabase{})
			testcluster.Await(t, "the step", func() bool { return r.flow(d.ID, "ready") != nil })
			_, lost := r.box(d.ID)
			cause := "its host was lost, another one is waited for"
			for _, h := range r.hosts {
				h.SlowDatabases(false)
				if h != lost {
					cause = "its host was lost, and no other has room for it"
					h.Change(func(c *hostapi.Capacity, _ *[]hostapi.TemplateState, _ map[string]hostapi.Box) { c.MemoryMB = 512 })
				}
			}
			lost.Silence(true)
			testcluster.Await(t, "the cause", func() bool {
				now, _ := r.get(d.ID)
				return now.Status == api.DatabaseProvisioning && now.Error == cause
			})
			lost.Silence(false)
			r.becomes(d.ID, api.DatabaseRunning)
			r.settled(1)
		})
	}
}

// Requests with the same key create one database.
func TestACreateIsRepeatedByItsKey(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	s := r.databases()
	a, err := s.Create(t.Context(), caller, api.CreateDatabase{}, testplane.Key("k", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Create(t.Context(), caller, api.CreateDatabase{}, testplane.Key("k", "{}"))
	if err != nil || a.ID != b.ID {
		t.Errorf("%s and %s, %v", a.ID, b.ID, err)
	}
	_, err = s.Create(t.Context(), caller, api.CreateDatabase{Label: "x"}, testplane.Key("k", `{"label":"x"}`))
	testplane.Want(t, err, apierror.EConflict, "idempotency key reused")
	r.becomes(a.ID, api.DatabaseRunning)
	if err := s.Delete(t.Context(), caller, a.ID); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Create(t.Context(), caller, api.CreateDatabase{}, testplane.Key("k", "{}")); err != nil || a.ID != b.ID {
		t.Errorf("after the delete: %+v, %v", b, err)
	}
}

var points = []flow.Point{flow.BeforeAct, flow.BeforeCommit, flow.AfterCommit}

// The engine stops twice at each point of each step. In the end there is one database,
// and nothing else is left.
func TestCreateCrashesAtEveryPoint(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"template", "sandbox", "tell", "ready", "login"} {
		for _, at := range points {
			t.Run(fmt.Sprint(step, " ", at), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				r := newRig(t, 1, 1, func(f *record.Flow, pt flow.Point) error {
					if f.Kind == database.KindCreate && f.Step == step && pt == at && n.Add(1) <= 2 {
						return errors.New("crash")
					}
					return nil
				})
				d := r.running()
				testcluster.Await(t, "the step", func() bool { return n.Load() > 0 })
				box, h := r.box(d.ID)
				if h.Made(box.ID) != 1 || h.Credentials(box.ID).Password != d.Password || len(r.row(d.ID).Archives) != 1 {
					t.Errorf("%+v", r.row(d.ID))
				}
				r.settled(1)
				if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
					t.Fatal(err)
				}
				r.settled(0)
			})
		}
	}
}

// A delete preempts a create at any step.
func TestADeleteDuringACreate(t *testing.T) {
	tier.Slow(t)
	for _, step := range []string{"template", "sandbox", "tell", "ready", "login"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			reached, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r := newRig(t, 1, 1, func(f *record.Flow, pt flow.Point) error {
				if f.Kind == database.KindCreate && f.Step == step && pt == flow.BeforeCommit {
					once.Do(func() {
						close(reached)
						<-goOn
					})
				}
				return nil
			})
			d := r.create(api.CreateDatabase{})
			<-reached
			gone := make(chan error, 1)
			go func() { gone <- r.databases().Delete(t.Context(), caller, d.ID) }()
			testcluster.Await(t, "the mark", func() bool {
				row, ok := raftstore.Get(r.Leader().Store.View(), record.Databases, d.ID)
				return !ok || row.Status == record.DatabaseDeleting
			})
			close(goOn)
			if err := <-gone; err != nil {
				t.Fatal(err)
			}
			r.settled(0)
			testcluster.Await(t, "the end of its archive", func() bool { return len(r.archives.Names()) == 0 })
		})
	}
}

// A caller who may only read does not get credentials, which would let them write.
func TestReadersGetNoCredentials(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	d := r.running()
	for name, c := range map[string]core.Caller{
		"a viewer":         {WorkspaceID: "ws", UserID: "usr-v", ViaJWT: true, Role: record.RoleViewer},
		"a key that reads": {WorkspaceID: "ws", KeyID: "k", Scopes: []string{core.ScopeReadOnly}},
	} {
		got, err := r.databases().Get(t.Context(), c, d.ID)
		if err != nil || got.Status != api.DatabaseRunning || got.Password != "" || got.ConnectionURL != "" || got.BrokerToken != "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		at, err := r.databases().Connection(t.Context(), c, d.ID)
		if err != nil || at.Password != "" || at.ConnectionURL != "" || at.BrokerToken != "" {
			t.Errorf("%s: %+v, %v", name, at, err)
		}
	}
	whole, err := r.databases().Get(t.Context(), core.Caller{WorkspaceID: "ws", KeyID: "k", Scopes: []string{"databases"}}, d.ID)
	if err != nil || whole.Password == "" || whole.BrokerToken == "" {
		t.Errorf("a key of databases: %v", err)
	}
}

func TestTheQuotaOfDatabases(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	r.running()
	r.Update(func(tx *raftstore.Tx) error {
		w, _ := raftstore.Get(tx, record.Workspaces, "ws")
		c := w.Clone()
		c.Quotas.Databases = new(1)
		raftstore.Put(tx, record.Workspaces, c)
		return nil
	})
	_, err := r.databases().Create(t.Context(), testplane.Caller, api.CreateDatabase{}, core.Idempotency{})
	if e := testplane.Want(t, err, apierror.ERateLimited, "max databases reached"); e.Fields["max"] != 1 || e.Fields["active"] != 1 {
		t.Errorf("%v", e.Fields)
	}
}

func TestAKeyRepeatsTheFirstAnswer(t *testing.T) {
	r := newRig(t, 1, 1, nil)
	key := core.Idempotency{Key: "k", BodySHA256: []byte("body")}
	create := func() string {
		t.Helper()
		d, err := r.databases().Create(t.Context(), caller, api.CreateDatabase{Label: "orders"}, key)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	first := create()
	var d api.Database
	if err := json.Unmarshal([]byte(first), &d); err != nil {
		t.Fatal(err)
	}
	r.becomes(d.ID, api.DatabaseRunning)
	if again := create(); again != first {
		t.Errorf("%s after %s", again, first)
	}
	if err := r.databases().Delete(t.Context(), caller, d.ID); err != nil {
		t.Fatal(err)
	}
	if again := create(); again != first {
		t.Errorf("after the delete %s, before %s", again, first)
	}
}
