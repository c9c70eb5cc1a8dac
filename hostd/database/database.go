// Package database keeps the databases of a host: for each box that is one it tunes
// PostgreSQL, restores it, carries its WAL and its base backups out of the guest into
// the bucket, and knows when it may sleep. A guest calls nobody, so everything begins
// here. What must outlive the daemon is in the box's record, in the guest and in the
// bucket; the rest is learned again.
package database

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/berth-cloud/berth/guest/pgapi"
	"github.com/berth-cloud/berth/hostd/background"
	"github.com/berth-cloud/berth/hostd/box"
	"github.com/berth-cloud/berth/hostd/hostapi"
	"github.com/berth-cloud/berth/hostd/hosterr"
	"github.com/berth-cloud/berth/hostd/pgarchive"
)

// Boxes has the boxes that are databases.
type Boxes interface {
	SetDatabase(id string, spec *hostapi.DatabaseSpec) error
	Databases() []box.DatabaseBox
	Database(id string) (box.DatabaseBox, error)
	// Watch receives when Databases may have changed.
	Watch() <-chan struct{}
	// Tunnels is how many connections callers have to a box, and when the last one ended.
	Tunnels(id string) (open int, ended time.Time)
	// Sleep hibernates a box to which nobody is connected; see box.Host.
	Sleep(ctx context.Context, id string, prepare func(context.Context) error) (hostapi.Box, error)
	// Notify has a heartbeat tell soon what State says.
	Notify()
}

// Config is what Databases work with. Now has a default.
type Config struct {
	Boxes Boxes
	// Dial connects to a port of a box's guest; the connection outlives ctx.
	Dial    func(ctx context.Context, id string, port int) (net.Conn, error)
	Store   *pgarchive.Store
	Quota   Quota // of each database's archive
	Metrics *Metrics
	Log     *slog.Logger
	Now     func() time.Time
}

// backupsAtOnce is how many base backups a host makes at once: each reads a whole
// database. One that makes no progress gives its turn away.
const backupsAtOnce = 2

// walAtOnce is how many WAL files a host archives at once: each is in memory whole.
const walAtOnce = 16

// Databases are those of one host.
type Databases struct {
	cfg     Config
	backups turns
	wal     turns
	ahead   turns
	work    *background.Group

	syncing sync.Mutex // who begins and ends agents

	mu  sync.Mutex
	dbs map[string]*database
}

// database is one box's, while the box is here.
type database struct {
	archive *pgarchive.Archive
	source  *pgarchive.Archive // of its restore; nil: it has none, or its data came with its disk
	facts   *facts
	name    string // of the archive
	agent   *agent // nil until it first runs
}

// New returns the databases of a host, which Run keeps.
func New(cfg Config) *Databases {
	if cfg.Now == nil {
		cfg.Now = func() time.Time { return time.Now().UTC() }
	}
	return &Databases{cfg: cfg, backups: make(turns, backupsAtOnce), wal: make(turns, walAtOnce), ahead: make(turns, aheadAtOnce), work: background.New(), dbs: map[string]*database{}}
}

// Run keeps an agent at each database that runs, until ctx ends. It returns when all
// of them have ended.
func (d *Databases) Run(ctx context.Context) {
	defer d.work.Close(background.ErrClosing)
	for {
		d.sync()
		select {
		case <-d.cfg.Boxes.Watch():
		case <-ctx.Done():
			return
		}
	}
}

