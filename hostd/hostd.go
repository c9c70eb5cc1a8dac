package hostd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-cloud/berth/hostd/blob"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/build"
	"github.com/berth-cloud/berth/hostd/capture"
	"github.com/berth-cloud/berth/hostd/cgroup"
	"github.com/berth-cloud/berth/hostd/database"
	"github.com/berth-cloud/berth/hostd/events"
	"github.com/berth-cloud/berth/hostd/guard"
	"github.com/berth-cloud/berth/hostd/heartbeat"
	"github.com/berth-cloud/berth/hostd/image"
	"github.com/berth-cloud/berth/hostd/lease"
	"github.com/berth-cloud/berth/hostd/ledger"
	"github.com/berth-cloud/berth/hostd/meter"
	"github.com/berth-cloud/berth/hostd/pgarchive"
	"github.com/berth-cloud/berth/hostd/reconcile"
	"github.com/berth-cloud/berth/hostd/server"
	"github.com/berth-cloud/berth/hostd/snapshot"
	"github.com/berth-cloud/berth/hostd/stats"
	"github.com/berth-cloud/berth/hostd/volume"
	"github.com/berth-cloud/berth/netfab/slot"
	"github.com/berth-cloud/berth/vmm"
)

// Daemon is a host's daemon with its parts, before it runs.
type Daemon struct {
	cfg       Config
	log       *slog.Logger
	creds     credentials
	engine    vmm.Engine
	budgetMB  int
	lock      *os.File // of the host
	ledger    *ledger.Ledger
	fabric    *slot.Fabric
	pool      *slot.Pool
	slots     *slots
	tree      *cgroup.Tree
	marks     guard.Marks
	snapshots *snapshot.Store // nil: none
	builds    *build.Builds
	volumes   *volume.Store
	stored    *capture.Stored     // nil: no snapshot store
	archives  *pgarchive.Store    // nil: no archive store, and no databases
	databases *database.Databases // likewise
	blobs     *blob.Store
	boxes     *box.Host
	stats     *stats.Stats
	machine   *machine
	meter     *meter.Meter
	events    *events.Recorder
	delivery  *events.Delivery
	registry  *prometheus.Registry
	server    *server.Server
	heartbeat *heartbeat.Sender
	replies   *heartbeat.Replies
	lease     *lease.Lease

	bootID      string
	machineBoot string // which run of the machine this is
	startedAt   time.Time

	peers    []string // replicas, as they were known at the start
	replicas *replicas
	draining atomic.Bool
}

