// Package testplane runs the leader's work (host sessions, flows, loops) on every
// replica of a test cluster, with fake hosts that find the leader.
package testplane

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-cloud/berth/controlplane/app"
	"github.com/berth-cloud/berth/controlplane/cluster"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/database"
	"github.com/berth-cloud/berth/controlplane/flow"
	"github.com/berth-cloud/berth/controlplane/fork"
	"github.com/berth-cloud/berth/controlplane/hosts"
	"github.com/berth-cloud/berth/controlplane/internal/fakehost"
	"github.com/berth-cloud/berth/controlplane/internal/testcluster"
	"github.com/berth-cloud/berth/controlplane/loops"
	"github.com/berth-cloud/berth/controlplane/org"
	"github.com/berth-cloud/berth/controlplane/pki"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/snapshot"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/controlplane/usage"
	"github.com/berth-cloud/berth/controlplane/volume"
	"github.com/berth-cloud/berth/controlplane/webhook"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Times of a test plane. They are short, but longer than the stalls of a busy
// machine.
const (
	HeartbeatInterval = 50 * time.Millisecond
	Lease             = 1500 * time.Millisecond
	// DatabaseIdle is how long a database has no client before it sleeps.
	DatabaseIdle = time.Second
	// RestartPause is the delay after the first restart of a failed database.
	RestartPause = 20 * time.Millisecond
	// BootPatience is how long a host may boot a database before it counts as failed.
	BootPatience = time.Second
	// BucketTimeout is how long a host is asked about an archive.
	BucketTimeout = 5 * time.Second
)

// AppConfig is how a test plane configures apps. Their idle time is whole seconds.
func AppConfig(sandboxes *sandbox.Sandboxes, templates *template.Templates) app.Config {
	return app.Config{
		Sandboxes: sandboxes, Templates: templates, URL: func(id string) string { return "https://" + id + ".app.test/" },
		Budget: timescale.Limit(20 * time.Second), Sweep: 100 * time.Millisecond, MinIdle: new(time.Second), Drain: 2 * time.Second, AllowHTTP: false,
		Health: 2 * time.Second, HealthPause: 50 * time.Millisecond, GuestSilent: 2 * time.Second, Capture: 2 * time.Second,
		DrainAtLeast: 200 * time.Millisecond, WriteRequests: time.Second, Look: 50 * time.Millisecond, Patience: time.Second, WakePause: 500 * time.Millisecond,
		ReportKept: 2 * time.Second, ScaleUp: 200 * time.Millisecond, ScaleDown: 500 * time.Millisecond,
	}
}

// UsageConfig is how a test plane counts usage: at the built-in prices.
func UsageConfig() usage.Config {
	prices, err := usage.LoadPrices("")
	if err != nil {
		panic(err)
	}
	return usage.Config{Prices: prices, Every: 50 * time.Millisecond, Storage: time.Second, Look: 50 * time.Millisecond}
}

// Node is one replica with its parts.
type Node struct {
	*testcluster.Replica
	Core   *core.Core
	Hosts  *hosts.Registry
	Engine *flow.Engine
	Loops  *loops.Loops

	Templates *template.Templates
	Volumes   *volume.Volumes
	Sandboxes *sandbox.Sandboxes
	Snapshots *snapshot.Snapshots
	Forks     *fork.Forks
	Databases *database.Databases
	Apps      *app.Apps
	Webhooks  *webhook.Webhooks
	Orgs      *org.Orgs
	Usage     *usage.Usage
	Replicas  *cluster.Cluster
	Sources   []loops.Source // the loops of all of them

	clients *hosts.Clients
}

// Plane is a cluster with its hosts.
type Plane struct {
	*testcluster.Cluster
	CA    *pki.CA
	Nodes []*Node

	t   testing.TB
	ctx context.Context
	wg  sync.WaitGroup
}

