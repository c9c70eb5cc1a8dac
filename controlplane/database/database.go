// Package database manages PostgreSQL databases. A database is a row and a sandbox of its
// own. Flows create, clone, restore and delete databases, and verify their credentials.
// Loops put idle databases to sleep, restart failed ones, record what hosts report of
// archives, and prune archives. Hosts do everything that talks to PostgreSQL, or to the
// bucket with the archives.
package database

import (
	"cmp"
	"context"
	"time"

	"github.com/berth-cloud/berth/controlplane/api"
	"github.com/berth-cloud/berth/controlplane/apierror"
	"github.com/berth-cloud/berth/controlplane/core"
	"github.com/berth-cloud/berth/controlplane/sandbox"
	"github.com/berth-cloud/berth/controlplane/template"
	"github.com/berth-cloud/berth/raftstore"
	"github.com/berth-cloud/berth/raftstore/record"
	"github.com/berth-cloud/berth/timescale"
)

// Config is what databases need besides the core. A nil pointer or a zero value means the
// default, where one is given.
type Config struct {
	Sandboxes *sandbox.Sandboxes
	Templates *template.Templates

	Domain     string // clients connect to <id>.<domain>; "" if there is no router
	RouterPort int    // the port that clients see; default 5432

	Idle            time.Duration  // time without a client before a database is put to sleep; default 15 minutes
	FirstBackup     *time.Duration // time from a database's first readiness to its first base backup; default 2 minutes
	ArchiveInterval time.Duration  // how far the archive may trail writes; default 1 minute
	TargetTimeAge   *time.Duration // minimum age of a clone's target time; default 2 minutes
	BackupInterval  time.Duration  // time between base backups; default 1 day
	Retention       time.Duration  // how far back a database can be restored; default 7 days
	FailoverETA     time.Duration  // roughly how long a failover takes, as clients are told; default 3 minutes

	MaxPerWorkspace *int // databases in a workspace, including failed ones; default 100

	CreateDeadline  time.Duration // for a create, until the credentials work; default 10 minutes
	RestoreDeadline time.Duration // for a clone or a failover; default 1 hour
	FactsEvery      time.Duration // time between two writes of one archive's facts; default 30 s
	PruneEvery      time.Duration // time between prunings of a database; default 1 day
	BucketTimeout   time.Duration // for one host's answer about one archive; default 10 s
	OriginTimeout   time.Duration // the same for a restore, which is impossible without an answer; default 30 s
	BootPatience    time.Duration // how long a host may keep booting a database before it counts as failed; default 5 minutes
	RestartPause    time.Duration // pause after the first failed restart; default 2 s
}

func (c *Config) defaults() {
	c.RouterPort = cmp.Or(c.RouterPort, 5432)
	c.Idle = cmp.Or(c.Idle, 15*time.Minute)
	c.FailoverETA = cmp.Or(c.FailoverETA, 3*time.Minute)
	c.FirstBackup = cmp.Or(c.FirstBackup, new(2*time.Minute))
	c.ArchiveInterval = cmp.Or(c.ArchiveInterval, time.Minute)
	c.TargetTimeAge = cmp.Or(c.TargetTimeAge, new(2*time.Minute))
	c.BackupInterval = cmp.Or(c.BackupInterval, 24*time.Hour)
	c.Retention = cmp.Or(c.Retention, 7*24*time.Hour)
	c.MaxPerWorkspace = cmp.Or(c.MaxPerWorkspace, new(100))
	c.CreateDeadline = cmp.Or(c.CreateDeadline, timescale.Limit(10*time.Minute))
	c.RestoreDeadline = cmp.Or(c.RestoreDeadline, timescale.Limit(time.Hour))
	c.FactsEvery = cmp.Or(c.FactsEvery, 30*time.Second)
	c.PruneEvery = cmp.Or(c.PruneEvery, 24*time.Hour)
	c.BucketTimeout = cmp.Or(c.BucketTimeout, timescale.Limit(10*time.Second))
	c.OriginTimeout = cmp.Or(c.OriginTimeout, timescale.Limit(30*time.Second))
	c.BootPatience = cmp.Or(c.BootPatience, timescale.Limit(5*time.Minute))
	c.RestartPause = cmp.Or(c.RestartPause, 2*time.Second)
}

// Databases implements the API's operations on databases.
type Databases struct {
	core  *core.Core
	cfg   Config
	flows *Flows
	heard *heard
}