// New checks what the host needs and puts the parts together. It starts
// nothing, and of the machine it changes only directories of its own. After an
// error nothing is held open.
func New(ctx context.Context, cfg Config, log *slog.Logger) (_ *Daemon, err error) {
	if err := cfg.checkServe(); err != nil {
		return nil, err
	}
	checks := checkHost(ctx, cfg)
	if err := failed(checks); err != nil {
		return nil, fmt.Errorf("this host is not ready (hostd doctor shows every check):\n%w", err)
	}
	for _, c := range checks {
		if c.Err != nil {
			log.WarnContext(ctx, "this host lacks something, and starts all the same", "check", c.Name, "error", c.Err)
		}
	}
	d := &Daemon{cfg: cfg, log: log, startedAt: time.Now().UTC(), bootID: newBootID(), registry: newRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.creds, err = loadCredentials(cfg.PKIDir, cfg.HostID); err != nil {
		return nil, err
	}
	d.peers = d.creds.peers
	if len(cfg.Peers) > 0 {
		d.peers = cfg.Peers
	}
	if d.engine, err = vmm.Detect(ctx, cfg.VMM); err != nil {
		return nil, err
	}
	log.Info("engine", "kind", d.engine.Kind, "version", vmm.ShortEngine(d.engine.Version), "path", d.engine.Path,
		"software_emulation", d.engine.Kind == vmm.KindChvemu)
	total, err := totalMemoryMB()
	if err != nil {
		return nil, err
	}
	var overheadMB int
	if d.budgetMB, overheadMB, err = cfg.memory(d.engine, total); err != nil {
		return nil, err
	}
	// The ledger first of what is shared with an earlier daemon: its lock says
	// that there is no other one with these data, and the host's that there is
	// none with others.
	if d.ledger, err = ledger.Open(cfg.paths().Ledger(), cfg.HostID); err != nil {
		return nil, err
	}
	if d.lock, err = lockHost(cfg); err != nil {
		return nil, err
	}
	if d.machineBoot, err = machineBoot(); err != nil {
		return nil, err
	}
	if d.events, err = openEvents(cfg, d.machineBoot, d.registry, log); err != nil {
		return nil, err
	}
	d.replicas = newReplicas(d.peers, log)
	if d.fabric, err = newFabric(ctx, cfg, d.replicas, log); err != nil {
		return nil, err
	}
	if d.tree, err = openTree(cfg, log); err != nil {
		return nil, err
	}
	if err := d.openGuard(); err != nil {
		return nil, err
	}
	if err := openTun(log); err != nil {
		return nil, err
	}
	d.pool = slot.NewPool(d.fabric, slot.PoolConfig{Ready: cfg.SlotPool, Workers: 4}, log)
	// Never handed out and never cleaned: see TemplateStore.
	d.pool.Hold(cfg.Slots)
	engine, err := newEngine(d.engine)
	if err != nil {
		return nil, err
	}
	d.slots = newSlots(d.fabric, d.pool, log)
	ca, err := cfg.databaseCA()
	if err != nil {
		return nil, err
	}
	images, err := openImages(ctx, cfg, d.engine, poolLease(d.slots, engine.groups, cgroups{d.tree}, overheadMB), log)
	if err != nil {
		return nil, err
	}
	if err := removeBuildGroups(ctx, cgroups{d.tree}); err != nil {
		log.Error("what a template build of an earlier daemon used is left", "error", err)
	}
	if d.volumes, err = openVolumes(cfg, d.ledger, d.promisedToBoxes, d.makeRoom, log); err != nil {
		return nil, err
	}
	if err := d.openBuilds(ctx, images); err != nil {
		return nil, err
	}
	if err := d.openDatabases(ctx); err != nil {
		return nil, err
	}
	if err := d.openBlobs(ctx); err != nil {
		return nil, err
	}
	if err := d.openStats(); err != nil {
		return nil, err
	}
	if err := d.assemble(engine, ca, overheadMB); err != nil {
		return nil, err
	}
	return d, nil
}

// openBuilds opens the snapshot store, if there is one, and what goes to it.
func (d *Daemon) openBuilds(ctx context.Context, images *image.Store) (err error) {
	if d.cfg.SnapshotStore != "" {
		if d.snapshots, err = snapshot.Open(ctx, d.cfg.SnapshotStore, snapshot.Options{}); err != nil {
			return fmt.Errorf("BERTH_SNAPSHOT_STORE: %w", err)
		}
	}
	d.builds, err = build.Open(build.Config{
		Dir: filepath.Join(d.cfg.DataDir, "builds"), Images: images, Sources: d.cfg.TemplateSources, Ahead: d.cfg.TemplatesAhead, Host: d.cfg.HostID,
		Engine: engineName(d.engine), MemoryMB: d.budgetMB, Snapshots: d.snapshots, InUse: d.buildsInUse,
		Admit:      func(g image.Guest) (func(), error) { return d.boxes.Reserve(g.MemoryMB, g.DiskMB) },
		Room:       d.imageRoom,
		AdmitFetch: func(m *snapshot.Manifest) error { return d.stored.Admit(m) },
		Log:        d.log,
	})
	if err != nil || d.snapshots == nil {
		return err
	}
	d.stored = capture.NewStored(capture.StoredConfig{
		Snapshots: d.snapshots, Builds: d.builds.Stored, Images: images, Engine: engineName(d.engine), Room: d.room, Log: d.log,
	})
	return nil
}

// room is how many bytes of the data directory may be filled.
func (d *Daemon) room() (int64, error) {
	free, err := freeBytes(d.cfg.DataDir)
	return free - int64(d.cfg.DiskHeadroomMB)<<20, err
}

// assemble makes the parts that need the others.
func (d *Daemon) assemble(engine *engine, databaseCA []byte, overheadMB int) (err error) {
	groups := marked{cgroups{d.tree}, d.marks}
	d.machine = &machine{paths: d.cfg.paths(), engine: engine, groups: groups, slots: d.slots}
	deps := box.Deps{
		Ledger: d.ledger, Slots: d.slots, Engine: engine, Cgroups: measured{groups, d.stats}, Templates: templates{d.builds.Templates},
		Metrics: box.NewMetrics(d.registry), Events: d.events, Volumes: d.volumes, Promised: d.volumes.Promised, Log: d.log,
		Leased: func() bool { return !d.lease.Over() }, Guarded: d.marks.Ended,
	}
	if d.stored != nil { // a nil one in the interface would not be nil
		deps.Remote = d.stored
	}
	d.boxes = box.New(box.Config{
		Paths: d.cfg.paths(), MemoryMB: d.budgetMB, OverheadMB: overheadMB, DiskHeadroomMB: d.cfg.DiskHeadroomMB, DiskOvercommit: d.cfg.DiskOvercommit, KeepDisks: d.cfg.KeepDisks,
		OverlayPool: d.cfg.OverlayPool, CreateTimeout: d.cfg.CreateTimeout, MaxExecs: maxExecs, MaxTunnels: d.cfg.MaxTunnels, OutputBudget: outputBudget,
		GatewayMAC: slot.TapMAC, Nameservers: []string{slot.GatewayAddr.String()}, DatabaseCA: databaseCA, Engine: engineName(d.engine),
	}, deps)
	d.registry.MustRegister(d.boxes.Collect(), diskFree(d.cfg.DataDir), ready(d.notReady), certificates(d.creds.cert))
	d.assembleDatabases()
	if d.meter, err = d.openMeter(); err != nil {
		return err
	}
	d.lease = lease.New(lease.Config{
		File: d.cfg.paths().Lease(), BootID: d.machineBoot, Log: d.log,
		Fence: func(ctx context.Context) { d.boxes.Fence(ctx, "its host was without the control plane for a lease") },
	})
	d.replies = heartbeat.NewReplies(heartbeat.RepliesConfig{
		Ledger: d.ledger, Renew: d.lease.Renew, PeersFile: filepath.Join(d.cfg.PKIDir, filePeers),
		MovedTo: func(peers []string) { d.delivery.SetPeers(peers); d.replicas.moved(peers) }, Log: d.log,
	})
	config := server.Config{
		Boxes: d.boxes, Guests: d.boxes.Guests(), Captures: d.boxes.Captures(), Volumes: d.volumes, Builds: d.builds.Queue, Events: d.events, Blobs: d.blobs, Usage: d.meter, Stats: d.stats,
		Info: d.report, NotReady: d.notReady, ObserveTerm: d.ledger.ObserveTerm, Member: d.replies.IsMember, Router: d.replies.IsRouter,
		Metrics: promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{}), Log: d.log,
		GetCertificate: d.creds.cert.ForServer, CAs: d.creds.trust.Pool,
	}
	if d.stored != nil {
		d.stored.Serve(d.boxes.Captures())
		config.Stored = d.stored
	}
	if d.databases != nil {
		config.Databases, config.Archives = d.databases, database.NewArchives(d.archives)
	}
	d.server = server.New(config)
	toReplicas := d.toReplicas()
	d.heartbeat = heartbeat.New(heartbeat.Config{
		Report: d.report, Changed: d.boxes.Changed(), Peers: d.peers, Interval: d.cfg.HeartbeatInterval,
		TLS: toReplicas, Clock: d.lease.Now, OnReply: d.replies.Take, Log: d.log,
	})
	d.delivery = events.NewDelivery(events.DeliveryConfig{Recorder: d.events, Peers: d.peers, TLS: toReplicas, Log: d.log})
	return nil
}

