package domain

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/internal/testplane"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	caller   = testplane.Caller
	stranger = testplane.Stranger
)

const (
	day  = 24 * time.Hour
	shop = "shop.example.com"
)

// zone is what DNS says.
type zone struct {
	mu    sync.Mutex
	txt   map[string][]string
	err   error
	asked map[string]int
	hook  func(ctx context.Context) // called in each lookup
}

func (z *zone) LookupTXT(ctx context.Context, name string) ([]string, error) {
	z.mu.Lock()
	hook := z.hook
	z.mu.Unlock()
	if hook != nil {
		hook(ctx)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked[name]++
	if z.err != nil {
		return nil, z.err
	}
	if v := z.txt[name]; len(v) > 0 {
		return v, ctx.Err()
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (z *zone) set(name string, values ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.txt["_berth."+name+"."], z.err = values, nil
}

func (z *zone) fail(err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err = err
}

func (z *zone) times(name string) int {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.asked["_berth."+name+"."]
}

func (z *zone) during(hook func(ctx context.Context)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.hook = hook
}

// clock is a time that a test moves. It begins after all that the store stamps.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type rig struct {
	*testcluster.Cluster
	t     *testing.T
	clock *clock
	zone  *zone
	of    map[*testcluster.Replica]*Domains
}

// newRig has apps app-1 and app-2 of the caller's workspace, and app-x of another. loop
// says whether the leader looks into DNS by itself.
func newRig(t *testing.T, replicas int, loop bool, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{
		Cluster: testcluster.New(t, replicas), t: t, clock: &clock{now: time.Now().Add(time.Hour)},
		zone: &zone{txt: map[string][]string{}, asked: map[string]int{}}, of: map[*testcluster.Replica]*Domains{},
	}
	cfg := Config{
		Resolver: r.zone, URL: func(name string) string { return "https://" + name + "/" },
		Target:   func(id string) string { return id + ".app.berth.example" },
		Suffixes: []string{"app.berth.example", "Preview.berth.example", ""}, Own: func(name string) bool { return name == "api.berth.example" },
	}
	for _, c := range change {
		c(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for _, rep := range r.Replicas {
		d := New(core.New(core.Core{Store: rep.Store, Sealer: testplane.Sealer{}, Clock: r.clock.Now, Logger: testcluster.Log()}), cfg)
		r.of[rep] = d
		if !loop {
			continue
		}
		all := loops.New(loops.Config{Store: rep.Store, Clock: r.clock.Now, Logger: testcluster.Log(), Every: 10 * time.Millisecond})
		all.Register(d.Loops)
		wg.Go(func() { loops.WhileLeading(ctx, rep.Store.Leadership(), all.Run) })
	}
	r.Update(func(tx *raftstore.Tx) error {
		for id, ws := range map[string]string{"app-1": "ws", "app-2": "ws", "app-x": "other"} {
			raftstore.Put(tx, record.Workspaces, &record.Workspace{Meta: record.Meta{ID: ws}})
			raftstore.Put(tx, record.Apps, &record.App{Meta: record.Meta{ID: id}, WorkspaceID: ws, Status: record.AppCreated})
		}
		return nil
	})
	return r
}

func (r *rig) domains() *Domains { return r.of[r.Leader()] }

func (r *rig) create(c core.Caller, appID, name string) (api.AppDomain, error) {
	return r.domains().Create(r.t.Context(), c, appID, api.CreateAppDomain{Domain: name}, core.Idempotency{})
}

func (r *rig) must(c core.Caller, appID, name string) api.AppDomain {
	r.t.Helper()
	d, err := r.create(c, appID, name)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// verify asks for a look, later than the one before.
func (r *rig) verify(c core.Caller, appID, name string) (api.AppDomain, error) {
	r.clock.add(3 * time.Second)
	return r.domains().Verify(r.t.Context(), c, appID, name)
}

func (r *rig) becomes(c core.Caller, appID, name string, status api.DomainStatus) api.AppDomain {
	r.t.Helper()
	d, err := r.verify(c, appID, name)
	if err != nil || d.Status != status {
		r.t.Fatalf("%+v %v, want %s", d, err, status)
	}
	return d
}

// holder is the app at which a name is served; "": none.
func (r *rig) holder(name string) string {
	d, ok := Verified(r.Leader().Store.View(), name)
	if !ok {
		return ""
	}
	return d.AppID
}

func want(t *testing.T, err error, code apierror.Code, message string) {
	t.Helper()
	var e *apierror.Error
	if !errors.As(err, &e) || e.Code != code || e.Message != message {
		t.Errorf("%v, want %s %q", err, code, message)
	}
}