// New returns Databases, and registers with the sandboxes what a move of a database
// needs.
func New(c *core.Core, cfg Config) *Databases {
	cfg.defaults()
	h := newHeard(c.Clock)
	flows := &Flows{Core: c, cfg: cfg, sandboxes: cfg.Sandboxes, templates: cfg.Templates, heard: h}
	cfg.Sandboxes.SetMoves(sandbox.OwnerDatabase, flows.moves())
	return &Databases{core: c, cfg: cfg, heard: h, flows: flows}
}

// DatabaseName and Username are the same in every database's PostgreSQL.
const (
	DatabaseName = "app"
	Username     = "app"
)

// templateOf returns the template for databases of a size.
func templateOf(size string) string {
	if size == string(api.Database1G) {
		return template.Postgres
	}
	return template.Postgres + "-" + size
}

// Owned finds a database of the caller's workspace. It returns the same error for a
// database of another workspace, one that is being deleted, and one that does not exist.
func Owned(r raftstore.Reader, c core.Caller, id string) (*record.Database, error) {
	d, ok := raftstore.Get(r, record.Databases, id)
	if !ok || d.WorkspaceID != c.WorkspaceID || d.Status == record.DatabaseDeleting {
		return nil, apierror.NotFound()
	}
	return d, nil
}

// find reads one database of the caller's workspace from an up-to-date view.
func (s *Databases) find(ctx context.Context, c core.Caller, id string) (*raftstore.Snapshot, *record.Database, error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	d, err := Owned(view, c, id)
	return view, d, err
}

// Get returns one database of the caller's workspace. While it runs, and if the caller
// may write, the answer includes its credentials.
func (s *Databases) Get(ctx context.Context, c core.Caller, id string) (api.Database, error) {
	view, d, err := s.find(ctx, c, id)
	if err != nil {
		return api.Database{}, err
	}
	if core.Authorize(c, core.Write, core.Resource{Area: core.AreaDatabases}) != nil {
		return s.outline(view, d), nil // credentials would let the caller write
	}
	return s.show(view, d)
}

// List returns a page of the workspace's databases, newest first, without secrets, and
// the cursor of the next page ("" after the last).
func (s *Databases) List(ctx context.Context, c core.Caller, o core.ListOptions) (page []api.Database, next string, err error) {
	view, err := s.core.View(ctx, c)
	if err != nil {
		return nil, "", err
	}
	var rows []*record.Database
	for _, d := range raftstore.Find(view, record.Databases, "workspace", c.WorkspaceID) {
		if d.Status != record.DatabaseDeleting {
			rows = append(rows, d)
		}
	}
	rows, next, err = core.Paginate(rows, o)
	if err != nil {
		return nil, "", err
	}
	return core.Each(rows, func(d *record.Database) api.Database { return s.outline(view, d) }), next, nil
}

// Connection returns how clients reach a database.
func (s *Databases) Connection(ctx context.Context, c core.Caller, id string) (api.DatabaseConnection, error) {
	out, err := s.Get(ctx, c, id)
	return connectionOf(out), err
}

func connectionOf(d api.Database) api.DatabaseConnection {
	return api.DatabaseConnection{
		Status: d.Status, Host: d.Host, Port: d.Port, Database: d.Database, Username: d.Username, Password: d.Password,
		ConnectionURL: d.ConnectionURL, BrokerToken: d.BrokerToken, BrokerURL: d.BrokerURL, Error: d.Error,
	}
}

// Patch changes a database's always_on setting, which decides whether it is put to sleep
// when idle.
func (s *Databases) Patch(ctx context.Context, c core.Caller, id string, in api.PatchDatabase) (api.Database, error) {
	if err := c.RequireWorkspace(); err != nil {
		return api.Database{}, err
	}
	err := s.core.Update(ctx, func(tx *raftstore.Tx) error {
		d, err := Owned(tx, c, id)
		if err != nil {
			return err
		}
		d = d.Clone()
		d.AlwaysOn = in.AlwaysOn
		raftstore.Put(tx, record.Databases, d)
		return nil
	})
	if err != nil {
		return api.Database{}, err
	}
	return s.written(c, id)
}

// written returns a database that the caller has just changed. The local view suffices:
// it includes what was committed here, whoever leads by now.
func (s *Databases) written(c core.Caller, id string) (api.Database, error) {
	view := s.core.Store.View()
	d, err := Owned(view, c, id)
	if err != nil {
		return api.Database{}, err
	}
	return s.show(view, d)
}

// singleNode reports whether the cluster has only one replica.
func (s *Databases) singleNode() bool {
	return s.core.Store.Status().Voters() <= 1
}

var errSingleNode = &apierror.Error{
	Code: apierror.ENotImplemented, Message: "not available on a single-node install", Detail: "clone, failover and reset-credentials need a multi-node deployment",
}