// Run serves until ctx ends, and stops in an orderly way. VMs live on.
func (d *Daemon) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()

	// Start, each step because the next one needs it:
	// 1. The host's own network rules. Without them a guest that is adopted or
	//    started could reach what it must not.
	if err := d.fabric.EnsureHost(ctx); err != nil {
		return fmt.Errorf("set up the host's network: %w", err)
	}
	// 2. The port, so that a host that cannot have it changes nothing more.
	//    Until step 5 is over every call about a box is answered 503.
	listener, err := net.Listen("tcp", d.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on BERTH_LISTEN %s: %w", d.cfg.Listen, err)
	}
	stop := d.newStop()
	served := make(chan error, 1)
	go func() { served <- d.server.Serve(listener) }()

	// 3. Heartbeats, with ready=false: the leader need not give the host up
	//    while it looks around.
	stop.background(d.heartbeat.Run)
	stop.background(d.replies.Run)
	stop.background(d.delivery.Run)
	stop.background(d.lease.Run)
	stop.background(d.renewer().Run)
	if k := d.keeper(); k != nil {
		stop.background(k.Run)
	}
	stop.background(d.warnOfStores)
	// Each of them reports every box, which takes every lock that a call takes.
	stop.background(func(ctx context.Context) {
		d.cfg.Notifier.Watch(ctx, d.log, d.heartbeat.Progress)
	})
	// 4. Templates are looked through, so that the first create need not.
	d.builds.Scan(ctx)
	// 5. The ledger and the kernel are brought together; then Put is served.
	rec := &reconcile.Reconciler{Records: d.ledger.Boxes(), Boxes: d.boxes, Captures: d.boxes.Captures(), Machine: d.machine, Events: d.events, Log: d.log}
	_, startErr := rec.Run(ctx)
	if startErr == nil {
		d.forgetEvents()
		stop.background(d.meter.Run)
		// 6. Only now: the pool removes every slot that no box holds.
		stop.background(func(ctx context.Context) {
			if err := d.pool.Run(ctx); err != nil {
				d.log.Error("pool of network slots ended", "error", err)
			}
		})
		stop.background(func(ctx context.Context) {
			if err := d.fabric.Keep(ctx); err != nil {
				d.log.Error("keeping the host's network rules ended", "error", err)
			}
		})
		// 7. Templates are built when they are asked for, and overlays cloned ahead.
		stop.background(func(ctx context.Context) { d.builds.Run(ctx, d.offer) })
		// 8. What nobody needs of the snapshot store goes, now and then.
		if d.stored != nil {
			stop.background(d.stored.Run)
		}
		// 9. Databases go on being archived.
		if d.databases != nil {
			stop.background(d.databases.Run)
		}
		// 10. What boxes use is measured.
		stop.background(d.stats.Run)
		// 11. What earlier daemons left of blobs goes.
		stop.background(func(ctx context.Context) {
			if err := d.blobs.Sweep(ctx, time.Now()); err != nil && ctx.Err() == nil {
				d.log.Warn("blobs were not swept", "error", err)
			}
		})
		d.log.Info("hostd serves", "agent_id", d.cfg.HostID, "listen", listener.Addr().String(), "advertise", d.cfg.Advertise,
			"memory_mb", d.budgetMB, "slots", d.cfg.Slots, "version", d.cfg.Version)
		d.notified(d.cfg.Notifier.Ready("Serving as host " + d.cfg.HostID + " on " + listener.Addr().String()))
		select {
		case <-ctx.Done():
		case startErr = <-served:
			served <- nil
		}
	}

	// Stop, the other way round:
	d.log.Info("hostd stops, sandboxes go on")
	d.notified(d.cfg.Notifier.Stopping())
	// a. No new box, said in a last heartbeat, so that nothing is placed here.
	d.draining.Store(true)
	d.boxes.Drain()
	// b. Requests end: those that only wait, in a moment; the others are given
	//    StopTimeout. A create that is under way then is cut off and cleaned.
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.cfg.StopTimeout)
	defer cancel()
	if err := d.server.Shutdown(sctx); err != nil {
		d.log.Warn("requests were cut off", "error", err)
	}
	stopErr := errors.Join(startErr, <-served)
	// c. Guests flush their volumes, now that no more commands are answered: nobody
	//    else does if the machine stops, too.
	d.boxes.FlushVolumes(context.WithoutCancel(ctx))
	// d. The boxes' own workers (they need the slots' pool to take slots back);
	// e. heartbeats, pool, templates.
	d.boxes.Close()
	stop.end()
	return stopErr
}