// New starts a plane of n replicas. fault may be nil; see flow.Config. change
// may change how apps are configured.
func New(t testing.TB, n int, fault func(f *record.Flow, at flow.Point) error, change ...func(*app.Config)) *Plane {
	t.Helper()
	ca, err := pki.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Identity{Role: pki.RoleReplica, Name: "a"}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	node, err := pki.ParseNode(ca.CertPEM(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	p := &Plane{Cluster: testcluster.New(t, n), CA: ca, t: t}
	ctx, cancel := context.WithCancel(context.Background())
	p.ctx = ctx
	t.Cleanup(func() {
		cancel()
		p.wg.Wait()
		for _, n := range p.Nodes {
			n.clients.Close()
		}
	})
	for _, rep := range p.Replicas {
		n := &Node{Replica: rep}
		n.clients = hosts.NewClients(func(hostID, address string) *hostapi.Client {
			return hostapi.NewClient(address, node.ClientTLS(pki.Exactly(pki.Identity{Role: pki.RoleHost, Name: hostID})))
		})
		n.Hosts = hosts.NewRegistry(hosts.Config{
			Store: rep.Store, Interval: HeartbeatInterval, Lease: Lease, Clock: time.Now, Logger: testcluster.Log(),
			Clients: n.clients,
		})
		n.Engine = flow.NewEngine(flow.Config{
			Store: rep.Store, Clock: time.Now, Random: func() float64 { return 0 }, Logger: testcluster.Log(), Fault: fault,
		})
		n.Core = core.New(core.Core{
			Store: rep.Store, Hosts: n.Hosts, Engine: n.Engine, Sealer: Sealer{}, Clock: time.Now, Logger: testcluster.Log(),
		})
		n.Templates = template.New(n.Core, template.Config{Every: 50 * time.Millisecond, Again: 200 * time.Millisecond})
		n.Volumes = volume.New(n.Core, volume.Config{})
		n.Sandboxes = sandbox.New(n.Core, sandbox.Config{
			Templates: n.Templates, PreviewURL: "https://{port}-{id}.preview.test", HibernateRetry: 200 * time.Millisecond,
		})
		n.Snapshots = snapshot.New(n.Core, snapshot.Config{
			Sandboxes: n.Sandboxes, Claims: []snapshot.Claim{fork.Claim, {Capture: sandbox.MoveNeeds, Stored: sandbox.MoveStored}, {Stored: n.Templates.Flows.Stored}}, StorePause: 20 * time.Millisecond,
		})
		n.Forks = fork.New(n.Core, n.Sandboxes, 0)
		n.Databases = database.New(n.Core, database.Config{
			Sandboxes: n.Sandboxes, Templates: n.Templates, Domain: "db.test", Idle: DatabaseIdle, FactsEvery: 200 * time.Millisecond,
			RestartPause: RestartPause, BootPatience: BootPatience, BucketTimeout: BucketTimeout, OriginTimeout: BucketTimeout,
			PruneEvery: time.Second,
		})
		apps := AppConfig(n.Sandboxes, n.Templates)
		apps.Databases = n.Databases
		for _, c := range change {
			c(&apps)
		}
		n.Apps = app.New(n.Core, apps)
		n.Webhooks = webhook.New(n.Core, webhook.Config{AllowPrivate: true})
		n.Orgs = org.New(n.Core)
		n.Usage = usage.New(n.Core, UsageConfig())
		n.Replicas = cluster.New(n.Core, cluster.Config{CAFingerprint: func() string { return "f" }, Evacuated: n.Sandboxes.Evacuated, Spread: n.Sandboxes.Spread})
		err := n.Engine.Register(slices.Concat(
			n.Templates.Kinds(), n.Volumes.Kinds(), n.Sandboxes.Flows.Kinds(), n.Snapshots.Kinds(), n.Forks.Kinds(), n.Databases.Kinds(), n.Apps.Kinds(),
		)...)
		if err != nil {
			t.Fatal(err)
		}
		n.Loops = loops.New(loops.Config{
			Store: rep.Store, Clock: time.Now, Logger: testcluster.Log(),
			Every: 50 * time.Millisecond, OrphanGrace: 100 * time.Millisecond, KeptGrace: 300 * time.Millisecond,
		})
		n.Sources = []loops.Source{
			n.Core.Loops, n.Templates.Loops, n.Volumes.Loops, n.Sandboxes.Loops, n.Snapshots.Loops, n.Databases.Loops, n.Apps.Loops,
			n.Webhooks.Loops, n.Orgs.Loops, n.Usage.Loops, n.Replicas.Loops,
		}
		n.Loops.Register(n.Sources...)
		p.Nodes = append(p.Nodes, n)
		p.wg.Go(func() { loops.WhileLeading(ctx, rep.Store.Leadership(), n.lead) })
	}
	return p
}

func (n *Node) lead(ctx context.Context) {
	// Like a real leader. If the write fails, another replica leads.
	_ = n.Store.Update(ctx, func(tx *raftstore.Tx) error {
		if _, ok := raftstore.Get(tx, record.Clusters, record.OriginID); !ok {
			raftstore.Put(tx, record.Clusters, &record.Cluster{Meta: record.Meta{ID: record.OriginID}, Name: "tests"})
		}
		return nil
	})
	n.Hosts.LeadWhile(ctx, n.Store.Term(), n.Engine.Run, n.Loops.Run)
}

// LeaderNode waits for the replica that leads.
func (p *Plane) LeaderNode() *Node {
	p.t.Helper()
	l := p.Leader()
	for _, n := range p.Nodes {
		if n.Replica == l {
			return n
		}
	}
	p.t.Fatal("the leader is no node of the plane")
	return nil
}

// Host starts a fake host that has joined, and waits until the leader knows it.
func (p *Plane) Host(id string, memoryMB int) *fakehost.Host {
	p.t.Helper()
	h := fakehost.New(p.t, p.CA, id, memoryMB)
	p.Join(h)
	return h
}

// Join adds a fake host to the store and starts its heartbeats.
func (p *Plane) Join(h *fakehost.Host) {
	p.t.Helper()
	p.Update(func(tx *raftstore.Tx) error {
		raftstore.Put(tx, record.Hosts, &record.Host{Meta: record.Meta{ID: h.ID}, State: record.HostLost})
		return nil
	})
	p.wg.Go(func() { h.SendHeartbeats(p.ctx, HeartbeatInterval, p.send) })
	testcluster.Await(p.t, "host "+h.ID, func() bool {
		a, ok := raftstore.Get(p.Leader().Store.View(), record.Hosts, h.ID)
		_, heard := p.LeaderNode().Hosts.Sessions()[h.ID]
		return ok && heard && a.State == record.HostUp
	})
	testcluster.Await(p.t, "the templates of host "+h.ID, func() bool {
		view := p.Leader().Store.View()
		for _, t := range h.Heartbeat().Templates {
			if _, ok := template.Operators(view, t.Name); !ok && !template.IsKey(t.Name) && t.Status == "ready" {
				return false
			}
		}
		return true
	})
}

// send sends a heartbeat to the replica that accepts it.
func (p *Plane) send(ctx context.Context, hb hostapi.Heartbeat) error {
	err := errors.New("no replica")
	for _, n := range p.Nodes {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		_, err = n.Hosts.Heartbeat(ctx, hb)
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

// Place adds a running sandbox to the store and its box to the host. It does both
// under the host's lock, so that the host never reports one without the other, which
// would then be deleted or fail.
func (p *Plane) Place(h *fakehost.Host, row *record.Sandbox) {
	p.t.Helper()
	row.Status, row.Template, row.HostID = record.SandboxRunning, "base", h.ID
	h.Change(func(_ *hostapi.Capacity, _ *[]hostapi.TemplateState, boxes map[string]hostapi.Box) {
		boxes[row.ID] = hostapi.Box{
			ID: row.ID, Generation: row.Generation, Status: hostapi.StatusRunning, Seq: row.HostSeq,
			Template: row.Template, CPU: row.CPU, MemoryMB: row.MemoryMB, DiskMB: row.DiskMB,
		}
		p.Update(func(tx *raftstore.Tx) error {
			testcluster.PutSandbox(tx, row)
			return nil
		})
	})
}

// Sandbox returns a sandbox from the leader's store.
func (p *Plane) Sandbox(id string) (*record.Sandbox, bool) {
	p.t.Helper()
	return raftstore.Get(p.Leader().Store.View(), record.Sandboxes, id)
}

// Settled waits until no flow is live and every host has exactly the boxes, captures
// and volumes that rows account for. It returns the sandboxes.
func (p *Plane) Settled(hosts ...*fakehost.Host) []*record.Sandbox {
	p.t.Helper()
	var rows []*record.Sandbox
	testcluster.Await(p.t, "settled state", func() bool {
		// The hosts are read before the rows, so that changes of a flow in between
		// show in the rows, and the two do not agree by chance.
		has := make([]holding, len(hosts))
		for i, h := range hosts {
			has[i] = holding{id: h.ID, boxes: h.Boxes(), captures: h.Captures(), volumes: h.Volumes()}
		}
		view := p.Leader().Store.View()
		rows = raftstore.All(view, record.Sandboxes)
		return len(raftstore.All(view, record.Flows)) == 0 && boxesAgree(rows, has) && objectsAgree(view, has)
	})
	p.checkEnvs()
	return rows
}

// checkEnvs fails the test unless there are exactly the environments that rows have.
func (p *Plane) checkEnvs() {
	p.t.Helper()
	view := p.Leader().Store.View()
	had, there := map[string]bool{"": true}, map[string]bool{"": true}
	for _, s := range raftstore.All(view, record.Sandboxes) {
		had[s.EnvID] = true
	}
	for _, s := range raftstore.All(view, record.Snapshots) {
		had[s.EnvID] = true
	}
	for _, e := range raftstore.All(view, record.EnvParts) {
		there[e.EnvID] = true
	}
	if !maps.Equal(had, there) {
		p.t.Errorf("rows have the environments %v, and there are %v", had, there)
	}
}

// holding is what a host has.
type holding struct {
	id       string
	boxes    map[string]hostapi.Box
	captures []string
	volumes  map[string]hostapi.Volume
}

func boxesAgree(rows []*record.Sandbox, hosts []holding) bool {
	want := map[string]string{}
	for _, s := range rows {
		switch s.Status {
		case record.SandboxRunning, record.SandboxPaused, record.SandboxHibernated:
			want[s.ID] = s.HostID
		}
	}
	n := 0
	for _, h := range hosts {
		for id := range h.boxes {
			if want[id] != h.id {
				return false
			}
			n++
		}
	}
	return n == len(want)
}

func objectsAgree(view *raftstore.Snapshot, hosts []holding) bool {
	volumes := map[string]string{}
	for _, v := range raftstore.All(view, record.Volumes) {
		volumes[v.ID] = v.HostID
	}
	for _, h := range hosts {
		for _, id := range h.captures {
			if _, ok := raftstore.Get(view, record.Snapshots, id); !ok {
				return false
			}
		}
		for id, v := range h.volumes {
			row, _ := raftstore.Get(view, record.Volumes, id)
			if volumes[id] != h.id || row.AttachedTo != v.AttachedTo {
				return false
			}
			delete(volumes, id)
		}
	}
	return len(volumes) == 0
}

// Sealer does not encrypt, but detects when a value is opened in the wrong place.
type Sealer struct{}

// Seal implements core.Sealer.
func (Sealer) Seal(plaintext, context []byte) ([]byte, error) {
	return append(append(bytes.Clone(context), 0), plaintext...), nil
}

// Open implements core.Sealer.
func (Sealer) Open(ciphertext, context []byte) ([]byte, error) {
	plain, ok := bytes.CutPrefix(ciphertext, append(bytes.Clone(context), 0))
	if !ok {
		return nil, errors.New("sealed for another place")
	}
	return plain, nil
}