// sync begins and ends agents, as the boxes are now.
func (d *Databases) sync() {
	d.syncing.Lock()
	defer d.syncing.Unlock()
	here := map[string]bool{}
	for _, b := range d.cfg.Boxes.Databases() {
		here[b.ID] = true
		d.syncOne(b)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, db := range d.dbs {
		if !here[id] {
			db.agent.end()
			delete(d.dbs, id)
		}
	}
}

func (d *Databases) syncOne(b box.DatabaseBox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	db := d.dbs[b.ID]
	if db != nil && db.name != b.Spec.Archive.Name { // another box of this id
		db.agent.end()
		db = nil
	}
	if db == nil {
		var err error
		if db, err = d.open(b.Spec); err != nil {
			d.cfg.Log.Error("a database cannot be archived", "sandbox_id", b.ID, "error", err)
			return
		}
		d.dbs[b.ID] = db
	}
	last := db.agent
	if last != nil && last.run == b.Run {
		last.change(b)
		return
	}
	last.end()
	switch {
	case b.Run != nil:
		db.agent = d.begin(b, db, last)
	case last != nil:
		last.run = nil // a machine that goes on after a pause is the same one
	}
}

func (d *Databases) open(spec *hostapi.DatabaseSpec) (*database, error) {
	archive, err := d.cfg.Store.Open(spec.Archive)
	if err != nil {
		return nil, archiveError(err)
	}
	db := &database{archive: archive, facts: newFacts(archive, d.cfg.Now), name: spec.Archive.Name}
	if spec.Restore != nil && !spec.Restore.WithDisk {
		if db.source, err = d.cfg.Store.Open(spec.Restore.From); err != nil {
			return nil, archiveError(err)
		}
	}
	return db, nil
}

// Put makes a box a database's. Its archive and its source never change.
func (d *Databases) Put(id string, spec hostapi.DatabaseSpec) (hostapi.DatabaseState, error) {
	if err := check(&spec); err != nil {
		return hostapi.DatabaseState{}, err
	}
	if _, err := d.open(&spec); err != nil {
		return hostapi.DatabaseState{}, err
	}
	if err := d.cfg.Boxes.SetDatabase(id, &spec); err != nil {
		return hostapi.DatabaseState{}, err
	}
	d.sync()
	if a, err := d.running(id); err == nil {
		return a.state(), nil
	}
	return hostapi.DatabaseState{}, nil
}

// Bounds of a DatabaseSpec, in seconds.
const (
	minInterval = 3 // two thirds of it are PostgreSQL's archive_timeout
	maxInterval = 3600
	maxWait     = 366 * 24 * 3600
)

func check(s *hostapi.DatabaseSpec) error {
	switch {
	case s.ArchiveIntervalSeconds < minInterval || s.ArchiveIntervalSeconds > maxInterval:
		return hosterr.Invalid("archive_interval_seconds is %d: want %d to %d", s.ArchiveIntervalSeconds, minInterval, maxInterval)
	case s.FirstBackupSeconds < 0 || s.FirstBackupSeconds > maxWait:
		return hosterr.Invalid("first_backup_seconds is %d: want 0 to %d", s.FirstBackupSeconds, maxWait)
	case s.BackupIntervalSeconds < 1 || s.BackupIntervalSeconds > maxWait:
		return hosterr.Invalid("backup_interval_seconds is %d: want 1 to %d", s.BackupIntervalSeconds, maxWait)
	case s.Restore != nil && s.Restore.From.Name == s.Archive.Name:
		return hosterr.Invalid("a database is not restored from its own archive")
	case s.Restore != nil && s.Restore.WithDisk && (!s.Restore.From.IsZero() || s.Restore.TargetTime != nil):
		return hosterr.Invalid("what came with the disk is not restored from an archive, nor to a moment")
	}
	return nil
}

// running returns the agent of a database that runs.
func (d *Databases) running(id string) (*agent, error) {
	b, err := d.cfg.Boxes.Database(id)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	db := d.dbs[id]
	if b.Run == nil || db == nil || db.agent == nil || db.agent.run != b.Run {
		return nil, hosterr.ErrNotRunning
	}
	return db.agent, nil
}

// State is what is known of a database that runs, as of a few seconds ago; nil of
// anything else.
func (d *Databases) State(id string) *hostapi.DatabaseState {
	a, err := d.running(id)
	if err != nil {
		return nil
	}
	st := a.state()
	return &st
}

// Get is State as the guest answers now.
func (d *Databases) Get(ctx context.Context, id string) (hostapi.DatabaseState, error) {
	a, err := d.running(id)
	if err != nil {
		return hostapi.DatabaseState{}, err
	}
	if _, err := a.look(ctx); err != nil {
		return hostapi.DatabaseState{}, guestError(err)
	}
	return a.state(), nil
}

// SetCredentials puts the tenant's credentials into force, and proves them by a log-in.
// Once the guest is asked it goes on when ctx ends.
func (d *Databases) SetCredentials(ctx context.Context, id string, c pgapi.Credentials) (pgapi.CredentialsApplied, error) {
	a, err := d.running(id)
	if err != nil {
		return pgapi.CredentialsApplied{}, err
	}
	if !a.restored() {
		return pgapi.CredentialsApplied{}, errRestoring
	}
	// Whoever gave these up may have others set by the time that PostgreSQL is tuned.
	wait, cancel := context.WithTimeout(ctx, credentialsLimit)
	defer cancel()
	select {
	case <-a.tuned:
	case <-a.done:
		return pgapi.CredentialsApplied{}, hosterr.ErrNotRunning
	case <-wait.Done():
		return pgapi.CredentialsApplied{}, &reason{hosterr.ErrDatabaseUnready, errors.New("PostgreSQL is not tuned yet")}
	}
	applied, err := within(context.WithoutCancel(ctx), credentialsLimit, func(ctx context.Context) (pgapi.CredentialsApplied, error) {
		return a.client.Credentials(ctx, c)
	})
	boundTenant(&applied.Tenant)
	if err == nil {
		a.mu.Lock()
		a.seen.status.Tenant = &applied.Tenant
		a.mu.Unlock()
	}
	return applied, guestError(err)
}

// Backup begins a base backup, unless one is under way.
func (d *Databases) Backup(id string) error {
	a, err := d.running(id)
	if err != nil {
		return err
	}
	if !a.restored() {
		return errRestoring
	}
	a.askBackup()
	return nil
}

// Switch returns once all that was written before is archived.
func (d *Databases) Switch(ctx context.Context, id string) (hostapi.DatabaseState, error) {
	a, err := d.running(id)
	if err != nil {
		return hostapi.DatabaseState{}, err
	}
	if !a.restored() {
		return hostapi.DatabaseState{}, errRestoring
	}
	if err := a.archiveAll(ctx); err != nil {
		return hostapi.DatabaseState{}, err
	}
	return a.state(), nil
}

// Sleep hibernates a database that has been idle, with all its WAL archived.
func (d *Databases) Sleep(ctx context.Context, id string, s hostapi.DatabaseSleep) (hostapi.Box, error) {
	if s.IdleSeconds < 0 {
		return hostapi.Box{}, hosterr.Invalid("idle_seconds is %d", s.IdleSeconds)
	}
	if _, err := d.cfg.Boxes.Database(id); err != nil {
		return hostapi.Box{}, err
	}
	var a *agent
	b, err := d.cfg.Boxes.Sleep(ctx, id, func(ctx context.Context) (err error) {
		if a, err = d.running(id); err != nil {
			return err
		}
		return a.prepareSleep(ctx, time.Duration(s.IdleSeconds)*time.Second)
	})
	if err != nil && a != nil {
		a.stayAwake()
	}
	return b, err
}

// guestError is why a call to a guest failed.
func guestError(err error) error {
	if err == nil {
		return nil
	}
	refusal, ok := errors.AsType[*pgapi.Refusal](err)
	if !ok {
		for _, known := range []error{hosterr.ErrGuest, hosterr.ErrNotRunning, hosterr.ErrCutOff, hosterr.ErrNotFound} {
			if errors.Is(err, known) {
				return err
			}
		}
		return &reason{hosterr.ErrGuest, err}
	}
	kind := hosterr.ErrGuest
	switch refusal.Body.Code {
	case pgapi.CodeBusy:
		kind = hosterr.ErrDatabaseBusy
	case pgapi.CodeNotReady:
		kind = hosterr.ErrDatabaseUnready
	case pgapi.CodeNotVerified:
		kind = hosterr.ErrNotVerified
	case pgapi.CodeInvalid:
		kind = hosterr.ErrInvalid
	}
	return &reason{kind, err}
}

// archiveError is why a call to an archive failed.
func archiveError(err error) error {
	for _, known := range []struct{ is, kind error }{
		{pgarchive.ErrDamaged, hosterr.ErrArchiveDamaged},
		{pgarchive.ErrFenced, hosterr.ErrArchiveFenced},
		{pgarchive.ErrNothing, hosterr.ErrNoArchive},
		{pgarchive.ErrNotArchived, hosterr.ErrNoArchive},
		{pgarchive.ErrInvalid, hosterr.ErrInvalid},
	} {
		if errors.Is(err, known.is) {
			return &reason{known.kind, err}
		}
	}
	return err
}

// reason is a host's refusal that says why in another's words.
type reason struct{ kind, cause error }

func (r *reason) Error() string   { return r.cause.Error() }
func (r *reason) Unwrap() []error { return []error{r.kind, r.cause} }