// notified logs that systemd was not told: the host serves all the same.
func (d *Daemon) notified(err error) {
	if err != nil {
		d.log.Warn("systemd was not told", "error", err)
	}
}

// close releases what New opened, in the opposite order.
func (d *Daemon) close() error {
	var errs []error
	if d.boxes != nil {
		d.boxes.Close() // again is no harm
	}
	if d.stored != nil {
		d.stored.Close()
	}
	if d.snapshots != nil {
		errs = append(errs, d.snapshots.Close())
	}
	if d.slots != nil {
		d.slots.close()
	}
	if d.fabric != nil {
		errs = append(errs, d.fabric.Close())
	}
	if d.ledger != nil {
		errs = append(errs, d.ledger.Close())
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Close())
	}
	return errors.Join(errs...)
}

// stop ends background work and waits for it.
type stop struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// newStop makes a context of its own: the parts outlive the signal that ends
// Run until their turn comes.
func (d *Daemon) newStop() *stop {
	ctx, cancel := context.WithCancel(context.Background())
	return &stop{ctx: ctx, cancel: cancel}
}

func (s *stop) background(f func(context.Context)) { s.group.Go(func() { f(s.ctx) }) }

func (s *stop) end() {
	s.cancel()
	s.group.Wait()
}

// buildsInUse are the template builds that boxes and captures were made from.
func (d *Daemon) buildsInUse() []string {
	var out []string
	for _, rec := range d.ledger.Boxes() {
		out = append(out, rec.BuildID)
	}
	for _, c := range d.boxes.Captures().List() {
		out = append(out, c.BuildID)
	}
	return out
}

// promisedToBoxes is what is kept on the disk for what boxes may still write.
func (d *Daemon) promisedToBoxes() int64 { return d.boxes.DiskPromised() }

// makeRoom lets something be admitted to the disk in place of captures that are
// stored.
func (d *Daemon) makeRoom(check func() (missing int64, err error)) error {
	return d.boxes.Captures().MakeRoom(check)
}

// offer has overlays cloned ahead for the templates that are ready.
func (d *Daemon) offer(ready []image.Template) {
	seeds := make([]capture.Seed, 0, len(ready))
	for _, t := range ready {
		seeds = append(seeds, capture.Seed{Build: t.BuildID, Path: t.OverlaySeed})
	}
	d.boxes.Overlays().Offer(seeds)
}

// engineName names an engine in the ledger and with what it saved.
func engineName(e vmm.Engine) string { return e.Kind + " " + e.Version }

// newBootID names one run of the daemon.
func newBootID() string {
	raw := make([]byte, 8)
	rand.Read(raw) // never fails: crypto/rand ends the process first
	return hex.EncodeToString(raw)
}
